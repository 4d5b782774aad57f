//! Rules of sums that skip NaN, differences, distances, covariances and matrix norms. Most are
//! composed of other operations.

use lowtide_tensor::{Axis, Covariance, MatrixNorm, Replacements, Shape, Tensor, TensorError};

use crate::error::Result;
use crate::rule::Needs;
use crate::rules::reduce_choice::norm_slope;
use crate::rules::{unbroadcast, when};
use crate::saved::Saved;
use crate::var::Var;

/// Replaces NaN by 0 and keeps infinities.
const NAN_AS_ZERO: Replacements = Replacements {
    nan: 0.0,
    infinity: Some(f64::INFINITY),
    negative_infinity: Some(f64::NEG_INFINITY),
};

/// The number of elements over `axes` that are not NaN, in the type of `x`.
fn number_count(x: &Var, axes: &[usize]) -> Result<Var> {
    let count = x.value().is_nan()?.logical_not()?.sum(axes)?;
    Ok(x.pass().constant(count.to_dtype(x.value().dtype())?))
}

impl Var {
    /// The smallest and the largest values over `axes`; see [`Var::amin`] and [`Var::amax`].
    #[track_caller]
    pub fn aminmax(self, axes: &[impl Into<Axis> + Copy]) -> Result<(Var, Var)> {
        Ok((self.clone().amin(axes)?, self.amax(axes)?))
    }

    /// [`Var::aminmax`] with the dimensions kept, of length 1.
    #[track_caller]
    pub fn aminmax_keep(self, axes: &[impl Into<Axis> + Copy]) -> Result<(Var, Var)> {
        Ok((self.clone().amin_keep(axes)?, self.amax_keep(axes)?))
    }

    /// The sums over `axes` of the elements that are not NaN; see [`Tensor::nansum`].
    #[track_caller]
    pub fn nansum(self, axes: &[impl Into<Axis> + Copy]) -> Result<Var> {
        self.nan_to_num(NAN_AS_ZERO)?.sum(axes)
    }

    /// [`Var::nansum`] with the dimensions kept, of length 1.
    #[track_caller]
    pub fn nansum_keep(self, axes: &[impl Into<Axis> + Copy]) -> Result<Var> {
        self.nan_to_num(NAN_AS_ZERO)?.sum_keep(axes)
    }

    /// The means over `axes` of the elements that are not NaN; see [`Tensor::nanmean`].
    #[track_caller]
    pub fn nanmean(self, axes: &[impl Into<Axis> + Copy]) -> Result<Var> {
        let axes = &self.axes("nanmean", axes)?;
        let count = number_count(&self, axes)?;
        self.nansum(axes)?.div(count)
    }

    /// [`Var::nanmean`] with the dimensions kept, of length 1.
    #[track_caller]
    pub fn nanmean_keep(self, axes: &[impl Into<Axis> + Copy]) -> Result<Var> {
        let axes = &self.axes("nanmean_keep", axes)?;
        let count = number_count(&self, axes)?;
        let y = self.nansum_keep(axes)?;
        let shape = *y.shape();
        y.div(count.reshape(shape)?)
    }

    /// The sum of the diagonal of a matrix; see [`Tensor::trace`].
    #[track_caller]
    pub fn trace(self) -> Result<Var> {
        if self.shape().len() != 2 {
            let (left, right) = (*self.shape(), Shape::new(&[1, self.shape().element_count()]));
            return Err(TensorError::Shape { op: "trace", left, right }.into());
        }
        self.diagonal(0, 0, 1)?.sum(&[0])
    }

    /// The differences of neighbours along `axis`, taken `times` times; see [`Tensor::diff`].
    #[track_caller]
    pub fn diff(self, times: usize, axis: impl Into<Axis>) -> Result<Var> {
        let axis = self.axis("diff", axis)?;
        let mut y = self;
        for _ in 0..times {
            let Some(len) = y.shape()[axis].checked_sub(1) else { break };
            let before = y.clone().narrow(axis, 0, len)?;
            y = y.narrow(axis, 1, len)?.sub(before)?;
        }
        Ok(y)
    }

    /// The norm of the difference `self - other` over all elements; see [`Tensor::dist`].
    #[track_caller]
    pub fn dist(self, other: Var, order: f64) -> Result<Var> {
        Var::apply("dist", [self, other], |[a, b], save| {
            let (dtype, right, shapes) = (a.dtype(), b.dtype(), [*a.shape(), *b.shape()]);
            if dtype != right {
                return Err(TensorError::DType { op: "dist", left: dtype, right }.into());
            }
            let wide = move |x: &Tensor| x.to_dtype(dtype.computed());
            let difference = wide(&a)?.sub(&wide(&b)?)?;
            let axes: Vec<usize> = (0..difference.shape().len()).collect();
            let distance = difference.norm(&axes, order)?.to_dtype(dtype)?;
            let saved = save.keep(&difference);
            // da = dy · the derivative of the norm with respect to a - b, db = -da
            let rule = move |dy: Tensor, needs: Needs| {
                let difference = saved.unpack()?;
                let norm = difference.norm_keep(&axes, order)?;
                let mut slope = norm_slope(&difference, &norm, &axes, order)?;
                slope.mul_(&wide(&dy)?)?;
                let part = |shape| Ok(unbroadcast(&slope, shape)?.to_dtype(dtype)?);
                let da = when(needs.input(0), || part(shapes[0]))?;
                let db = when(needs.input(1), || Ok(part(shapes[1])?.neg()?))?;
                Ok(vec![da, db])
            };
            Ok((distance, rule))
        })
    }

