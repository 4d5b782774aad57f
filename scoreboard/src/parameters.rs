//! Parameters by name, as an optimizer sees them.

use lowtide_nn::{Nodes, Parameter, Visitor};

/// Parameters of a case, each under a name.
pub(crate) struct NamedParameters(pub(crate) Vec<(String, Parameter)>);

impl Nodes for NamedParameters {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        self.0.iter_mut().for_each(|(name, parameter)| visitor.field(name.as_str(), parameter));
    }
}
