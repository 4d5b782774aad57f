//! A trainable tensor with an identity.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lowtide_allocator::Category;
use lowtide_autograd::{LeafId, Pass, Var};
use lowtide_tensor::{DType, Device, RandomKey, Shape, Tensor};

use crate::compress::quantized_weight::QuantizedWeight;
use crate::error::Result;
use crate::parallel::features::shard::Shard;
use crate::parallel::features::sum::{Sum, with_summed_gradient};
use crate::parallel::sharded::gather::Sharded;
use crate::parallel::stages::run::{is_surveying, note_leaf};

/// A cheap shared handle to a trainable tensor: clones see the same values and the same
/// gradient.
#[derive(Clone, Debug)]
pub struct Parameter {
    id: LeafId,
    value: Tensor,
    frozen: Arc<AtomicBool>,
    /// The codes of a parameter in few bits. The value then has the shape and the type alone.
    pub(crate) quantized: Option<Box<QuantizedWeight>>,
    /// The part that this rank has of a divided parameter. The value then has the shape and the
    /// type alone.
    pub(crate) sharded: Option<Box<Sharded>>,
    /// True if another rank has the values. The value here then has the shape and the type alone.
    pub(crate) is_elsewhere: bool,
    /// The place of the value in the whole parameter, where ranks share it.
    pub(crate) shard: Option<Arc<Shard>>,
    /// The sum over ranks for the gradient, where each rank has the whole parameter and computes a
    /// part of its gradient.
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
            sharded: None,
            is_elsewhere: false,
            shard: None,
            gradient_sum: None,
        }
    }

    /// The identity: the key of its gradient and of its optimizer state.
    pub fn id(&self) -> LeafId {
        self.id
    }

    /// The tensor with its values. A parameter [in few bits](crate::quantize_all),
    /// [divided](crate::parallel::divide) or [elsewhere](Parameter::is_elsewhere) has the shape and
    /// the type here alone.
    pub fn value(&self) -> &Tensor {
        &self.value
    }

    /// The tensor with its values, to write or to replace.
    pub fn value_mut(&mut self) -> &mut Tensor {
        &mut self.value
    }

    /// The part that this rank has of a [divided](crate::parallel::divide) parameter.
    ///
    /// # Shapes
    /// `[n]`
    pub fn part(&self) -> Option<&Tensor> {
        self.sharded.as_deref().map(|sharded| &sharded.own)
    }

    /// The part, to write or to replace.
    pub fn part_mut(&mut self) -> Option<&mut Tensor> {
        self.sharded.as_deref_mut().map(|sharded| &mut sharded.own)
    }

    /// The place of the value in the whole parameter, if ranks
    /// [share](crate::parallel::share_layers) it: value, gradient and state have the shape of this
    /// rank's part.
    pub fn shard(&self) -> Option<&Shard> {
        self.shard.as_deref()
    }

    /// True if the parameter is with [another stage](crate::parallel::keep_own) of a pipeline: here
    /// it has no value, no gradient and no state.
    pub fn is_elsewhere(&self) -> bool {
        self.is_elsewhere
    }

    /// This parameter with another value, such as a part of its own, to show it to a visitor.
    #[must_use]
    pub fn with_value(&self, value: Tensor) -> Parameter {
        let (id, frozen) = (self.id, Arc::clone(&self.frozen));
        Parameter { id, frozen, ..Parameter::new(value) }
    }

    /// The value in a pass, where its gradient is collected unless it is frozen. One [in few
    /// bits](crate::quantize_all) is decoded as a whole, one that is
    /// [divided](crate::parallel::divide) is put together by all ranks.
    ///
    /// # Errors
    /// `Consumed` after backward; `OutOfMemory` for what is decoded or put together.
    #[track_caller]
    pub fn var(&self, pass: &Pass) -> Result<Var> {
        note_leaf(self.id);
        if let Some(weight) = &self.quantized {
            let value = weight.get()?.decode(self.value.dtype())?;
            return Ok(pass.constant(value.reshape(*self.value.shape())?));
        }
        let value = match &self.sharded {
            Some(sharded) => sharded.whole(&self.value)?,
            None => self.value.clone(),
        };
        let is_constant = self.is_frozen() && !is_surveying();
        if is_constant || self.is_elsewhere {
            return Ok(pass.constant(value));
        }
        let leaf = pass.leaf(self.id, &value)?;
        match &self.gradient_sum {
            Some(sum) => with_summed_gradient(sum, leaf),
            None => Ok(leaf),
        }
    }

    /// Replaces the value by `weight`, frozen; the shape and the type stay.
    pub(crate) fn set_quantized(&mut self, weight: QuantizedWeight) -> Result<()> {
        let value = stand_in(&self.value)?;
        *self = Parameter { quantized: Some(Box::new(weight)), ..Parameter::new(value) };
        self.freeze();
        Ok(())
    }

    /// Excludes the parameter from training, through all its handles: it has no gradient, no
    /// optimizer state, and nothing is saved for backward on its account (`requires_grad_(False)`
    /// in PyTorch).
    pub fn freeze(&self) {
        self.frozen.store(true, Ordering::Relaxed);
    }

    /// Includes the parameter in training again.
    pub fn unfreeze(&self) {
        self.frozen.store(false, Ordering::Relaxed);
    }

    /// True if the parameter is excluded from training.
    pub fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::Relaxed)
    }
}

/// A tensor with the shape and the type of a weight, and one element, for a weight whose values are
/// elsewhere.
pub(crate) fn stand_in(weight: &Tensor) -> Result<Tensor> {
    stand_in_on(weight.device(), weight)
}

/// [`stand_in`] on another device.
pub(crate) fn stand_in_on(device: &Device, weight: &Tensor) -> Result<Tensor> {
    let _scope = device.category(Category::Parameter);
    let one = Tensor::zeros(device, [1], weight.dtype())?;
    Ok(one.expand(*weight.shape())?)
}
