//! Parameters of a new model, made in its own type so that no parameter is in memory twice.

use lowtide_allocator::Category;
use lowtide_nn::{Embedding, LayerNorm, Linear, NnResult, Parameter, Parameters, RmsNorm};
use lowtide_tensor::{DType, Device, IntoShape, RandomKey, Shape, Tensor};

use super::norm::Norm;
use super::shape::{NormKind, NormShape};
use crate::error::Result;

/// The values of the parameters of a new model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    /// Normal numbers from a key, biases of 0, and norms that change nothing, for training from the
    /// beginning.
    Random(RandomKey),
    /// Uninitialised memory, for weights that are loaded right after.
    Unset,
    /// One number for each matrix, for weights that replace the matrices right after.
    Absent,
}

/// Device, type and initial values of all parameters of a model.
pub(crate) struct Maker<'a> {
    pub(crate) device: &'a Device,
    pub(crate) dtype: DType,
    pub(crate) weights: Weights,
    pub(crate) deviation: f64,
}

impl Maker<'_> {
    /// Normal numbers that depend on the name, but not on other parameters.
    pub(crate) fn normal(
        &self,
        name: &str,
        shape: impl IntoShape,
        deviation: f64,
    ) -> Result<Parameter> {
        let shape = shape.into_shape("normal")?;
        if self.weights == Weights::Absent {
            let _scope = self.device.category(Category::Parameter);
            let ones = vec![1; shape.len()];
            let one = Tensor::zeros(self.device, Shape::new(&ones), self.dtype)?;
            return Ok(Parameter::new(one.expand(shape)?));
        }
        let mut value = Tensor::empty_in(self.device, Category::Parameter, shape, self.dtype)?;
        if let Weights::Random(key) = self.weights {
            value.normal_(key.op(name).op("weight"), 0.0, deviation)?;
        }
        Ok(Parameter::new(value))
    }

    pub(crate) fn table(&self, name: &str, shape: [usize; 2]) -> Result<Embedding> {
        Ok(Embedding::from_parameter(self.normal(name, shape, self.deviation)?))
    }

    pub(crate) fn linear(&self, name: &str, sizes: [usize; 2], has_bias: bool) -> Result<Linear> {
        self.linear_with(name, sizes, has_bias, self.deviation)
    }

    pub(crate) fn linear_with(
        &self,
        name: &str,
        [inputs, outputs]: [usize; 2],
        has_bias: bool,
        deviation: f64,
    ) -> Result<Linear> {
        let weight = self.normal(name, [outputs, inputs], deviation)?;
        let bias = if has_bias { Some(self.zeros(outputs)?) } else { None };
        Ok(Linear::from_parameters(weight, bias))
    }

    pub(crate) fn zeros(&self, len: usize) -> Result<Parameter> {
        let mut value = Tensor::empty_in(self.device, Category::Parameter, [len], self.dtype)?;
        value.fill_(0.0)?;
        Ok(Parameter::new(value))
    }

    pub(super) fn norm(&self, shape: NormShape, width: usize) -> Result<Norm> {
        let NormShape { kind, eps } = shape;
        Ok(match kind {
            NormKind::Layer => Norm::Layer(self.layer_norm(width, eps)?),
            NormKind::Rms => Norm::Rms(self.rms_norm(width, eps)?),
            NormKind::RmsPlusOne => Norm::RmsPlusOne { weight: self.zeros(width)?, eps },
        })
    }

    pub(crate) fn layer_norm(&self, width: usize, eps: f64) -> Result<LayerNorm> {
        let norm = self.made("", |_| LayerNorm::new(self.device, &[width]))?;
        Ok(norm.with_eps(eps))
    }

    pub(crate) fn rms_norm(&self, width: usize, eps: f64) -> Result<RmsNorm> {
        let norm = self.made("", |_| RmsNorm::new(self.device, &[width]))?;
        Ok(norm.with_eps(eps))
    }

    /// A small layer with the initial values of its own constructor, in f32 at first.
    pub(crate) fn made<M: Parameters>(
        &self,
        name: &str,
        make: impl FnOnce(RandomKey) -> NnResult<M>,
    ) -> Result<M> {
        let key = match self.weights {
            Weights::Random(key) => key.op(name),
            Weights::Unset | Weights::Absent => RandomKey::new(0),
        };
        let mut made = make(key)?;
        made.set_dtype(self.dtype)?;
        Ok(made)
    }
}

/// The key of a model that is trained from the beginning.
impl From<RandomKey> for Weights {
    fn from(key: RandomKey) -> Self {
        Weights::Random(key)
    }
}
