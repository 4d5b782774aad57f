//! A part of a model that is being made.

use lowtide_nn::fields::{Buffer, Field, SavedPolicy, Shared};
use lowtide_nn::{Linear, Parameter, Parameters};

/// A part of a model, with the names that its parameters have in the whole.
pub(crate) struct Part<'a> {
    pub(crate) name: &'a str,
    pub(crate) parameters: &'a mut dyn Parameters,
}

impl Parameters for Part<'_> {
    fn visit(&mut self, visitor: &mut dyn FnMut(&str, &mut Parameter)) {
        self.parameters.visit_as(self.name, visitor);
    }

    fn visit_buffers(&mut self, visitor: &mut dyn FnMut(&str, &mut Buffer)) {
        self.parameters.visit_buffers_as(self.name, visitor);
    }

    fn visit_linears(&mut self, visitor: &mut dyn FnMut(&str, &mut Linear)) {
        self.parameters.visit_linears_as(self.name, visitor);
    }

    fn visit_policies(&mut self, visitor: &mut dyn FnMut(&mut Option<SavedPolicy>)) {
        self.parameters.visit_policies_as(self.name, visitor);
    }

    fn visit_shared(&mut self, visitor: &mut dyn FnMut(Shared<'_>)) {
        self.parameters.visit_shared(visitor);
    }
}
