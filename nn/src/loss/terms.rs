//! Losses before the sum: one term for each target, PyTorch's `reduction="none"`. The function with
//! the same name in the crate's root sums and counts these terms.
//!
//! A target that is a [`Var`] has a gradient, a target that is a [`Tensor`] has none. All operands
//! have the type of the input and broadcast.

use lowtide_autograd::Var;
use lowtide_tensor::{DType, PairLoss, Tensor, TensorError};

use crate::checks::check_option;
use crate::error::Result;
use crate::functional::distance::{pairwise_distance, raised};
use crate::loss::compositions::NllOptions;
use crate::loss::{CrossEntropyOptions, check_smoothing};

/// `f(x, t)` of each element x and its target t, see [`crate::pair_loss`].
///
/// # Errors
/// The errors of [`crate::pair_loss`].
pub fn pair_loss(input: Var, target: &Tensor, loss: PairLoss) -> Result<Var> {
    Ok(input.pair_loss_terms(target, loss, None)?)
}

/// The binary cross-entropy of logits, see [`crate::bce_with_logits`].
///
/// # Errors
/// The errors of [`crate::bce_with_logits`].
pub fn bce_with_logits(
    logits: Var,
    target: &Tensor,
    positive_weight: Option<&Tensor>,
) -> Result<Var> {
    Ok(logits.pair_loss_terms(target, PairLoss::BinaryCrossEntropyOfLogits, positive_weight)?)
}

/// `-weight[label] · x[label]`, or 0 if the label is ignored; see [`crate::nll`].
///
/// # Shapes
/// `logarithms: [N, C, ..]`, `labels: [N, ..]` of i64, `→ [N, ..]`
///
/// # Errors
/// `Shape`, `DType`, `OutOfMemory`, `Index` for a label outside `0..C`.
pub fn nll(logarithms: Var, labels: &Tensor, options: NllOptions<'_>) -> Result<Var> {
    let op = "nll";
    let (left, right) = (*logarithms.shape(), *labels.shape());
    check_labels(op, &logarithms, labels)?;
    if left.len() < 2 || left[..1] != right[..1] || left[2..] != right[1..] {
        return Err(TensorError::Shape { op, left, right }.into());
    }
    let NllOptions { ignore_index, weight } = options;
    let ignored = labels.eq_scalar(ignore_index as f64)?;
    let labels = labels.masked_fill(&ignored, 0.0)?;
    let picked = logarithms.gather(1, &labels.unsqueeze(1)?)?.squeeze(1)?.neg()?;
    weighted(picked, &labels, weight)?.masked_fill(&ignored, 0.0).map_err(Into::into)
}

/// `x · weight[label]`
fn weighted(x: Var, labels: &Tensor, weight: Option<&Tensor>) -> Result<Var> {
    let Some(weight) = weight else { return Ok(x) };
    let factors = weight.index_select(0, &labels.flatten(0..labels.shape().len())?)?;
    let factors = x.pass().constant(factors.reshape(*labels.shape())?);
    Ok(x.mul(factors)?)
}

fn check_labels(op: &'static str, x: &Var, labels: &Tensor) -> Result<()> {
    match labels.dtype() {
        DType::I64 => Ok(()),
        right => Err(TensorError::DType { op, left: x.value().dtype(), right }.into()),
    }
}

/// `-log softmax(logits)[label]`, or 0 if the label is ignored; see [`crate::cross_entropy_with`].
/// Unlike the summed loss, it saves one more tensor of the logits' size for backward.
///
/// # Shapes
/// `logits: [N, C, ..]`, `labels: [N, ..]` of i64, `→ [N, ..]`
///
/// # Errors
/// The errors of [`nll`], and `Option` for a smoothing outside `[0, 1]`.
pub fn cross_entropy(
    logits: Var,
    labels: &Tensor,
    options: CrossEntropyOptions<'_>,
) -> Result<Var> {
    let CrossEntropyOptions { ignore_index, label_smoothing: smoothing, weight } = options;
    check_smoothing(smoothing)?;
    let logarithms = logits.log_softmax(1)?;
    let of_labels = nll(logarithms.clone(), labels, NllOptions { ignore_index, weight })?;
    if smoothing == 0.0 {
        return Ok(of_labels);
    }
    let class_count = logarithms.shape()[1] as f64;
    let even = by_class(logarithms, weight)?.sum(&[1])?.mul_scalar(-smoothing / class_count)?;
    let even = even.masked_fill(&labels.eq_scalar(ignore_index as f64)?, 0.0)?;
    Ok(of_labels.mul_scalar(1.0 - smoothing)?.add(even)?)
}

