//! Normalisation of parts of each sample: trailing dimensions (layer and root mean square), or
//! groups of channels. For a row x of `[channels / groups, inner]`:
//!
//! - x̂ = (x - mean) · rstd with rstd = 1 / √(mean((x - mean)²) + eps); y = x̂ · w + b, where w
//!   and b have one element for each channel. The root mean square has no mean and no b.
//! - dx = rstd · (dy·w - mean(dy·w) - x̂ · mean(dy·w·x̂)), dw = Σ dy·x̂, db = Σ dy over samples.
//!
//! Ba, Kiros and Hinton, "Layer normalization" (2016); Zhang and Sennrich, "Root mean square layer
//! normalization" (2019); Wu and He, "Group normalization" (2018).

pub(crate) mod backward;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod methods;
pub(crate) mod moments;
pub(crate) mod operands;
mod piece;
mod rows;

use crate::cost::Cost;
use crate::cpu::Cpu;
use crate::dtype::{DType, for_each_float};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::layout::Shape;
use crate::tensor::Tensor;

pub use methods::{Normalized, NormalizedBackward};

/// The center of the distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Center {
    /// The mean of the row: mean and scale are normalised.
    Mean,
    /// Zero: only the scale is normalised.
    Zero,
}

impl Center {
    /// The means in the gradient, from sums over `len` elements.
    fn means(self, [sum, product]: [f64; 2], len: usize) -> [f64; 2] {
        let sum = if self == Center::Mean { sum } else { 0.0 };
        [sum, product].map(|sum| sum / len as f64)
    }
}

/// A contiguous `[samples, groups, channels / groups, inner]`. The last two dimensions are
/// normalised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Norm {
    name: &'static str,
    dtype: DType,
    samples: usize,
    groups: usize,
    channels: usize,
    inner: usize,
    center: Center,
    eps: f64,
}

impl Norm {
    fn row_len(&self) -> usize {
        self.channels / self.groups.max(1) * self.inner
    }

    /// The channels of row number `row`.
    fn channels_of_row(&self, row: usize) -> std::ops::Range<usize> {
        let per_row = self.channels / self.groups;
        let first = row % self.groups * per_row;
        first..first + per_row
    }

    fn element_count(&self) -> usize {
        self.samples * self.channels * self.inner
    }

    fn cost_of(&self, passes: usize) -> Cost {
        operands::cost(self.dtype, self.element_count(), passes)
    }
}

/// Reads x, and weight and bias if given; writes y, rstd, and the mean unless rows have none.
struct Forward {
    norm: Norm,
    has: [bool; 2],
}

impl FullKernel for Forward {
    fn name(&self) -> &'static str {
        self.norm.name
    }

    fn cost(&self) -> Cost {
        self.norm.cost_of(2)
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let norm = &self.norm;
        for_each_float!(norm.dtype, E as T => {
            let x = operands.read::<E>(0).slice();
            let [weight, bias] = operands::parameters::<E>(operands, self.has);
            let y = operands.write::<E>(0).slice();
            let rstd = operands.write::<T>(1).slice();
            let mean = (norm.center == Center::Mean).then(|| operands.write::<T>(2).slice());
            if norm.row_len() == 0 {
                // The statistics of rows without elements.
                rstd.fill(T::NAN);
                mean.into_iter().for_each(|mean| mean.fill(T::NAN));
                return Ok(());
            }
            let reads = cpu::Reads { x, weight, bias };
            cpu::forward(cpu, norm, &reads, cpu::Writes { y, mean, rstd });
        });
        Ok(())
    }
}

/// Reads dy, x, rstd, the mean unless rows have none, and the weight if given; writes dx and, with
/// a weight, the gradients of weight and bias and the scratch.
struct Backward {
    norm: Norm,
    has_weight: bool,
}

impl FullKernel for Backward {
    fn name(&self) -> &'static str {
        self.norm.name
    }

    fn cost(&self) -> Cost {
        self.norm.cost_of(3)
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let norm = &self.norm;
        let has_mean = norm.center == Center::Mean;
        for_each_float!(norm.dtype, E as T => {
            let [dy, x] = [0, 1].map(|index| operands.read::<E>(index).slice());
            let rstd = operands.read::<T>(2).slice();
            let mean = has_mean.then(|| operands.read::<T>(3).slice());
            let weight_at = 3 + usize::from(has_mean);
            let weight = self.has_weight.then(|| operands.read::<E>(weight_at).slice());
            let reads = backward::Reads { dy, x, mean, rstd, weight };
            let dx = operands.write::<E>(0).slice();
            let mut parameters = self
                .has_weight
                .then(|| [1, 2].map(|index| operands.write::<E>(index).slice()));
            let partials = if self.has_weight { operands.write::<T>(3).slice() } else { &mut [] };
            if norm.element_count() == 0 {
                parameters.iter_mut().flatten().for_each(|to| to.fill(E::default()));
                return Ok(());
            }
            backward::backward(cpu, norm, &reads, dx, parameters, partials);
        });
        Ok(())
    }
}

impl Norm {
    /// Normalisation over the last `axis_count` dimensions of x, and the shape of the parameters.
    fn trailing(
        name: &'static str,
        x: &Tensor,
        axis_count: usize,
        center: Center,
        eps: f64,
    ) -> Result<(Norm, Shape)> {
        x.check_any_float(name)?;
        let Some(kept) = x.shape().len().checked_sub(axis_count) else {
            let len = x.shape().len() + 1;
            return Err(TensorError::index(name, axis_count, len));
        };
        let (samples, channels) = (&x.shape()[..kept], &x.shape()[kept..]);
        let norm = Norm {
            name,
            dtype: x.dtype(),
            samples: samples.iter().product(),
            groups: 1,
            channels: channels.iter().product(),
            inner: 1,
            center,
            eps,
        };
        Ok((norm, Shape::new(samples)))
    }

    /// Normalisation over groups of channels of `x: [N, C, ..]`.
    fn grouped(name: &'static str, x: &Tensor, groups: usize, eps: f64) -> Result<(Norm, Shape)> {
        x.check_any_float(name)?;
        let (left, right) = (*x.shape(), Shape::new(&[groups]));
        let &[samples, channels, ref inner @ ..] = &*left else {
            return Err(TensorError::Shape { op: name, left, right });
        };
        if groups == 0 || !channels.is_multiple_of(groups) {
            return Err(TensorError::Shape { op: name, left, right });
        }
        let inner = inner.iter().product();
        let (dtype, center) = (x.dtype(), Center::Mean);
        let norm = Norm { name, dtype, samples, groups, channels, inner, center, eps };
        Ok((norm, Shape::new(&[samples, groups])))
    }
}
