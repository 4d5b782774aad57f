//! A trainable tensor with an identity.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lowtide_allocator::Category;
use lowtide_autograd::{LeafId, Pass, Var};
use lowtide_tensor::{DType, Device, IntoShape, RandomKey, Tensor};

use crate::compress::quantized_weight::QuantizedWeight;
use crate::error::Result;
use crate::parallel::features::shard::Shard;
use crate::parallel::features::sum::{Sum, with_summed_gradient};
use crate::parallel::sharded::gather::Sharded;
use crate::parallel::stages::run::{is_surveying, note_leaf};

/// A cheap shared handle to a trainable tensor. Clones share the values and the gradient.
#[derive(Clone, Debug)]
pub struct Parameter {
    id: LeafId,
    value: Tensor,
    frozen: Arc<AtomicBool>,
    /// The quantised values of a parameter. The tensor `value` then has only the shape and the
    /// type.
    pub(crate) quantized: Option<Box<QuantizedWeight>>,
    /// The part of a divided parameter on this rank. The tensor `value` then has only the shape and
    /// the type.
    pub(crate) sharded: Option<Box<Sharded>>,
    /// True if another rank has the values. The tensor `value` then has only the shape and the
    /// type.
    pub(crate) is_elsewhere: bool,
    /// The shard of the whole parameter that `value` is, if ranks share the parameter.
    pub(crate) shard: Option<Arc<Shard>>,
    /// The sum over ranks for the gradient, if each rank has the whole parameter and computes a
    /// part of the gradient.
    pub(crate) gradient_sum: Option<Arc<dyn Sum>>,
}

impl Parameter {
    /// A parameter of f32, uniform in `[-bound, bound)` and drawn from the stream of `key`.
    ///
    /// # Errors
    /// `OutOfMemory`.
    #[track_caller]
    pub fn uniform(
        device: &Device,
        key: RandomKey,
        shape: impl IntoShape,
        bound: f64,
    ) -> Result<Self> {
        let mut value = Tensor::empty_in(device, Category::Parameter, shape, DType::F32)?;
        value.uniform_(key, -bound, bound)?;
        Ok(Parameter::new(value))
    }

    /// A parameter of f32 whose elements are all `value`.
    ///
    /// # Errors
    /// `OutOfMemory`.
    #[track_caller]
    pub fn full(device: &Device, shape: impl IntoShape, value: f64) -> Result<Self> {
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

    /// Identity of the parameter, and key of its gradient and of its optimizer state.
    pub fn id(&self) -> LeafId {
        self.id
    }

    /// The tensor of the parameter. If the parameter is [quantised](crate::quantize_all),
    /// [divided](crate::parallel::divide) or [elsewhere](Parameter::is_elsewhere), the tensor has
    /// the shape and the type but no values.
    pub fn value(&self) -> &Tensor {
        &self.value
    }

    /// The tensor of the parameter, to write or to replace.
    pub fn value_mut(&mut self) -> &mut Tensor {
        &mut self.value
    }

    /// The part on this rank, if the parameter is [divided](crate::parallel::divide).
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

    /// The shard of the whole parameter on this rank, if ranks
    /// [share](crate::parallel::share_layers) the parameter. Value, gradient and states have the
    /// shape of the shard.
    pub fn shard(&self) -> Option<&Shard> {
        self.shard.as_deref()
    }

    /// True if [another stage](crate::parallel::keep_own) of a pipeline has the parameter. Here the
    /// parameter has no values, no gradient and no states.
    pub fn is_elsewhere(&self) -> bool {
        self.is_elsewhere
    }

    /// This parameter with another value, such as a part of its value, to show it to a visitor.
    #[must_use]
    pub fn with_value(&self, value: Tensor) -> Parameter {
        let (id, frozen) = (self.id, Arc::clone(&self.frozen));
        Parameter { id, frozen, ..Parameter::new(value) }
    }

    /// The value in a pass. The pass collects its gradient, unless the parameter is frozen. A
    /// [quantised](crate::quantize_all) parameter is decoded as a whole. A
    /// [divided](crate::parallel::divide) parameter is gathered from all ranks.
    ///
    /// # Errors
    /// `Consumed` after backward; `OutOfMemory` for a value that is decoded or gathered.
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

    /// Replaces the value by the quantised `weight` and freezes the parameter. The shape and the
    /// type stay.
    pub(crate) fn set_quantized(&mut self, weight: QuantizedWeight) -> Result<()> {
        let value = stand_in(&self.value)?;
        *self = Parameter { quantized: Some(Box::new(weight)), ..Parameter::new(value) };
        self.freeze();
        Ok(())
    }

    /// Excludes the parameter from training, through all its handles. A frozen parameter has no
    /// gradient and no optimizer states, and no tensors are saved for its gradient
    /// (`requires_grad_(False)` in PyTorch).
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

/// A tensor of one element, expanded to the shape and the type of `weight`, for a weight whose
/// values are stored elsewhere.
pub(crate) fn stand_in(weight: &Tensor) -> Result<Tensor> {
    stand_in_on(weight.device(), weight)
}

/// [`stand_in`] on another device.
pub(crate) fn stand_in_on(device: &Device, weight: &Tensor) -> Result<Tensor> {
    let _scope = device.category(Category::Parameter);
    let one = Tensor::zeros(device, [1], weight.dtype())?;
    Ok(one.expand(*weight.shape())?)
}