/// `x[n, c, ..] · weight[c]`
fn by_class(x: Var, weight: Option<&Tensor>) -> Result<Var> {
    let Some(weight) = weight else { return Ok(x) };
    let mut shape = vec![1; x.shape().len()];
    shape[1] = weight.element_count();
    let weight = x.pass().constant(weight.reshape(&shape[..])?);
    Ok(x.mul(weight)?)
}

/// `-Σ target · log softmax(logits)` over the classes; see [`crate::soft_cross_entropy`]. The
/// target has a gradient. Saves more tensors of the logits' size for backward.
///
/// # Shapes
/// `logits, target: [N, C, ..] → [N, ..]`
///
/// # Errors
/// The errors of [`crate::soft_cross_entropy`].
pub fn soft_cross_entropy(
    logits: Var,
    target: Var,
    options: CrossEntropyOptions<'_>,
) -> Result<Var> {
    let CrossEntropyOptions { ignore_index, label_smoothing: smoothing, weight } = options;
    check_smoothing(smoothing)?;
    check_option("ignore_index", ignore_index as f64, "{-100}", |index| index == -100.0)?;
    let (op, left, right) = ("soft_cross_entropy", *logits.shape(), *target.shape());
    if left.len() < 2 || left != right {
        return Err(TensorError::Shape { op, left, right }.into());
    }
    let target = match smoothing {
        0.0 => target,
        _ => target.mul_scalar(1.0 - smoothing)?.add_scalar(smoothing / left[1] as f64)?,
    };
    let logarithms = by_class(logits.log_softmax(1)?, weight)?;
    Ok(logarithms.mul(target)?.sum(&[1])?.neg()?)
}

/// `1 - cos(a, b)` or `max(0, cos(a, b) - margin)`, see [`crate::cosine_embedding`].
///
/// # Shapes
/// `a, b: [N, D]`, `target: [N]` of a's type, `→ [N]`
///
/// # Errors
/// The errors of [`crate::cosine_embedding`].
pub fn cosine_embedding(a: Var, b: Var, target: &Tensor, margin: f64) -> Result<Var> {
    const EPS: f64 = 1e-12;
    check_option("margin", margin, "[-1, 1]", |margin| (-1.0..=1.0).contains(&margin))?;
    let (op, left) = ("cosine_embedding", *a.shape());
    if left.len() != 2 || *b.shape() != left {
        return Err(TensorError::Shape { op, left, right: *b.shape() }.into());
    }
    if target.shape()[..] != left[..1] {
        return Err(TensorError::Shape { op, left, right: *target.shape() }.into());
    }
    let square = |x: &Var| x.clone().mul(x.clone())?.sum(&[1])?.add_scalar(EPS);
    let norms = square(&a)?.mul(square(&b)?)?.sqrt()?;
    let cosine = a.mul(b)?.sum(&[1])?.div(norms)?;
    let pass = cosine.pass().clone();
    let apart = cosine.clone().sub_scalar(margin)?.relu()?;
    let alike = cosine.neg()?.add_scalar(1.0)?;
    let [is_alike, is_apart] = [target.eq_scalar(1.0)?, target.eq_scalar(-1.0)?];
    let [is_alike, is_apart] = [is_alike, is_apart].map(|mask| mask.to_dtype(target.dtype()));
    Ok(alike.mul(pass.constant(is_alike?))?.add(apart.mul(pass.constant(is_apart?))?)?)
}

/// Options of [`gaussian_nll`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GaussianNllOptions {
    /// True if the constant `ln(2π) / 2` is added.
    pub full: bool,
    /// Smallest variance.
    pub eps: f64,
}

