//! A part of a model that is being made.
use lowtide_nn::{Nodes, Parameters, Visitor};

/// A part of a model, with the names that its parameters have in the whole.
pub(crate) struct Part<'a> {
    pub(crate) name: &'a str,
    pub(crate) parameters: &'a mut dyn Parameters,
}

impl Nodes for Part<'_> {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        visitor.field(self.name, self.parameters);
    }
}
