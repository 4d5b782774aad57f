//! The traits of every layer and every model.

use std::collections::{BTreeMap, BTreeSet};

use lowtide_allocator::Category;
use lowtide_autograd::{Pass, SavedPolicy, Var};
use lowtide_tensor::{DType, Tensor, TensorError};

use crate::buffer::Buffer;
use crate::error::Result;
use crate::layers::linear::Linear;
use crate::node::{Node, Nodes, Visitor};
use crate::parallel::features::branch::Shared;
use crate::parameter::Parameter;

/// Access to everything that a model owns, one kind at a time. Every type with [`Nodes`] has these
/// methods.
pub trait Parameters: Nodes {
    /// Shows every parameter once to a visitor, under PyTorch's name (`layers.0.weight`).
    fn visit(&mut self, visitor: &mut dyn FnMut(&str, &mut Parameter)) {
        self.visit_nodes(&mut Visitor::new(&mut |name, node| {
            if let Node::Parameter(parameter) = node {
                visitor(name, parameter);
            }
        }));
    }

    /// Shows every buffer once to a visitor, under PyTorch's name (`layers.1.running_mean`).
    fn visit_buffers(&mut self, visitor: &mut dyn FnMut(&str, &mut Buffer)) {
        self.visit_nodes(&mut Visitor::new(&mut |name, node| {
            if let Node::Buffer(buffer) = node {
                visitor(name, buffer);
            }
        }));
    }

    /// Shows the policy of each block's saved tensors to a visitor, in the order in which blocks
    /// run; a block is a [`Segment`](crate::Segment). `None` takes the policy of the enclosing
    /// segment. The results have the same bits under every policy.
    fn visit_policies(&mut self, visitor: &mut dyn FnMut(&mut Option<SavedPolicy>)) {
        self.visit_nodes(&mut Visitor::new(&mut |_, node| {
            if let Node::Block(policy) = node {
                visitor(policy);
            }
        }));
    }

    /// Shows every linear layer once to a visitor, with its name (`layers.0.q_proj`; empty if the
    /// module itself is the layer). These layers can be [adapted](crate::adapt). A layer whose
    /// weight another module computes is not shown.
    fn visit_linears(&mut self, visitor: &mut dyn FnMut(&str, &mut Linear)) {
        self.visit_nodes(&mut Visitor::new(&mut |name, node| {
            if let Node::Linear(linear) = node {
                visitor(name, linear);
            }
        }));
    }

    /// Shows the layers that several ranks can [share](crate::parallel::share_layers) to a visitor.
    fn visit_shared(&mut self, visitor: &mut dyn FnMut(Shared<'_>)) {
        self.visit_nodes(&mut Visitor::new(&mut |_, node| {
            if let Node::Shared(show) = node {
                show(visitor);
            }
        }));
    }

    /// Sets one policy for all blocks.
    fn set_policy(&mut self, policy: Option<SavedPolicy>) {
        self.visit_policies(&mut |slot| slot.clone_from(&policy));
    }

    /// Shows all tensors that are stored to a visitor: the value of every parameter, then the value
    /// of every buffer. The [part](Parameter::part) of a divided parameter follows its value, as
    /// `layers.0.weight.part`.
    fn visit_tensors(&mut self, visitor: &mut dyn FnMut(&str, &mut Tensor)) {
        self.visit(&mut |name, parameter| {
            visitor(name, parameter.value_mut());
            if let Some(part) = parameter.part_mut() {
                visitor(&format!("{name}.part"), part);
            }
        });
        self.visit_buffers(&mut |name, buffer| visitor(name, buffer.value_mut()));
    }

    /// Converts every parameter to the float type `dtype`. Call this right after the module is
    /// made: layers are made in f32. Buffers of floats, such as running statistics, become f64 for
    /// f64 and f32 for every other type. Identities stay. Handles that were cloned before keep the
    /// old values.
    ///
    /// # Errors
    /// `DType` unless `dtype` is a float type, `OutOfMemory`; then nothing has changed.
    fn set_dtype(&mut self, dtype: DType) -> Result<()> {
        let statistics = dtype.computed();
        let (mut parameters, mut buffers) = (BTreeMap::new(), BTreeMap::new());
        let mut outcome = Ok(());
        self.visit(&mut |_, parameter| {
            keep(&mut parameters, parameter.id(), &mut outcome, || {
                in_dtype(parameter.value(), dtype)
            })
        });
        self.visit_buffers(&mut |_, buffer| {
            keep(&mut buffers, buffer.id(), &mut outcome, || in_dtype(buffer.value(), statistics))
        });
        outcome?;
        self.visit(&mut |_, parameter| {
            *parameter.value_mut() = parameters[&parameter.id()].clone()
        });
        self.visit_buffers(&mut |_, buffer| *buffer.value_mut() = buffers[&buffer.id()].clone());
        Ok(())
    }
}

/// Gives every module the default methods; no module overrides them.
impl<M: Nodes> Parameters for M {}

/// Stores the result of `convert` under `id`. Skips an `id` that has a result already, for a tensor
/// in several places of a model. Keeps the first error.
pub(crate) fn keep<K: Ord>(
    converted: &mut BTreeMap<K, Tensor>,
    id: K,
    outcome: &mut Result<()>,
    convert: impl FnOnce() -> Result<Tensor>,
) {
    if outcome.is_err() || converted.contains_key(&id) {
        return;
    }
    match convert() {
        Ok(value) => drop(converted.insert(id, value)),
        Err(error) => *outcome = Err(error),
    }
}

/// `value` converted to `dtype`. Integers stay as they are.
fn in_dtype(value: &Tensor, dtype: DType) -> Result<Tensor> {
    if !dtype.is_float() {
        let op = "set_dtype";
        return Err(TensorError::DType { op, left: dtype, right: DType::F32 }.into());
    }
    let _scope = value.device().category(Category::Parameter);
    let is_same = !value.dtype().is_float() || value.dtype() == dtype;
    Ok(if is_same { value.clone() } else { value.to_dtype(dtype)? })
}

/// A function of one value, with parameters.
pub trait Module: Parameters {
    /// The output for `input`, recorded by `pass`.
    ///
    /// # Errors
    /// Errors of shapes that do not fit, `OutOfMemory`.
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var>;
}

/// [`Module::forward`] of the submodule `name`. Memory counts for the submodule, and random numbers
/// depend on its name.
pub(crate) fn forward_in(pass: &Pass, name: &str, module: &impl Module, x: Var) -> Result<Var> {
    pass.within(name, || module.forward(pass, x))
}

/// Shows each parameter once to a visitor, even if several layers share it.
pub(crate) fn visit_once(
    parameters: &mut dyn Parameters,
    visitor: &mut dyn FnMut(&str, &mut Parameter),
) {
    let mut seen = BTreeSet::new();
    parameters.visit(&mut |name, parameter| {
        if seen.insert(parameter.id()) {
            visitor(name, parameter);
        }
    });
}
