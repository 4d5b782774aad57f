//! A value in a pass. Operations take it by value: a buffer is reused exactly when its last
//! handle is moved in and no rule needs it.

use std::panic::Location;

use lowtide_tensor::{Shape, Tensor};

use crate::tape::NodeId;
use crate::{AutogradError, Pass, Result, Rule};

/// A tensor and where it comes from in its [`Pass`]. Keeping one for a second use is an explicit
/// `clone`, which costs the in-place shortcut but no memory.
#[derive(Clone)]
pub struct Var {
    value: Tensor,
    node: Option<NodeId>,
    pass: Pass,
}

impl Var {
    pub(crate) fn new(value: Tensor, node: Option<NodeId>, pass: Pass) -> Self {
        Var { value, node, pass }
    }

    pub(crate) fn into_parts(self) -> (Tensor, Option<NodeId>) {
        (self.value, self.node)
    }

    /// The value.
    pub fn value(&self) -> &Tensor {
        &self.value
    }

    /// The value alone; no gradient flows through it.
    pub fn into_value(self) -> Tensor {
        self.value
    }

    /// The dimensions of the value.
    pub fn shape(&self) -> &Shape {
        self.value.shape()
    }

    /// Whether a leaf leads to this value in a pass that records.
    pub fn needs_gradient(&self) -> bool {
        self.node.is_some()
    }

    /// The pass of this value.
    pub fn pass(&self) -> &Pass {
        &self.pass
    }

    /// A user's own operation: `forward` computes the value from those of `inputs` (it owns them
    /// and may reuse their buffers), and returns the rule that backward will use.
    ///
    /// # Errors
    /// `Passes` when the inputs are of different passes, `Consumed` after backward, and what
    /// `forward` returns.
    ///
    /// # Panics
    /// Without inputs.
    #[track_caller]
    pub fn apply<const N: usize, R: Rule + 'static>(
        op: &'static str,
        inputs: [Var; N],
        forward: impl FnOnce([Tensor; N]) -> Result<(Tensor, R)>,
    ) -> Result<Var> {
        Var::apply_to(op, inputs.into(), |values| {
            forward(values.try_into().expect("as many values as inputs"))
        })
    }

    /// [`Var::apply`] for an operation with optional inputs.
    ///
    /// # Errors
    /// Those of [`Var::apply`].
    ///
    /// # Panics
    /// Without inputs.
    #[track_caller]
    pub fn apply_to<R: Rule + 'static>(
        op: &'static str,
        inputs: Vec<Var>,
        forward: impl FnOnce(Vec<Tensor>) -> Result<(Tensor, R)>,
    ) -> Result<Var> {
        let site = Location::caller();
        let pass = inputs[0].pass.clone();
        if inputs.iter().any(|input| !input.pass.is(&pass)) {
            return Err(AutogradError::Passes { op, site });
        }
        let nodes = inputs.iter().map(|input| input.node).collect();
        let (value, rule) = forward(inputs.into_iter().map(|input| input.value).collect())?;
        let node = pass.record(op, site, nodes, rule)?;
        Ok(Var { value, node, pass })
    }

    /// A user's own operation that has no rule.
    ///
    /// # Errors
    /// `NoRule` when this value needs a gradient, and what `forward` returns.
    #[track_caller]
    pub fn apply_without_rule(
        self,
        op: &'static str,
        forward: impl FnOnce(Tensor) -> Result<Tensor>,
    ) -> Result<Var> {
        if self.needs_gradient() {
            return Err(AutogradError::NoRule { op, site: Location::caller() });
        }
        Ok(self.pass.constant(forward(self.value)?))
    }
}
