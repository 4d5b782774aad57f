//! Quantiles: values between the elements of sorted rows.

use super::SortOrder;
use crate::axis::Axis;
use crate::dtype::DType;
use crate::error::{Result, TensorError};
use crate::layout::check_axis;
use crate::tensor::Tensor;

/// The value of a quantile that falls between two elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum QuantileRule {
    /// Linear interpolation between both elements.
    #[default]
    Linear,
    /// The smaller element.
    Lower,
    /// The larger element.
    Higher,
    /// The mean of both elements.
    Midpoint,
    /// The nearer element; halfway between both, the element at an even position.
    Nearest,
}

/// The rule of a quantile for NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NanRule {
    /// A row with NaN gives NaN for all quantiles.
    Propagate,
    /// NaN is left out. A row of NaN only gives NaN.
    Ignore,
}

/// The positions of quantiles in sorted rows. Quantiles lie along the sorted dimension.
#[derive(Clone, Debug)]
pub struct QuantilePlaces {
    /// The positions of the elements below, as i64.
    pub below: Tensor,
    /// The positions of the elements above, as i64, and the weights of these elements. `None` for
    /// rules that pick one element.
    pub above: Option<(Tensor, Tensor)>,
}

impl Tensor {
    /// The positions of the quantiles along `axis` of this tensor, which is sorted along `axis` in
    /// ascending order.
    ///
    /// # Errors
    /// The errors of [`Tensor::quantile`].
    #[track_caller]
    pub fn quantile_places(
        &self,
        quantiles: &[f64],
        axis: impl Into<Axis>,
        (rule, nan): (QuantileRule, NanRule),
    ) -> Result<QuantilePlaces> {
        let (op, device, dtype) = ("quantile", self.device(), self.dtype());
        let axis = check_axis(op, self.shape(), axis)?;
        if !dtype.is_float() {
            return Err(TensorError::DType { op, left: dtype, right: DType::F32 });
        }
        let len = self.shape()[axis];
        if len == 0 {
            return Err(TensorError::index(op, 0, 0));
        }
        if let Some(bad) = quantiles.iter().position(|q| !(0.0..=1.0).contains(q)) {
            return Err(TensorError::index(op, bad, quantiles.len()));
        }
        // The type of ranks of f32 in PyTorch. A half type cannot represent all ranks.
        let wide = dtype.computed();
        let mut dims = vec![1; self.shape().len()];
        dims[axis] = quantiles.len();
        let of_rows = Tensor::from_slice(device, &dims[..], quantiles)?.to_dtype(wide)?;
        let is_nan = self.is_nan()?;
        let ranks = match nan {
            NanRule::Propagate => {
                let last = (len - 1) as f64;
                let has_nan = is_nan.narrow(axis, len - 1, 1)?;
                // In a row with NaN, the last element is NaN.
                of_rows.mul_scalar(last)?.masked_fill(&has_nan, last)?
            }
            NanRule::Ignore => {
                let count = is_nan.logical_not()?.sum_keep(&[axis])?;
                let mut last = count.to_dtype(wide)?;
                last.sub_scalar_(1.0)?;
                last.maximum_scalar_(0.0)?;
                of_rows.mul(&last)?
            }
        };
        let places = |ranks: Tensor| ranks.to_dtype(DType::I64);
        let below = match rule {
            QuantileRule::Higher => return QuantilePlaces::at(ranks.ceil()?),
            QuantileRule::Lower => return QuantilePlaces::at(ranks.floor()?),
            QuantileRule::Nearest => return QuantilePlaces::at(ranks.round()?),
            QuantileRule::Linear | QuantileRule::Midpoint => ranks.floor()?,
        };
        let above = places(ranks.ceil()?)?;
        let weight = match rule {
            QuantileRule::Midpoint => Tensor::full(device, *ranks.shape(), dtype, 0.5)?,
            _ => ranks.sub(&below)?.to_dtype(dtype)?,
        };
        Ok(QuantilePlaces { below: places(below)?, above: Some((above, weight)) })
    }

    /// The values at `places` along `axis` of this tensor, which is sorted along `axis`. Quantiles
    /// become the first dimension. [`Tensor::quantile`] combines this method with
    /// [`Tensor::quantile_places`].
    ///
    /// # Errors
    /// The errors of [`Tensor::take_along_dim`] for the positions, and `Shape` or `DType` for the
    /// weights.
    #[track_caller]
    pub fn quantiles_at(&self, places: &QuantilePlaces, axis: impl Into<Axis>) -> Result<Tensor> {
        let axis = check_axis("quantile", self.shape(), axis)?;
        let mut y = self.take_along_dim(&places.below, axis)?;
        if let Some((above, weight)) = &places.above {
            let mut way = self.take_along_dim(above, axis)?;
            way.sub_(&y)?;
            way.mul_(weight)?;
            y.add_(&way)?;
        }
        y.movedim(axis, 0)
    }

    #[track_caller]
    fn quantiles(
        &self,
        quantiles: &[f64],
        axis: usize,
        rules: (QuantileRule, NanRule),
    ) -> Result<Tensor> {
        let (sorted, _) = self.sort(axis, SortOrder::Ascending)?;
        sorted.quantiles_at(&sorted.quantile_places(quantiles, axis, rules)?, axis)
    }

    /// The quantiles of the elements along `axis`: 0 is the smallest element, 1 the largest, and
    /// 0.5 the median. A row with NaN gives NaN. Floats only.
    ///
    /// # Shapes
    /// `[A, N, C]` and `[Q]` → `[Q, A, C]` for axis 1.
    ///
    /// # Errors
    /// `Index` for a dimension that does not exist or is empty, and for a quantile outside 0 to 1,
    /// with the quantile's index; `DType`, `OutOfMemory`.
    #[track_caller]
    pub fn quantile(
        &self,
        quantiles: &[f64],
        axis: impl Into<Axis>,
        rule: QuantileRule,
    ) -> Result<Tensor> {
        let axis = check_axis("quantile", self.shape(), axis)?;
        self.quantiles(quantiles, axis, (rule, NanRule::Propagate))
    }

    /// [`Tensor::quantile`] of the elements that are not NaN; NaN if there are none.
    ///
    /// # Errors
    /// The errors of [`Tensor::quantile`].
    #[track_caller]
    pub fn nanquantile(
        &self,
        quantiles: &[f64],
        axis: impl Into<Axis>,
        rule: QuantileRule,
    ) -> Result<Tensor> {
        let axis = check_axis("nanquantile", self.shape(), axis)?;
        self.quantiles(quantiles, axis, (rule, NanRule::Ignore))
    }
}

impl QuantilePlaces {
    /// The positions at whole ranks, without interpolation.
    fn at(ranks: Tensor) -> Result<Self> {
        Ok(QuantilePlaces { below: ranks.to_dtype(DType::I64)?, above: None })
    }
}
