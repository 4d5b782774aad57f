//! The parts of all parameters that one rank updates.

use crate::error::Result;
use crate::module::{Parameters, visit_once};
use crate::node::{Node, Nodes, Visitor};
use crate::optim::part::Part;

/// A part of every parameter that is not frozen, in the place of the parameter. For optimizers that
/// [can update parts](super::Optimizer::can_update_parts). Buffers are left out.
pub struct Parts<'a> {
    parameters: &'a mut dyn Parameters,
    part: Part,
}

impl<'a> Parts<'a> {
    /// The part `part` of every parameter. A parameter that is [divided](crate::parallel::divide)
    /// already gives the part of this rank.
    ///
    /// # Errors
    /// `Strided` if a parameter that is not frozen is not contiguous.
    pub fn new(parameters: &'a mut dyn Parameters, part: Part) -> Result<Self> {
        let mut result = Ok(());
        visit_once(parameters, &mut |_, parameter| {
            if result.is_ok() && !parameter.is_frozen() && parameter.part().is_none() {
                result = part.of(parameter.value()).map(drop);
            }
        });
        result.map(|()| Parts { parameters, part })
    }
}

impl Nodes for Parts<'_> {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        let part = self.part;
        self.parameters.visit(&mut |name, parameter| {
            if !parameter.is_frozen() {
                let value = match parameter.part() {
                    Some(own) => own.clone(),
                    None => part.of(parameter.value()).expect("contiguous, which was checked"),
                };
                visitor.node(name, Node::Parameter(&mut parameter.with_value(value)));
            }
        });
    }
}
