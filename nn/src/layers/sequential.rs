//! One module after the other.

use lowtide_autograd::{Pass, SavedPolicy, Var};

use crate::buffer::Buffer;
use crate::error::Result;
use crate::fields::Field;
use crate::layers::linear::Linear;
use crate::module::{Module, Parameters};
use crate::parameter::Parameter;

/// A chain of modules; parameters are named by position (`0.weight`).
#[derive(Default)]
pub struct Sequential {
    layers: Vec<Box<dyn Layer>>,
}

/// A module that can be cloned behind a pointer.
trait Layer: Module {
    fn clone_boxed(&self) -> Box<dyn Layer>;
}

impl<M: Module + Clone + 'static> Layer for M {
    fn clone_boxed(&self) -> Box<dyn Layer> {
        Box::new(self.clone())
    }
}

impl Sequential {
    /// The empty chain, which returns its input.
    pub fn new() -> Self {
        Self::default()
    }

    /// This chain with `layer` at its end.
    #[must_use]
    pub fn then(mut self, layer: impl Module + Clone + 'static) -> Self {
        self.layers.push(Box::new(layer));
        self
    }
}

impl Clone for Sequential {
    fn clone(&self) -> Self {
        Sequential { layers: self.layers.iter().map(|layer| layer.clone_boxed()).collect() }
    }
}

impl Parameters for Sequential {
    fn visit(&mut self, visitor: &mut dyn FnMut(&str, &mut Parameter)) {
        for (index, layer) in self.layers.iter_mut().enumerate() {
            layer.visit_as(&index.to_string(), visitor);
        }
    }

    fn visit_buffers(&mut self, visitor: &mut dyn FnMut(&str, &mut Buffer)) {
        for (index, layer) in self.layers.iter_mut().enumerate() {
            layer.visit_buffers_as(&index.to_string(), visitor);
        }
    }

    fn visit_policies(&mut self, visitor: &mut dyn FnMut(&mut Option<SavedPolicy>)) {
        self.layers.iter_mut().for_each(|layer| layer.visit_policies(visitor));
    }

    fn visit_linears(&mut self, visitor: &mut dyn FnMut(&str, &mut Linear)) {
        for (index, layer) in self.layers.iter_mut().enumerate() {
            layer.visit_linears_as(&index.to_string(), visitor);
        }
    }
}

impl Module for Sequential {
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        self.layers.iter().enumerate().try_fold(input, |x, (index, layer)| {
            pass.within(&index.to_string(), || layer.forward(pass, x))
        })
    }
}
