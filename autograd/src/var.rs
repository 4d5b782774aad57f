//! A value in a pass. Operations take it by value: a buffer is reused exactly when its last
//! handle is moved in and no rule needs it.

use std::panic::Location;

use lowtide_tensor::{DType, Shape, Tensor};

use crate::attempt::LeafId;
use crate::error::{AutogradError, Result};
use crate::pass::Pass;
use crate::rule::{AnyRule, Rule, RuleMany};
use crate::saved::Saver;
use crate::tape::{Edge, Site};

/// A tensor and where it comes from in its [`Pass`]. Keeping one for a second use is an explicit
/// `clone`, which costs the in-place shortcut but no memory.
#[derive(Clone)]
pub struct Var {
    value: Tensor,
    node: Option<Edge>,
    /// The leaf that this is as it stands, so that its casts are made once.
    leaf: Option<LeafId>,
    pass: Pass,
}

impl Var {
    pub(crate) fn new(value: Tensor, node: Option<Edge>, pass: Pass) -> Self {
        Var { value, node, leaf: None, pass }
    }

    pub(crate) fn of_leaf(self, leaf: LeafId) -> Self {
        Var { leaf: Some(leaf), ..self }
    }

    pub(crate) fn leaf(&self) -> Option<LeafId> {
        self.leaf
    }

    pub(crate) fn into_parts(self) -> (Tensor, Option<Edge>) {
        (self.value, self.node)
    }

    pub(crate) fn node(&self) -> Option<Edge> {
        self.node
    }

    /// The tensor that was computed.
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

    /// This value as a constant: no gradient flows through it.
    #[must_use]
    pub fn detach(self) -> Var {
        Var { node: None, ..self }
    }

    /// Calls `hook` with the gradient of this value when backward has it whole, and goes on with
    /// what it returns, which must have the same shape and type. Several hooks run in the order
    /// in which they came. Never called where no gradient comes by; runs in the recomputation of
    /// a segment, not in its first run.
    ///
    /// # Errors
    /// `Consumed` after backward.
    #[track_caller]
    pub fn on_gradient(&self, hook: impl FnOnce(Tensor) -> Result<Tensor> + 'static) -> Result<()> {
        let Some(edge) = self.node else { return Ok(()) };
        self.pass.hook(edge, Box::new(hook), Location::caller())
    }

    /// A user's own operation: `forward` computes the value from those of `inputs` (it owns them
    /// and may reuse their buffers), keeps what it needs with the [`Saver`], and returns the rule
    /// that backward will use.
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
        forward: impl FnOnce([Tensor; N], &Saver) -> Result<(Tensor, R)>,
    ) -> Result<Var> {
        Var::apply_to(op, inputs.into(), |values, saver| {
            forward(values.try_into().expect("as many values as inputs"), saver)
        })
    }

    /// [`Var::apply`] for an operation with any number of inputs.
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
        forward: impl FnOnce(Vec<Tensor>, &Saver) -> Result<(Tensor, R)>,
    ) -> Result<Var> {
        let operands = Operands::new(op, inputs)?;
        let (pass, nodes, site) = (operands.pass, operands.nodes, operands.site);
        let likes = likes(&operands.values);
        let _origin = pass.origin(site).enter();
        let (value, rule) = forward(operands.values, &pass.saver(op, site, &nodes))?;
        pass.note(op, site, std::slice::from_ref(&value))?;
        let node = pass.record(op, site, (nodes, likes), AnyRule::One(Box::new(rule)))?;
        pass.settle()?;
        Ok(Var::new(value, node, pass))
    }

    /// [`Var::apply_to`] for an operation with any number of outputs, one at least.
    ///
    /// # Errors
    /// Those of [`Var::apply`].
    ///
    /// # Panics
    /// Without inputs.
    #[track_caller]
    pub fn apply_many<R: RuleMany + 'static>(
        op: &'static str,
        inputs: Vec<Var>,
        forward: impl FnOnce(Vec<Tensor>, &Saver) -> Result<(Vec<Tensor>, R)>,
    ) -> Result<Vec<Var>> {
        let operands = Operands::new(op, inputs)?;
        let (pass, nodes, site) = (operands.pass, operands.nodes, operands.site);
        let likes = likes(&operands.values);
        let _origin = pass.origin(site).enter();
        let (values, rule) = forward(operands.values, &pass.saver(op, site, &nodes))?;
        pass.note(op, site, &values)?;
        let rule = AnyRule::Many(Box::new(rule), values.len());
        let node = pass.record(op, site, (nodes, likes), rule)?;
        pass.settle()?;
        let output = |(output, value)| {
            let node = node.map(|edge| Edge { output, ..edge });
            Var::new(value, node, pass.clone())
        };
        Ok(values.into_iter().enumerate().map(output).collect())
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
        let site = Location::caller();
        if self.needs_gradient() {
            return Err(AutogradError::NoRule { op, site });
        }
        let _origin = self.pass.origin(site).enter();
        Ok(self.pass.constant(forward(self.value)?))
    }
}

/// The shape and type of each value.
fn likes(values: &[Tensor]) -> Vec<(Shape, DType)> {
    values.iter().map(|value| (*value.shape(), value.dtype())).collect()
}

/// The inputs of an operation, checked and in the types that the pass wants them in.
struct Operands {
    pass: Pass,
    nodes: Vec<Option<Edge>>,
    values: Vec<Tensor>,
    site: Site,
}

impl Operands {
    #[track_caller]
    fn new(op: &'static str, mut inputs: Vec<Var>) -> Result<Self> {
        let site = Location::caller();
        let pass = inputs[0].pass.clone();
        if inputs.iter().any(|input| !input.pass.is(&pass)) {
            return Err(AutogradError::Passes { op, site });
        }
        pass.check_open(op, site)?;
        // The conversions are recorded themselves, and are not to be converted for.
        if op != "to_dtype"
            && let Some(dtype) = pass.cast(op, &inputs)
        {
            for input in &mut inputs {
                if input.value.dtype().is_float() && input.value.dtype() != dtype {
                    *input = input.clone().cast(dtype)?;
                }
            }
        }
        let nodes = inputs.iter().map(|input| input.node).collect();
        let values = inputs.into_iter().map(|input| input.value).collect();
        Ok(Operands { pass, nodes, values, site })
    }
}