impl Default for GaussianNllOptions {
    fn default() -> Self {
        GaussianNllOptions { full: false, eps: 1e-6 }
    }
}

/// `(ln v + (x - t)² / v) / 2` with `v = max(variance, ε)`, the negative log-likelihood of targets
/// under normal distributions, `torch.nn.GaussianNLLLoss`. As in PyTorch, the gradient ignores the
/// maximum, so that a variance below ε can grow.
///
/// # Shapes
/// `input, target: [..]`, broadcast, `→ [..]`; the variance broadcasts to this shape or is without
/// the last dimension
///
/// # Errors
/// `Shape`, `DType`, `OutOfMemory`; `Option` unless ε is positive.
pub fn gaussian_nll(
    input: Var,
    target: Var,
    variance: Var,
    options: GaussianNllOptions,
) -> Result<Var> {
    let GaussianNllOptions { full, eps } = options;
    check_option("eps", eps, "(0, ∞)", |eps| eps > 0.0)?;
    let distance = input.sub(target)?;
    let (left, right) = (*distance.shape(), *variance.shape());
    let rest = left.len().saturating_sub(1);
    let is_of_rows = !left.is_empty() && left[..rest] == right[..];
    let variance = if is_of_rows { variance.unsqueeze(-1)? } else { variance };
    if left.broadcast(variance.shape()) != Some(left) {
        return Err(TensorError::Shape { op: "gaussian_nll", left, right }.into());
    }
    let variance = raised(variance, eps)?;
    let squares = distance.clone().mul(distance)?.div(variance.clone())?;
    let terms = squares.add(variance.log()?)?.mul_scalar(0.5)?;
    Ok(if full { terms.add_scalar(0.5 * (2.0 * std::f64::consts::PI).ln())? } else { terms })
}

/// Options of [`poisson_nll`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoissonNllOptions {
    /// True if the input is the logarithm of the rate.
    pub log_input: bool,
    /// True if Stirling's approximation of `ln t!` is added for targets t above 1.
    pub full: bool,
    /// The number that is added to a rate before its logarithm.
    pub eps: f64,
}

impl Default for PoissonNllOptions {
    fn default() -> Self {
        PoissonNllOptions { log_input: true, full: false, eps: 1e-8 }
    }
}

/// `exp(x) - t · x` if x is the logarithm of a rate, else `x - t · ln(x + ε)`; the negative
/// log-likelihood of counts t under Poisson distributions, `torch.nn.PoissonNLLLoss`.
///
/// # Shapes
/// `input, target: [..]`, broadcast, `→ [..]`
///
/// # Errors
/// `Shape`, `DType`, `OutOfMemory`.
pub fn poisson_nll(input: Var, target: Var, options: PoissonNllOptions) -> Result<Var> {
    let PoissonNllOptions { log_input, full, eps } = options;
    let terms = if log_input {
        input.clone().exp()?.sub(target.clone().mul(input)?)?
    } else {
        input.clone().sub(target.clone().mul(input.add_scalar(eps)?.log()?)?)?
    };
    if !full {
        return Ok(terms);
    }
    // t ln t - t + ln(2πt) / 2 = (t + 1/2) ln t - t + ln(2π) / 2. A target of at most 1 is computed
    // as 1, then masked.
    let is_small = target.value().le_scalar(1.0)?;
    let t = target.maximum_scalar(1.0)?;
    let constant = 0.5 * (2.0 * std::f64::consts::PI).ln();
    let factorial = t.clone().add_scalar(0.5)?.mul(t.clone().log()?)?.sub(t)?;
    Ok(terms.add(factorial.add_scalar(constant)?.masked_fill(&is_small, 0.0)?)?)
}

