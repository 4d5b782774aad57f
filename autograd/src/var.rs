//! A value in a pass. Operations take values by move: a buffer is reused exactly when its last
//! handle is moved in and no rule needs it.

use std::panic::Location;

use lowtide_tensor::{Shape, Tensor};

use crate::attempt::LeafId;
use crate::error::{AutogradError, Result, Site};
use crate::meta::TensorMeta;
use crate::pass::Pass;
use crate::rule::{AnyRule, Rule, RuleMany};
use crate::saved::Saver;
use crate::tape::{Edge, Op};

/// A tensor with its node in the record of a [`Pass`].
///
/// A second use needs an explicit `clone`. The clone costs no memory, but the next operation cannot
/// work in place.
#[derive(Clone)]
pub struct Var {
    value: Tensor,
    node: Option<Edge>,
    /// The leaf whose unchanged value this is, so that casts of the leaf are made once.
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

    /// The tensor alone. No gradient flows through it.
    pub fn into_value(self) -> Tensor {
        self.value
    }

    /// The dimensions of the tensor.
    pub fn shape(&self) -> &Shape {
        self.value.shape()
    }

    /// True if the pass records and this value depends on a leaf.
    pub fn needs_gradient(&self) -> bool {
        self.node.is_some()
    }

    /// The pass of this value.
    pub fn pass(&self) -> &Pass {
        &self.pass
    }

    /// This value as a constant. No gradient flows through it.
    #[must_use]
    pub fn detach(self) -> Var {
        Var { node: None, ..self }
    }

    /// Registers `hook` on the gradient of this value. Backward calls it with the complete gradient
    /// and continues with the tensor that it returns, which must have the same shape and type.
    ///
    /// Several hooks run in the order of registration. A hook is not called if no gradient reaches
    /// the value. In a recomputed segment, hooks run in the recomputation, not in the first run.
    ///
    /// # Errors
    /// `Consumed` after backward.
    #[track_caller]
    pub fn on_gradient(&self, hook: impl FnOnce(Tensor) -> Result<Tensor> + 'static) -> Result<()> {
        let Some(edge) = self.node else { return Ok(()) };
        self.pass.hook(edge, Box::new(hook), Location::caller())
    }

    /// Applies a user-defined operation with one output.
    ///
    /// `forward` computes the output from the values of `inputs`, which it owns and whose buffers
    /// it may reuse. It keeps tensors for backward with the [`Saver`], and returns the output with
    /// its rule.
    ///
    /// # Errors
    /// `Passes` if the inputs belong to different passes, `Consumed` after backward, and errors of
    /// `forward`.
    ///
    /// # Panics
    /// If there are no inputs.
    #[track_caller]
    pub fn apply<const N: usize, R: Rule + 'static>(
        op: &'static str,
        inputs: [Var; N],
        forward: impl FnOnce([Tensor; N], &Saver) -> Result<(Tensor, R)>,
    ) -> Result<Var> {
        Var::apply_to(op, inputs.into(), |values, saver| {
            forward(values.try_into().expect("one value for each input"), saver)
        })
    }

    /// [`Var::apply`] with any number of inputs.
    ///
    /// # Errors
    /// As for [`Var::apply`].
    ///
    /// # Panics
    /// If there are no inputs.
    #[track_caller]
    pub fn apply_to<R: Rule + 'static>(
        op: &'static str,
        inputs: Vec<Var>,
        forward: impl FnOnce(Vec<Tensor>, &Saver) -> Result<(Tensor, R)>,
    ) -> Result<Var> {
        let (call, values) = Call::new(op, inputs)?;
        let _origin = call.pass.origin(call.site).enter();
        let (value, rule) = forward(values, &call.saver())?;
        let (pass, node) =
            call.record(std::slice::from_ref(&value), AnyRule::One(Box::new(rule)))?;
        Ok(Var::new(value, node, pass))
    }

    /// [`Var::apply_to`] with any number of outputs, at least one.
    ///
    /// # Errors
    /// As for [`Var::apply`].
    ///
    /// # Panics
    /// If there are no inputs.
    #[track_caller]
    pub fn apply_many<R: RuleMany + 'static>(
        op: &'static str,
        inputs: Vec<Var>,
        forward: impl FnOnce(Vec<Tensor>, &Saver) -> Result<(Vec<Tensor>, R)>,
    ) -> Result<Vec<Var>> {
        let (call, values) = Call::new(op, inputs)?;
        let _origin = call.pass.origin(call.site).enter();
        let (values, rule) = forward(values, &call.saver())?;
        let rule = AnyRule::Many { rule: Box::new(rule), output_count: values.len() };
        let (pass, node) = call.record(&values, rule)?;
        let output = |(output, value)| {
            let node = node.map(|edge| Edge { output, ..edge });
            Var::new(value, node, pass.clone())
        };
        Ok(values.into_iter().enumerate().map(output).collect())
    }

    /// Applies a user-defined operation that has no rule.
    ///
    /// # Errors
    /// `NoRule` if this value needs a gradient, and errors of `forward`.
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

/// One call of an operation: everything about its inputs but their values.
struct Call {
    op: &'static str,
    site: Site,
    pass: Pass,
    nodes: Vec<Option<Edge>>,
    input_metas: Vec<TensorMeta>,
}

impl Call {
    /// Checks the inputs and converts them to the types that the pass's policy chooses. Returns the
    /// call and the values.
    #[track_caller]
    fn new(op: &'static str, mut inputs: Vec<Var>) -> Result<(Self, Vec<Tensor>)> {
        let site = Location::caller();
        let pass = inputs[0].pass.clone();
        if inputs.iter().any(|input| !input.pass.is(&pass)) {
            return Err(AutogradError::Passes { op, site });
        }
        pass.check_open(op, site)?;
        // The conversions below are recorded as operations, whose own inputs stay as they are.
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
        let input_metas = inputs.iter().map(|input| TensorMeta::of(&input.value)).collect();
        let values = inputs.into_iter().map(|input| input.value).collect();
        Ok((Call { op, site, pass, nodes, input_metas }, values))
    }

    fn saver(&self) -> Saver {
        self.pass.saver(self.op, self.site, &self.nodes)
    }

    /// Checks the outputs `values`, records the operation if an input needs a gradient, and evicts
    /// saved tensors. Returns the pass and the node of the first output.
    #[track_caller]
    fn record(self, values: &[Tensor], rule: AnyRule) -> Result<(Pass, Option<Edge>)> {
        let Call { op: name, site, pass, nodes: inputs, input_metas } = self;
        pass.note(name, site, values)?;
        let mut node = None;
        if inputs.iter().any(Option::is_some) {
            node = pass.record(Op { name, site, rule, inputs, input_metas })?;
        }
        pass.evict_saved()?;
        Ok((pass, node))
    }
}