    /// Each slice along `axis` scaled down to `norm_max` where its norm is larger; see
    /// [`Tensor::renorm`].
    #[track_caller]
    pub fn renorm(self, order: f64, axis: impl Into<Axis>, norm_max: f64) -> Result<Var> {
        let op = "renorm";
        let rank = self.shape().len();
        if rank < 2 {
            let (left, right) = (*self.shape(), Shape::new(&[1, self.shape().element_count()]));
            return Err(TensorError::Shape { op, left, right }.into());
        }
        let axis = self.axis(op, axis)?;
        let others: Vec<usize> = (0..rank).filter(|&other| other != axis).collect();
        Var::apply(op, [self], |[x], save| {
            let (y, saved) = (x.renorm(order, axis, norm_max)?, save.keep(&x));
            let (dtype, wide) = (x.dtype(), x.dtype().computed());
            // y = f x with f = m / (n + ε) where the norm n is larger than the limit m, else f = 1.
            // dx = f dy + dn · ∂n/∂x with dn = -m / (n + ε)² · Σ x dy where n > m, else dn = 0
            let rule = move |dy: Tensor, _: Needs| {
                let (x, dy) = (saved.unpack()?.to_dtype(wide)?, dy.to_dtype(wide)?);
                let norms = x.norm_keep(&others, order)?;
                let is_within = norms.gt_scalar(norm_max)?.logical_not()?;
                let inverse = norms.add_scalar(1e-7)?.reciprocal()?;
                let mut factors = inverse.mul_scalar(norm_max)?;
                let mut dn = x.mul(&dy)?.sum_keep(&others)?;
                dn.mul_(&factors)?;
                dn.mul_(&inverse)?;
                dn.masked_fill_(&is_within, 0.0)?;
                factors.masked_fill_(&is_within, 1.0)?;
                let mut dx = norm_slope(&x, &norms, &others, order)?;
                dx.mul_(&dn)?;
                Ok(vec![Some(dy.mul(&factors)?.sub(&dx)?.to_dtype(dtype)?)])
            };
            Ok((y, rule))
        })
    }

    /// The covariances of variables. Each row of `self` has the observations of one variable; see
    /// [`Tensor::cov`]. Frequencies and weights get no gradient.
    #[track_caller]
    pub fn cov(self, covariance: Covariance<'_>) -> Result<Var> {
        Var::apply("cov", [self], |[x], save| {
            let y = x.cov(covariance)?;
            let kept = save.keep(&x);
            let keep = |tensor: Option<&Tensor>| tensor.map(|tensor| save.keep(tensor));
            let (frequencies, weights) = (keep(covariance.frequencies), keep(covariance.weights));
            let correction = covariance.correction;
            // dx = (dy + dyᵀ) (x - m) W / d. The mean m contributes nothing, because the rows of
            // (x - m) W sum to 0.
            let rule = move |dy: Tensor, _: Needs| {
                let frequencies = frequencies.map(Saved::unpack).transpose()?;
                let weights = weights.map(Saved::unpack).transpose()?;
                let (frequencies, weights) = (frequencies.as_ref(), weights.as_ref());
                let covariance = Covariance { correction, frequencies, weights };
                Ok(vec![Some(dy.cov_backward(&kept.unpack()?, covariance)?)])
            };
            Ok((y, rule))
        })
    }

    /// The correlations of variables. Each row of `self` has the observations of one variable; see
    /// [`Tensor::corrcoef`].
    #[track_caller]
    pub fn corrcoef(self) -> Result<Var> {
        let c = self.cov(Covariance::default())?;
        if c.shape().is_empty() {
            return c.clone().div(c);
        }
        let deviations = c.clone().diagonal(0, 0, 1)?.sqrt()?;
        let y = c.div(deviations.clone().unsqueeze(1)?)?.div(deviations)?;
        y.clamp(-1.0, 1.0)
    }

    /// The norms of the matrices along two dimensions; see [`Tensor::matrix_norm`].
    #[track_caller]
    pub fn matrix_norm(
        self,
        norm: MatrixNorm,
        [row, column]: [impl Into<Axis> + Copy; 2],
    ) -> Result<Var> {
        let op = "matrix_norm";
        let axes = [self.axis(op, row)?, self.axis(op, column)?];
        let y = self.matrix_norm_keep(norm, axes)?;
        y.squeeze(axes[0].max(axes[1]))?.squeeze(axes[0].min(axes[1]))
    }

    /// [`Var::matrix_norm`] with both dimensions kept, of length 1.
    #[track_caller]
    pub fn matrix_norm_keep(
        self,
        norm: MatrixNorm,
        [row, column]: [impl Into<Axis> + Copy; 2],
    ) -> Result<Var> {
        let op = "matrix_norm";
        let (row, column) = (self.axis(op, row)?, self.axis(op, column)?);
        if row == column {
            let (left, right) = (*self.shape(), Shape::from([row, column]));
            return Err(TensorError::Shape { op, left, right }.into());
        }
        match norm {
            MatrixNorm::Frobenius => self.norm_keep(&[row, column], 2.0),
            MatrixNorm::LargestColumn => self.norm_keep(&[row], 1.0)?.amax_keep(&[column]),
            MatrixNorm::SmallestColumn => self.norm_keep(&[row], 1.0)?.amin_keep(&[column]),
            MatrixNorm::LargestRow => self.norm_keep(&[column], 1.0)?.amax_keep(&[row]),
            MatrixNorm::SmallestRow => self.norm_keep(&[column], 1.0)?.amin_keep(&[row]),
        }
    }
}