/// `max(0, -t · (a - b) + margin)`: a should rank higher than b if the target t is 1, and lower if
/// t is -1; `torch.nn.MarginRankingLoss`, where the margin is 0.
///
/// # Shapes
/// `a, b, target: [..]`, broadcast, `→ [..]`
///
/// # Errors
/// `Shape`, `DType` unless all operands have one float type, `OutOfMemory`.
pub fn margin_ranking(a: Var, b: Var, target: &Tensor, margin: f64) -> Result<Var> {
    let left = a.value().dtype();
    if !left.is_float() {
        // Margins are not integers.
        let (op, right) = ("margin_ranking", DType::F32);
        return Err(TensorError::DType { op, left, right }.into());
    }
    let target = a.pass().constant(target.neg()?);
    Ok(a.sub(b)?.mul(target)?.add_scalar(margin)?.relu()?)
}

/// Options of [`triplet_margin`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TripletMarginOptions {
    /// Wanted minimum of (distance to the negative - distance to the positive).
    pub margin: f64,
    /// The order of the norm.
    pub order: f64,
    /// The number that is added to each difference; see [`pairwise_distance`].
    pub eps: f64,
    /// True if the distance from the positive to the negative replaces the distance from the anchor
    /// to the negative where it is smaller (Balntas et al., "Learning local feature descriptors
    /// with triplets", 2016).
    pub swap: bool,
}

impl Default for TripletMarginOptions {
    fn default() -> Self {
        TripletMarginOptions { margin: 1.0, order: 2.0, eps: 1e-6, swap: false }
    }
}

/// `max(0, d(anchor, positive) - d(anchor, negative) + margin)`, where d is [`pairwise_distance`],
/// `torch.nn.TripletMarginLoss`.
///
/// # Shapes
/// `anchor, positive, negative: [.., D]`, broadcast, `→ [..]`
///
/// # Errors
/// `Shape`, `DType`, `OutOfMemory`; `Option` unless the margin is positive.
pub fn triplet_margin(
    anchor: Var,
    positive: Var,
    negative: Var,
    options: TripletMarginOptions,
) -> Result<Var> {
    let TripletMarginOptions { margin, order, eps, swap } = options;
    check_option("margin", margin, "(0, ∞)", |margin| margin > 0.0)?;
    let distance = |a: &Var, b: &Var| pairwise_distance(a.clone(), b.clone(), order, eps);
    let near = distance(&anchor, &positive)?;
    let mut far = distance(&anchor, &negative)?;
    if swap {
        far = far.minimum(distance(&positive, &negative)?)?;
    }
    Ok(near.sub(far)?.add_scalar(margin)?.relu()?)
}

/// `x` if the target is 1 and `max(0, margin - x)` if the target is -1, for distances x;
/// `torch.nn.HingeEmbeddingLoss`, where the margin is 1. For any other target the sum of both, as
/// in PyTorch.
///
/// # Shapes
/// `input, target: [..]`, broadcast, `→ [..]`
///
/// # Errors
/// `Shape`, `DType`, `OutOfMemory`.
pub fn hinge_embedding(input: Var, target: &Tensor, margin: f64) -> Result<Var> {
    let (op, left, right) = ("hinge_embedding", *input.shape(), *target.shape());
    let shape = left.broadcast(&right).ok_or(TensorError::Shape { op, left, right })?;
    let (input, target) = (input.expand(shape)?, target.expand(shape)?);
    let apart = input.clone().neg()?.add_scalar(margin)?.relu()?;
    let apart = apart.masked_fill(&target.eq_scalar(1.0)?, 0.0)?;
    Ok(input.masked_fill(&target.eq_scalar(-1.0)?, 0.0)?.add(apart)?)
}

/// `ln(1 + exp(-t · x))` for targets of 1 and -1, `torch.nn.SoftMarginLoss`. Exact for large x too:
/// no exponential overflows.
///
/// # Shapes
/// `input, target: [..]`, broadcast, `→ [..]`
///
/// # Errors
/// `Shape`, `DType`, `OutOfMemory`.
pub fn soft_margin(input: Var, target: &Tensor) -> Result<Var> {
    let target = input.pass().constant(target.clone());
    Ok(input.mul(target)?.logsigmoid()?.neg()?)
}

