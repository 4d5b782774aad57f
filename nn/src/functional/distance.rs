//! Distances and norms of vectors along one dimension.

use lowtide_autograd::Var;
use lowtide_tensor::{AvgPool, Axis, PadMode, Pool2dGeometry, Shape, TensorError};

use crate::checks::check_option;
use crate::error::Result;

/// `max(x, low)` with the gradient of `x`, as where PyTorch clamps outside of the graph: a value
/// below `low` can still grow.
pub(crate) fn raised(x: Var, low: f64) -> Result<Var> {
    // dx = dy
    Ok(Var::apply("raised", [x], |[x], _| {
        Ok((x.maximum_scalar(low)?, move |dy, _| Ok(vec![Some(dy)])))
    })?)
}

/// `Σ a·b / (max(‖a‖, ε) · max(‖b‖, ε))` along `axis`, `torch.nn.functional.cosine_similarity`,
/// where ε is 1e-8. The gradient ignores both maxima, as in PyTorch.
///
/// # Shapes
/// `a, b: [.., D, ..]`, broadcast, `→ [.., ..]`
///
/// # Errors
/// `Shape`, `Axis`, `DType`, `OutOfMemory`; `Option` for a negative ε.
pub fn cosine_similarity(a: Var, b: Var, axis: impl Into<Axis>, eps: f64) -> Result<Var> {
    check_option("eps", eps, "[0, ∞)", |eps| eps >= 0.0)?;
    let (axis, dtype) = (axis.into(), a.value().dtype());
    if dtype != dtype.computed() && dtype == b.value().dtype() {
        // The result is rounded once, at the end. Rounded norms would give another quotient.
        let [a, b] = [a, b].map(|x| x.to_dtype(dtype.computed()));
        return Ok(cosine_similarity(a?, b?, axis, eps)?.to_dtype(dtype)?);
    }
    let (left, right) = (*a.shape(), *b.shape());
    let op = "cosine_similarity";
    let shape = left.broadcast(&right).ok_or(TensorError::Shape { op, left, right })?;
    // A tensor without dimensions counts as one vector of one number.
    let shape = if shape.is_empty() { Shape::new(&[1]) } else { shape };
    let [a, b] = [a.expand(shape)?, b.expand(shape)?];
    let norm = |x: &Var| raised(x.clone().norm(&[axis], 2.0)?, eps);
    let norms = [norm(&a)?, norm(&b)?];
    let [norm_a, norm_b] = norms;
    let y = a.mul(b)?.sum(&[axis])?.div(norm_a)?.div(norm_b)?;
    Ok(y)
}

/// `‖a - b + ε‖` of order p along the last dimension, `torch.nn.functional.pairwise_distance`,
/// where p is 2 and ε is 1e-6.
///
/// # Shapes
/// `a, b: [.., D]`, broadcast, `→ [..]`
///
/// # Errors
/// `Shape`, `DType`, `OutOfMemory`.
pub fn pairwise_distance(a: Var, b: Var, order: f64, eps: f64) -> Result<Var> {
    Ok(a.sub(b)?.add_scalar(eps)?.norm(&[-1], order)?)
}

/// `x / max(‖x‖, ε)` with the norm of order p along `axis`, `torch.nn.functional.normalize`, where
/// p is 2 and ε is 1e-12.
///
/// # Shapes
/// `x: [.., D, ..] → [.., D, ..]`
///
/// # Errors
/// `Axis`, `DType`, `OutOfMemory`.
pub fn normalize(x: Var, order: f64, axis: impl Into<Axis>, eps: f64) -> Result<Var> {
    let norm = x.clone().norm_keep(&[axis.into()], order)?.maximum_scalar(eps)?;
    Ok(x.div(norm)?)
}

/// Options of [`local_response_norm`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocalResponseOptions {
    /// Factor of the mean of the squares.
    pub alpha: f64,
    /// The exponent of the divisor.
    pub beta: f64,
    /// Term that is added to the scaled mean before the power.
    pub k: f64,
}

impl Default for LocalResponseOptions {
    fn default() -> Self {
        LocalResponseOptions { alpha: 1e-4, beta: 0.75, k: 1.0 }
    }
}

/// `x[c] / (k + α · mean of x[i]²)^β` over the `channel_count` channels i around c,
/// `torch.nn.functional.local_response_norm`. Channels beyond the first and the last count as 0.
/// Krizhevsky, Sutskever and Hinton, "ImageNet classification with deep convolutional neural
/// networks" (2012).
///
/// # Shapes
/// `x: [N, C, ..]`, with at least one dimension of places, `→ [N, C, ..]`
///
/// # Errors
/// `Shape`, `DType`, `OutOfMemory`; `Option` for no channels.
pub fn local_response_norm(
    x: Var,
    channel_count: usize,
    options: LocalResponseOptions,
) -> Result<Var> {
    check_option("channel_count", channel_count as f64, "[1, ∞)", |count| count >= 1.0)?;
    let shape = *x.shape();
    if shape.len() < 3 {
        let (op, right) = ("local_response_norm", Shape::new(&[0, 0, 0]));
        return Err(TensorError::Shape { op, left: shape, right }.into());
    }
    let LocalResponseOptions { alpha, beta, k } = options;
    let places: usize = shape[2..].iter().product();
    let squares = x.clone().mul(x.clone())?.reshape([shape[0], 1, shape[1], places])?;
    let around = [channel_count / 2, (channel_count - 1) / 2];
    let squares = squares.pad(&[around, [0, 0]], PadMode::Constant(0.0))?;
    let window = Pool2dGeometry { kernel: [channel_count, 1], stride: [1, 1], padding: [0, 0] };
    let mean = squares.avg_pool2d(window, AvgPool::default())?.reshape(shape)?;
    let divisor = mean.mul_scalar(alpha)?.add_scalar(k)?.pow_scalar(beta)?;
    Ok(x.div(divisor)?)
}
