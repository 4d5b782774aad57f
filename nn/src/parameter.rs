//! A trainable tensor with an identity.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lowtide_allocator::Category;
use lowtide_autograd::{LeafId, Pass, Var};
use lowtide_tensor::{DType, Device, RandomKey, Shape, Tensor};

use crate::divided::Divided;
use crate::error::Result;
use crate::quantized::{QuantizedWeight, stand_in};
use crate::stages;
use crate::tensor_parallel::{Shard, Sum, with_summed_gradient};

/// A cheap shared handle to a trainable tensor: clones see the same values and the same
/// gradient.
#[derive(Clone, Debug)]
pub struct Parameter {
    id: LeafId,
    value: Tensor,
    frozen: Arc<AtomicBool>,
    /// In place of the value, of which only the shape and the type are then there.
    pub(crate) quantized: Option<Box<QuantizedWeight>>,
    /// The part that this rank has, in place of the value, as above.
    pub(crate) divided: Option<Box<Divided>>,
    /// Whether another rank has the value, of which only the shape and the type are then there.
    pub(crate) is_elsewhere: bool,
    /// What the value is of a parameter that ranks share.
    pub(crate) shard: Option<Arc<Shard>>,
    /// Of one that is whole on each rank and has a part of its gradient there.
    pub(crate) gradient_sum: Option<Arc<dyn Sum>>,
}

impl Parameter {
    /// Uniform numbers from `[-bound, bound)` of `key`'s stream, f32.
    ///
    /// # Errors
    /// `OutOfMemory`.
    #[track_caller]
    pub fn uniform(
        device: &Device,
        key: RandomKey,
        shape: impl Into<Shape>,
        bound: f64,
    ) -> Result<Self> {
        let mut value = Tensor::empty_in(device, Category::Parameter, shape, DType::F32)?;
        value.uniform_(key, -bound, bound)?;
        Ok(Parameter::new(value))
    }

    /// Every element `value`, f32.
    ///
    /// # Errors
    /// `OutOfMemory`.
    #[track_caller]
    pub fn full(device: &Device, shape: impl Into<Shape>, value: f64) -> Result<Self> {
        let mut tensor = Tensor::empty_in(device, Category::Parameter, shape, DType::F32)?;
        tensor.fill_(value)?;
        Ok(Parameter::new(tensor))
    }

    /// A parameter with the storage of `value`.
    pub fn new(value: Tensor) -> Self {
        Parameter {
            id: LeafId::new(),
            value,
            frozen: Arc::default(),
            quantized: None,
            divided: None,
            is_elsewhere: false,
            shard: None,
            gradient_sum: None,
        }
    }

    /// The identity: the key of its gradient and of its optimizer state.
    pub fn id(&self) -> LeafId {
        self.id
    }

    /// The tensor with its values. Of one [in few bits](crate::quantize_all), that is
    /// [divided](crate::divide) or [elsewhere](Parameter::is_elsewhere), it has the shape and the
    /// type alone.
    pub fn value(&self) -> &Tensor {
        &self.value
    }

    /// The tensor with its values, to write or to replace.
    pub fn value_mut(&mut self) -> &mut Tensor {
        &mut self.value
    }

    /// What this rank has of one that is [divided](crate::divide).
    ///
    /// # Shapes
    /// `[n]`
    pub fn part(&self) -> Option<&Tensor> {
        self.divided.as_deref().map(|divided| &divided.own)
    }

    /// The same, to write or to replace.
    pub fn part_mut(&mut self) -> Option<&mut Tensor> {
        self.divided.as_deref_mut().map(|divided| &mut divided.own)
    }

    /// Of which whole parameter the value is a part, if it is [shared](crate::share_layers) by
    /// ranks: value, gradient and state have its own shape here.
    pub fn shard(&self) -> Option<&Shard> {
        self.shard.as_deref()
    }

    /// Whether it is with [another stage](crate::keep_own) of a pipeline: here it has no value, no
    /// gradient and no state.
    pub fn is_elsewhere(&self) -> bool {
        self.is_elsewhere
    }

    /// The same parameter with another value, such as a part of its own: for what is shown to a
    /// visitor.
    #[must_use]
    pub fn with_value(&self, value: Tensor) -> Parameter {
        let (id, frozen) = (self.id, Arc::clone(&self.frozen));
        Parameter { id, frozen, ..Parameter::new(value) }
    }

    /// The value in a pass, where its gradient is collected unless it is frozen. One [in few
    /// bits](crate::quantize_all) is decoded as a whole, one that is [divided](crate::divide) is
    /// put together by all ranks.
    ///
    /// # Errors
    /// `Consumed` after backward; `OutOfMemory` for what is decoded or put together.
    #[track_caller]
    pub fn var(&self, pass: &Pass) -> Result<Var> {
        stages::note_leaf(self.id);
        if let Some(weight) = &self.quantized {
            let value = weight.get()?.decode(self.value.dtype())?;
            return Ok(pass.constant(value.reshape(*self.value.shape())?));
        }
        let value = match &self.divided {
            Some(divided) => divided.whole(&self.value)?,
            None => self.value.clone(),
        };
        let is_constant = self.is_frozen() && !stages::is_surveying();
        if is_constant || self.is_elsewhere {
            return Ok(pass.constant(value));
        }
        let leaf = pass.leaf(self.id, &value)?;
        match &self.gradient_sum {
            Some(sum) => with_summed_gradient(sum, leaf),
            None => Ok(leaf),
        }
    }

    /// Leaves of the value its shape and its type, and takes `weight` in its place, frozen.
    pub(crate) fn set_quantized(&mut self, weight: QuantizedWeight) -> Result<()> {
        let value = stand_in(&self.value)?;
        *self = Parameter { quantized: Some(Box::new(weight)), ..Parameter::new(value) };
        self.freeze();
        Ok(())
    }

    /// Excludes it from training, through all its handles: it has no gradient, no optimizer state,
    /// and nothing is saved for backward on its account (`requires_grad_(False)` in PyTorch).
    pub fn freeze(&self) {
        self.frozen.store(true, Ordering::Relaxed);
    }

    /// Includes it in training again.
    pub fn unfreeze(&self) {
        self.frozen.store(false, Ordering::Relaxed);
    }

    /// Whether it is excluded from training.
    pub fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::Relaxed)
    }
}
