//! Quantiles: places between the elements of sorted rows.

use super::SortOrder;
use crate::axis::Axis;
use crate::dtype::DType;
use crate::error::{Result, TensorError};
use crate::layout::check_axis;
use crate::tensor::Tensor;

/// The value of a quantile that falls between two elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum QuantileRule {
    /// On the line between both.
    #[default]
    Linear,
    /// The smaller one.
    Lower,
    /// The larger one.
    Higher,
    /// Half way between both.
    Midpoint,
    /// The nearer one; half way, the one at an even place.
    Nearest,
}

/// The rule of a quantile for NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NanRule {
    /// A row with a NaN has only NaN as quantiles.
    Propagate,
    /// Quantiles are of the numbers, and NaN where there are none.
    Ignore,
}

/// The places of quantiles in sorted rows, the quantiles along the dimension.
#[derive(Clone, Debug)]
pub struct QuantilePlaces {
    /// The positions, as i64.
    pub below: Tensor,
    /// The positions above, and how far the quantiles are on the way there; for rules that lie
    /// between two elements.
    pub above: Option<(Tensor, Tensor)>,
}

impl Tensor {
    /// The places of the quantiles along `axis` of this tensor, which is sorted along that in
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
        // In the type that ranks of f32 have in PyTorch; those of half types are beyond them.
        let wide = dtype.computed();
        let mut dims = vec![1; self.shape().len()];
        dims[axis] = quantiles.len();
        let of_rows = Tensor::from_slice(device, &dims[..], quantiles)?.to_dtype(wide)?;
        let is_nan = self.is_nan()?;
        let ranks = match nan {
            NanRule::Propagate => {
                let last = (len - 1) as f64;
                let has_nan = is_nan.narrow(axis, len - 1, 1)?;
                // The last one is a NaN then.
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

    /// The values at these places along `axis` of this tensor, which is sorted along that: what
    /// [`Tensor::quantile`] makes of [`Tensor::quantile_places`], the quantiles in front.
    ///
    /// # Errors
    /// The errors of [`Tensor::take_along_dim`] for the places, and `Shape` or `DType` for the
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

    /// The quantiles of the elements along `axis`: for 0 the smallest, for 1 the largest, for 0.5
    /// the median. A row with a NaN has only NaN. Floats only.
    ///
    /// # Shapes
    /// `[A, N, C]` and `[Q]` → `[Q, A, C]` for axis 1.
    ///
    /// # Errors
    /// `Index` for a dimension that does not exist or is empty, and for a quantile that is not in
    /// 0 to 1, with its number; `DType`, `OutOfMemory`.
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

    /// [`Tensor::quantile`] of the elements that are not NaN; NaN where there are none.
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
    /// Places at these ranks, with nothing between.
    fn at(ranks: Tensor) -> Result<Self> {
        Ok(QuantilePlaces { below: ranks.to_dtype(DType::I64)?, above: None })
    }
}