/// Options of [`multi_margin`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug)]
pub struct MultiMarginOptions<'a> {
    /// Wanted minimum of (input of the label - any other input).
    pub margin: f64,
    /// The exponent of the shortfall from the margin. PyTorch accepts 1 and 2.
    pub order: f64,
    /// A factor for each label: `[C]`, of the input's type.
    pub weight: Option<&'a Tensor>,
}

impl Default for MultiMarginOptions<'_> {
    fn default() -> Self {
        MultiMarginOptions { margin: 1.0, order: 1.0, weight: None }
    }
}

/// `weight[l] / C · Σ max(0, margin - x[l] + x[c])^p` over the classes c other than the label l,
/// `torch.nn.MultiMarginLoss`.
///
/// # Shapes
/// `input: [N, C]`, `labels: [N]` of i64, `→ [N]`
///
/// # Errors
/// `Shape`, `DType`, `OutOfMemory`; `Index` for a label outside `0..C`, `Option` unless the order
/// is 1 or 2.
pub fn multi_margin(input: Var, labels: &Tensor, options: MultiMarginOptions<'_>) -> Result<Var> {
    let MultiMarginOptions { margin, order, weight } = options;
    check_option("order", order, "{1, 2}", |order| order == 1.0 || order == 2.0)?;
    let (op, left, right) = ("multi_margin", *input.shape(), *labels.shape());
    check_labels(op, &input, labels)?;
    if left.len() != 2 || left[..1] != right[..] {
        return Err(TensorError::Shape { op, left, right }.into());
    }
    let picked = input.clone().gather(1, &labels.unsqueeze(1)?)?;
    let missing = input.sub(picked)?.add_scalar(margin)?.relu()?;
    let missing = missing.masked_fill(&labels.one_hot(left[1], DType::Bool)?, 0.0)?;
    let powers = if order == 2.0 { missing.clone().mul(missing)? } else { missing };
    weighted(powers.sum(&[1])?.div_scalar(left[1] as f64)?, labels, weight)
}

/// `-1/C · Σ weight[c] · (t[c] · ln σ(x[c]) + (1 - t[c]) · ln(1 - σ(x[c])))` over the classes,
/// `torch.nn.MultiLabelSoftMarginLoss`. No exponential overflows.
///
/// # Shapes
/// `input, target: [.., C]`, `weight: [C]` or of the input's shape, `→ [..]`
///
/// # Errors
/// `Shape`, `DType`, `OutOfMemory`.
pub fn multilabel_soft_margin(input: Var, target: &Tensor, weight: Option<&Tensor>) -> Result<Var> {
    let pass = input.pass().clone();
    let terms = input.pair_loss_terms(target, PairLoss::BinaryCrossEntropyOfLogits, None)?;
    let terms = match weight {
        Some(weight) => terms.mul(pass.constant(weight.clone()))?,
        None => terms,
    };
    Ok(terms.mean(&[-1])?)
}

/// Options of [`ctc`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CtcOptions {
    /// The class of the blank, which stands for no label.
    pub blank: usize,
    /// True if a target that needs more steps than its sequence has gives a loss of 0 and no
    /// gradient, instead of an infinite loss.
    pub zero_infinity: bool,
}

/// The negative log-probability of each target, over all alignments with the steps,
/// `torch.nn.functional.ctc_loss`; see [`Tensor::ctc_loss`]. Losses are f32 or f64.
///
/// # Shapes
/// `logarithms: [T, N, C]`, a `log_softmax`; `targets: [N, S]` of i64; `lengths`, `[N]` of i64
/// each, for the valid steps and labels; `→ [N]`
///
/// # Errors
/// `Shape`, `DType`, `OutOfMemory`, `Label` for a label outside of the classes, `Index` for a
/// length above T or S and for a blank outside of the classes.
pub fn ctc(
    logarithms: Var,
    targets: &Tensor,
    lengths: [&Tensor; 2],
    options: CtcOptions,
) -> Result<Var> {
    let CtcOptions { blank, zero_infinity } = options;
    let terms = logarithms.ctc_loss(targets, lengths, blank)?;
    if !zero_infinity {
        return Ok(terms);
    }
    let is_impossible = terms.value().is_inf()?;
    Ok(terms.masked_fill(&is_impossible, 0.0)?)
}
