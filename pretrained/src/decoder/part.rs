//! Parts of a model, visited one at a time while the model is built.
use lowtide_nn::{Nodes, Parameters, Visitor};

/// A part of a model, whose parameters have the names of the whole model.
pub(crate) struct Part<'a> {
    pub(crate) name: &'a str,
    pub(crate) parameters: &'a mut dyn Parameters,
}

impl Nodes for Part<'_> {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        visitor.field(self.name, self.parameters);
    }
}
