//! Rules of sums, means, variances, products and log-sum-exp over dimensions. The gradient spreads
//! over the reduced elements.

use lowtide_tensor::{Axis, IntoShape, Shape, Tensor};

use crate::error::Result;
use crate::rule::Needs;
use crate::rules::{kept, reuse};
use crate::var::Var;

/// The number of elements of `x` that are reduced to one.
fn reduced_count(x: Shape, axes: &[usize]) -> usize {
    axes.iter().map(|&axis| x[axis]).product()
}

/// A sum or a mean: every reduced element gets dy / `divisor(count)`.
#[track_caller]
fn even(
    op: &'static str,
    x: Var,
    axes: &[usize],
    forward: impl FnOnce(&Tensor) -> lowtide_tensor::TensorResult<Tensor>,
    divisor: fn(usize) -> f64,
) -> Result<Var> {
    Var::apply(op, [x], |[x], _| {
        let (x_shape, y) = (*x.shape(), forward(&x)?);
        let (spread, divisor) = (kept(x_shape, axes), divisor(reduced_count(x_shape, axes)));
        let rule = move |mut dy: Tensor, _: Needs| {
            if divisor != 1.0 {
                dy = reuse(dy, |dy| dy.div_scalar_(divisor), |dy| dy.div_scalar(divisor))?;
            }
            Ok(vec![Some(dy.reshape(spread)?.expand(x_shape)?)])
        };
        Ok((y, rule))
    })
}

/// `share · (x - mean x)`, where `share` has one number for each reduced group.
fn from_mean(x: &Tensor, axes: &[usize], share: &Tensor) -> Result<Tensor> {
    let mut dx = x.sub(&x.mean_keep(axes)?)?;
    dx.mul_(share)?;
    Ok(dx)
}

/// The degrees of freedom of a variance over `count` elements; not negative, as in forward.
fn degrees(count: usize, correction: f64) -> f64 {
    (count as f64 - correction).max(0.0)
}

#[track_caller]
fn variance(
    x: Var,
    axes: &[usize],
    correction: f64,
    forward: impl FnOnce(&Tensor) -> lowtide_tensor::TensorResult<Tensor>,
) -> Result<Var> {
    let axes = axes.to_vec();
    Var::apply("var", [x], |[x], save| {
        let (y, saved) = (forward(&x)?, save.keep(&x));
        // dx = dy · 2 / (n - correction) · (x - mean x)
        let rule = move |dy: Tensor, _: Needs| {
            let x = saved.unpack()?;
            let left = degrees(reduced_count(*x.shape(), &axes), correction);
            let share = dy.mul_scalar(2.0 / left)?.reshape(kept(*x.shape(), &axes))?;
            Ok(vec![Some(from_mean(&x, &axes, &share)?)])
        };
        Ok((y, rule))
    })
}

#[track_caller]
fn deviation(
    x: Var,
    axes: &[usize],
    correction: f64,
    forward: impl FnOnce(&Tensor) -> lowtide_tensor::TensorResult<Tensor>,
) -> Result<Var> {
    let axes = axes.to_vec();
    Var::apply("std", [x], |[x], save| {
        let y = forward(&x)?;
        let saved = [&x, &y].map(|x| save.keep(x));
        // dx = dy / (y · (n - correction)) · (x - mean x), and 0 where y = 0
        let rule = move |dy: Tensor, _: Needs| {
            let [x, y] = saved;
            let (x, y) = (x.unpack()?, y.unpack()?);
            let left = degrees(reduced_count(*x.shape(), &axes), correction);
            let mut share = dy.div(&y)?;
            share.div_scalar_(left)?;
            share.masked_fill_(&y.eq_scalar(0.0)?, 0.0)?;
            let share = share.reshape(kept(*x.shape(), &axes))?;
            Ok(vec![Some(from_mean(&x, &axes, &share)?)])
        };
        Ok((y, rule))
    })
}

#[track_caller]
fn product(
    x: Var,
    axes: &[usize],
    forward: impl FnOnce(&Tensor) -> lowtide_tensor::TensorResult<Tensor>,
) -> Result<Var> {
    let axes = axes.to_vec();
    Var::apply("prod", [x], |[x], save| {
        let (y, saved) = (forward(&x)?, save.keep(&x));
        // dx[i] = dy · the product of all elements but x[i]. Let p be the product with every zero
        // replaced by 1. Then dx[i] = dy · p / x[i] with the same replacement, or 0 if another
        // element is zero.
        let rule = move |dy: Tensor, _: Needs| {
            let x = saved.unpack()?;
            let dy = dy.reshape(kept(*x.shape(), &axes))?;
            let zero = x.eq_scalar(0.0)?;
            let others = zero.count_nonzero_keep(&axes)?.gt(&zero.to_dtype(COUNT)?)?;
            let nonzero = x.masked_fill(&zero, 1.0)?;
            let share = nonzero.prod_keep(&axes)?.mul(&dy)?;
            let mut dx = share.div(&nonzero)?;
            dx.masked_fill_(&others, 0.0)?;
            Ok(vec![Some(dx)])
        };
        Ok((y, rule))
    })
}

#[track_caller]
fn log_sum(
    x: Var,
    axes: &[usize],
    forward: impl FnOnce(&Tensor) -> lowtide_tensor::TensorResult<Tensor>,
) -> Result<Var> {
    let axes = axes.to_vec();
    Var::apply("logsumexp", [x], |[x], save| {
        let y = forward(&x)?;
        let saved = [&x, &y].map(|x| save.keep(x));
        // dx = dy · e^(x - y)
        let rule = move |dy: Tensor, _: Needs| {
            let [x, y] = saved;
            let (x, y) = (x.unpack()?, y.unpack()?);
            let spread = kept(*x.shape(), &axes);
            let mut dx = x.sub(&y.reshape(spread)?)?;
            dx.exp_()?;
            dx.mul_(&dy.reshape(spread)?)?;
            Ok(vec![Some(dx)])
        };
        Ok((y, rule))
    })
}

