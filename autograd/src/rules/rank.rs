//! Rules of order statistics: the k-th smallest, medians, modes and quantiles. The rules save the
//! positions of the chosen elements.

use lowtide_tensor::{Axis, NanRule, QuantileRule, SortOrder, Tensor};

use crate::error::Result;
use crate::rule::Needs;
use crate::rules::reduce_choice::{extreme, placed};
use crate::rules::{unpack, when_recorded};
use crate::var::Var;

/// Positions have type i64 and no gradient.
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

    /// The median of all elements; see [`Tensor::median_all`]. Elements equal to the median share
    /// the gradient.
    #[track_caller]
    pub fn median_all(self) -> Result<Var> {
        let axes: Vec<usize> = (0..self.shape().len()).collect();
        extreme("median", self, &axes, Tensor::median_all)
    }

    /// The medians along `axis` of the elements that are not NaN, and their positions; see
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

    /// The median of all elements that are not NaN; see [`Tensor::nanmedian_all`]. Elements equal
    /// to the median share the gradient.
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

    /// The quantiles of the elements along `axis`, as a new first dimension; see
    /// [`Tensor::quantile`].
    #[track_caller]
    pub fn quantile(
        self,
        quantiles: &[f64],
        axis: impl Into<Axis>,
        rule: QuantileRule,
    ) -> Result<Var> {
        let axis = self.axis("quantile", axis)?;
        self.quantiles(quantiles, axis, rule, NanRule::Propagate)
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
        self.quantiles(quantiles, axis, rule, NanRule::Ignore)
    }

    /// Quantiles as sorted elements, or as interpolations between two sorted elements.
    #[track_caller]
    fn quantiles(
        self,
        quantiles: &[f64],
        axis: usize,
        rule: QuantileRule,
        nans: NanRule,
    ) -> Result<Var> {
        Var::apply("quantile", [self], |[x], save| {
            let x_shape = *x.shape();
            let (sorted, origins) = x.sort(axis, SortOrder::Ascending)?;
            let places = sorted.quantile_places(quantiles, axis, (rule, nans))?;
            let y = sorted.quantiles_at(&places, axis)?;
            // The unsorted positions of the few elements that quantiles were taken from.
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
