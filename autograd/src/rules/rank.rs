//! Rules of elements by their rank in a sorted row, and of quantiles between them. Saved is where
//! the elements came from.

use lowtide_tensor::{Axis, NanRule, QuantileRule, SortOrder, Tensor};

use crate::error::Result;
use crate::rule::Needs;
use crate::rules::reduce_choice::{extreme, placed};
use crate::rules::{unpack, when_recorded};
use crate::var::Var;

/// Positions are of type i64 and have no gradient.
impl Var {
    /// The `k`-th smallest values along `axis`, and their positions; see [`Tensor::kthvalue`].
    #[track_caller]
    pub fn kthvalue(self, k: usize, axis: impl Into<Axis>) -> Result<(Var, Tensor)> {
        let axis = self.axis("kthvalue", axis)?;
        placed("kthvalue", self, axis, |x| x.kthvalue(k, axis))
    }

    /// [`Var::kthvalue`] with the dimension kept, of length 1.
    #[track_caller]
    pub fn kthvalue_keep(self, k: usize, axis: impl Into<Axis>) -> Result<(Var, Tensor)> {
        let axis = self.axis("kthvalue_keep", axis)?;
        placed("kthvalue", self, axis, |x| x.kthvalue_keep(k, axis))
    }

    /// The medians along `axis`, and their positions; see [`Tensor::median`].
    #[track_caller]
    pub fn median(self, axis: impl Into<Axis>) -> Result<(Var, Tensor)> {
        let axis = self.axis("median", axis)?;
        placed("median", self, axis, |x| x.median(axis))
    }

    /// [`Var::median`] with the dimension kept, of length 1.
    #[track_caller]
    pub fn median_keep(self, axis: impl Into<Axis>) -> Result<(Var, Tensor)> {
        let axis = self.axis("median_keep", axis)?;
        placed("median", self, axis, |x| x.median_keep(axis))
    }

    /// The median of all elements, see [`Tensor::median_all`]; those that are equal to it share the
    /// gradient.
    #[track_caller]
    pub fn median_all(self) -> Result<Var> {
        let axes: Vec<usize> = (0..self.shape().len()).collect();
        extreme("median", self, &axes, Tensor::median_all)
    }

    /// The medians along `axis` of what is not NaN, and their positions; see
    /// [`Tensor::nanmedian`].
    #[track_caller]
    pub fn nanmedian(self, axis: impl Into<Axis>) -> Result<(Var, Tensor)> {
        let axis = self.axis("nanmedian", axis)?;
        placed("nanmedian", self, axis, |x| x.nanmedian(axis))
    }

    /// [`Var::nanmedian`] with the dimension kept, of length 1.
    #[track_caller]
    pub fn nanmedian_keep(self, axis: impl Into<Axis>) -> Result<(Var, Tensor)> {
        let axis = self.axis("nanmedian_keep", axis)?;
        placed("nanmedian", self, axis, |x| x.nanmedian_keep(axis))
    }

    /// The median of all elements that are not NaN, see [`Tensor::nanmedian_all`]; those that are
    /// equal to it share the gradient.
    #[track_caller]
    pub fn nanmedian_all(self) -> Result<Var> {
        let axes: Vec<usize> = (0..self.shape().len()).collect();
        extreme("nanmedian", self, &axes, Tensor::nanmedian_all)
    }

    /// The values that occur most often along `axis`, and their positions; see [`Tensor::mode`].
    #[track_caller]
    pub fn mode(self, axis: impl Into<Axis>) -> Result<(Var, Tensor)> {
        let axis = self.axis("mode", axis)?;
        placed("mode", self, axis, |x| x.mode(axis))
    }

    /// [`Var::mode`] with the dimension kept, of length 1.
    #[track_caller]
    pub fn mode_keep(self, axis: impl Into<Axis>) -> Result<(Var, Tensor)> {
        let axis = self.axis("mode_keep", axis)?;
        placed("mode", self, axis, |x| x.mode_keep(axis))
    }

    /// The quantiles of the elements along `axis`, in front; see [`Tensor::quantile`].
    #[track_caller]
    pub fn quantile(
        self,
        quantiles: &[f64],
        axis: impl Into<Axis>,
        rule: QuantileRule,
    ) -> Result<Var> {
        let axis = self.axis("quantile", axis)?;
        self.between(quantiles, axis, (rule, NanRule::Propagate))
    }

    /// The quantiles along `axis` of the elements that are not NaN; see [`Tensor::nanquantile`].
    #[track_caller]
    pub fn nanquantile(
        self,
        quantiles: &[f64],
        axis: impl Into<Axis>,
        rule: QuantileRule,
    ) -> Result<Var> {
        let axis = self.axis("nanquantile", axis)?;
        self.between(quantiles, axis, (rule, NanRule::Ignore))
    }

    /// Sorted elements, and between two of them so much of the way.
    #[track_caller]
    fn between(
        self,
        quantiles: &[f64],
        axis: usize,
        rules: (QuantileRule, NanRule),
    ) -> Result<Var> {
        Var::apply("quantile", [self], |[x], save| {
            let x_shape = *x.shape();
            let (sorted, origins) = x.sort(axis, SortOrder::Ascending)?;
            let places = sorted.quantile_places(quantiles, axis, rules)?;
            let y = sorted.quantiles_at(&places, axis)?;
            // Where the elements stood before they were sorted: a few of all positions.
            let origin = |places| when_recorded(save, || origins.take_along_dim(places, axis));
            let low = origin(&places.below)?;
            let high = match &places.above {
                Some((above, weight)) => Some((origin(above)?, save.keep(weight))),
                None => None,
            };
            // y = (1 - w) x[low] + w x[high], so dx[low] += (1 - w) dy and dx[high] += w dy
            let rule = move |dy: Tensor, _: Needs| {
                let (mut dy, mut origins) = (dy.movedim(0, axis)?, unpack(low)?);
                if let Some((high, weight)) = high {
                    let above = dy.mul(&weight.unpack()?)?;
                    dy = Tensor::cat(&[&dy.sub(&above)?, &above], axis)?;
                    origins = Tensor::cat(&[&origins, &unpack(high)?], axis)?;
                }
                let dx = Tensor::zeros(dy.device(), x_shape, dy.dtype())?;
                Ok(vec![Some(dx.scatter_add(axis, &origins, &dy)?)])
            };
            Ok((y, rule))
        })
    }
}