/// The type of counts.
const COUNT: lowtide_tensor::DType = lowtide_tensor::DType::I64;

/// The reduced dimensions are removed. Names that end in `_keep` keep them with length 1.
impl Var {
    /// The sum over the dimensions that a broadcast from `shape` stretched; see [`Tensor::sum_to`].
    #[track_caller]
    pub fn sum_to(self, shape: impl IntoShape) -> Result<Var> {
        let shape = shape.into_shape("sum_to")?;
        Var::apply("sum_to", [self], |[x], _| {
            let (x_shape, y) = (*x.shape(), x.sum_to(shape)?);
            // dx = dy, stretched again
            Ok((y, move |dy: Tensor, _: Needs| Ok(vec![Some(dy.expand(x_shape)?)])))
        })
    }

    /// The sums over `axes`; see [`Tensor::sum`].
    #[track_caller]
    pub fn sum(self, axes: &[impl Into<Axis> + Copy]) -> Result<Var> {
        let axes = &self.axes("sum", axes)?;
        // dx[.., r, ..] = dy[..] for every r
        even("sum", self, axes, |x| x.sum(axes), |_| 1.0)
    }

    /// [`Var::sum`] with the dimensions kept.
    #[track_caller]
    pub fn sum_keep(self, axes: &[impl Into<Axis> + Copy]) -> Result<Var> {
        let axes = &self.axes("sum_keep", axes)?;
        even("sum", self, axes, |x| x.sum_keep(axes), |_| 1.0)
    }

    /// The sum of all elements, without dimensions.
    #[track_caller]
    pub fn sum_all(self) -> Result<Var> {
        let axes: Vec<usize> = (0..self.shape().len()).collect();
        self.sum(&axes)
    }

    /// The means over `axes`; see [`Tensor::mean`].
    #[track_caller]
    pub fn mean(self, axes: &[impl Into<Axis> + Copy]) -> Result<Var> {
        let axes = &self.axes("mean", axes)?;
        // dx[.., r, ..] = dy[..] / n for every r
        even("mean", self, axes, |x| x.mean(axes), |count| count as f64)
    }

    /// [`Var::mean`] with the dimensions kept.
    #[track_caller]
    pub fn mean_keep(self, axes: &[impl Into<Axis> + Copy]) -> Result<Var> {
        let axes = &self.axes("mean_keep", axes)?;
        even("mean", self, axes, |x| x.mean_keep(axes), |count| count as f64)
    }

    /// The mean of all elements, without dimensions.
    #[track_caller]
    pub fn mean_all(self) -> Result<Var> {
        let axes: Vec<usize> = (0..self.shape().len()).collect();
        self.mean(&axes)
    }

    /// The variances over `axes`; see [`Tensor::var`].
    #[track_caller]
    pub fn var(self, axes: &[impl Into<Axis> + Copy], correction: f64) -> Result<Var> {
        let axes = &self.axes("var", axes)?;
        variance(self, axes, correction, |x| x.var(axes, correction))
    }

    /// [`Var::var`] with the dimensions kept.
    #[track_caller]
    pub fn var_keep(self, axes: &[impl Into<Axis> + Copy], correction: f64) -> Result<Var> {
        let axes = &self.axes("var_keep", axes)?;
        variance(self, axes, correction, |x| x.var_keep(axes, correction))
    }

    /// The standard deviations over `axes`; see [`Tensor::std`]. The gradient of a deviation of 0
    /// is 0.
    #[track_caller]
    pub fn std(self, axes: &[impl Into<Axis> + Copy], correction: f64) -> Result<Var> {
        let axes = &self.axes("std", axes)?;
        deviation(self, axes, correction, |x| x.std(axes, correction))
    }

    /// [`Var::std`] with the dimensions kept.
    #[track_caller]
    pub fn std_keep(self, axes: &[impl Into<Axis> + Copy], correction: f64) -> Result<Var> {
        let axes = &self.axes("std_keep", axes)?;
        deviation(self, axes, correction, |x| x.std_keep(axes, correction))
    }

    /// The products over `axes`; see [`Tensor::prod`].
    #[track_caller]
    pub fn prod(self, axes: &[impl Into<Axis> + Copy]) -> Result<Var> {
        let axes = &self.axes("prod", axes)?;
        product(self, axes, |x| x.prod(axes))
    }

    /// [`Var::prod`] with the dimensions kept.
    #[track_caller]
    pub fn prod_keep(self, axes: &[impl Into<Axis> + Copy]) -> Result<Var> {
        let axes = &self.axes("prod_keep", axes)?;
        product(self, axes, |x| x.prod_keep(axes))
    }

    /// `ln Σ e^self` over `axes`; see [`Tensor::logsumexp`].
    #[track_caller]
    pub fn logsumexp(self, axes: &[impl Into<Axis> + Copy]) -> Result<Var> {
        let axes = &self.axes("logsumexp", axes)?;
        log_sum(self, axes, |x| x.logsumexp(axes))
    }

    /// [`Var::logsumexp`] with the dimensions kept.
    #[track_caller]
    pub fn logsumexp_keep(self, axes: &[impl Into<Axis> + Copy]) -> Result<Var> {
        let axes = &self.axes("logsumexp_keep", axes)?;
        log_sum(self, axes, |x| x.logsumexp_keep(axes))
    }
}
