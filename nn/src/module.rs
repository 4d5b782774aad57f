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

/// The things that a model owns, one kind at a time. Everything with [`Nodes`] has these methods.
pub trait Parameters: Nodes {
    /// Shows every parameter once, with PyTorch's name for it (`layers.0.weight`).
    fn visit(&mut self, visitor: &mut dyn FnMut(&str, &mut Parameter)) {
        self.visit_nodes(&mut Visitor::new(&mut |name, node| {
            if let Node::Parameter(parameter) = node {
                visitor(name, parameter);
            }
        }));
    }

    /// Shows every buffer once, with PyTorch's name for it (`layers.1.running_mean`).
    fn visit_buffers(&mut self, visitor: &mut dyn FnMut(&str, &mut Buffer)) {
        self.visit_nodes(&mut Visitor::new(&mut |name, node| {
            if let Node::Buffer(buffer) = node {
                visitor(name, buffer);
            }
        }));
    }

    /// Shows what becomes of the tensors that each block saves for backward, in the order in which
    /// blocks run; a block is a [`Segment`](crate::Segment). `None` is the policy of the segment
    /// around it. The results have the same bits under every policy.
    fn visit_policies(&mut self, visitor: &mut dyn FnMut(&mut Option<SavedPolicy>)) {
        self.visit_nodes(&mut Visitor::new(&mut |_, node| {
            if let Node::Block(policy) = node {
                visitor(policy);
            }
        }));
    }

    /// Shows every linear layer once, with its name (`layers.0.q_proj`; empty for a module that is
    /// one): what can be [adapted](crate::adapt). A layer whose weight is computed from others is
    /// not shown.
    fn visit_linears(&mut self, visitor: &mut dyn FnMut(&str, &mut Linear)) {
        self.visit_nodes(&mut Visitor::new(&mut |name, node| {
            if let Node::Linear(linear) = node {
                visitor(name, linear);
            }
        }));
    }

    /// Shows what several ranks can [share](crate::parallel::share_layers).
    fn visit_shared(&mut self, visitor: &mut dyn FnMut(Shared<'_>)) {
        self.visit_nodes(&mut Visitor::new(&mut |_, node| {
            if let Node::Shared(show) = node {
                show(visitor);
            }
        }));
    }

    /// Gives all blocks one policy.
    fn set_policy(&mut self, policy: Option<SavedPolicy>) {
        self.visit_policies(&mut |slot| slot.clone_from(&policy));
    }

    /// Shows the value of every parameter, beside it the [part](Parameter::part) of one that is
    /// divided, as `layers.0.weight.part`, then the value of every buffer: all that is stored.
    fn visit_tensors(&mut self, visitor: &mut dyn FnMut(&str, &mut Tensor)) {
        self.visit(&mut |name, parameter| {
            visitor(name, parameter.value_mut());
            if let Some(part) = parameter.part_mut() {
                visitor(&format!("{name}.part"), part);
            }
        });
        self.visit_buffers(&mut |name, buffer| visitor(name, buffer.value_mut()));
    }

    /// Gives every parameter the float type `dtype`, right after the module was made: layers are
    /// made in f32. Buffers of floats, such as running statistics, become f64 for f64 and f32 for
    /// all other types. Identities stay. Handles that were cloned before keep the old values.
    ///
    /// # Errors
    /// `DType` unless a float type, `OutOfMemory`; then nothing was changed.
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

/// The methods are the same for all: no module has its own.
impl<M: Nodes> Parameters for M {}

/// Adds what `convert` gives under `id`, which may stand in several places; the first error stays.
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

/// `value` as it is stored in `dtype`; integers stay what they are.
fn in_dtype(value: &Tensor, dtype: DType) -> Result<Tensor> {
    if !dtype.is_float() {
        let op = "set_dtype";
        return Err(TensorError::DType { op, left: dtype, right: DType::F32 }.into());
    }
    let _scope = value.device().category(Category::Parameter);
    let is_same = !value.dtype().is_float() || value.dtype() == dtype;
    Ok(if is_same { value.clone() } else { value.to_dtype(dtype)? })
}

/// A function of one value with parameters.
pub trait Module: Parameters {
    /// The value of the function for `input`, recorded by `pass`.
    ///
    /// # Errors
    /// Shapes that do not fit, `OutOfMemory`.
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var>;
}

/// [`Module::forward`] of the submodule `name`: memory and random numbers are its own.
pub(crate) fn forward_in(pass: &Pass, name: &str, module: &impl Module, x: Var) -> Result<Var> {
    pass.within(name, || module.forward(pass, x))
}

/// Shows each parameter once, also a parameter that several layers of a model share.
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
