//! Losses that are composed of operations.

use lowtide_autograd::Var;
use lowtide_tensor::{Shape, Tensor, TensorError};

use crate::checks::check_option;
use crate::error::Result;
use crate::loss::terms::{
    self, CtcOptions, GaussianNllOptions, MultiMarginOptions, PoissonNllOptions,
    TripletMarginOptions,
};
use crate::loss::{Loss, counted, total};

/// Options of [`nll`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug)]
pub struct NllOptions<'a> {
    /// The label of targets that do not count.
    pub ignore_index: i64,
    /// A factor for each class: `[C]`, of the input's type.
    pub weight: Option<&'a Tensor>,
}

impl Default for NllOptions<'_> {
    fn default() -> Self {
        NllOptions { ignore_index: -100, weight: None }
    }
}

/// `-x[label]` of log-probabilities x, summed over the batch, `torch.nn.NLLLoss`. The count is the
/// sum of the weights of the labels. [`crate::cross_entropy`] also computes the logarithms, and
/// saves less.
///
/// # Shapes
/// `logarithms: [N, C, ..]`, `labels: [N, ..]` of i64
///
/// # Errors
/// `Shape`, `DType`, `Label` for a label outside `0..C`, `OutOfMemory`.
pub fn nll(logarithms: Var, labels: &Tensor, options: NllOptions<'_>) -> Result<Loss> {
    let NllOptions { ignore_index, weight } = options;
    let (sum, count) = logarithms.nll_loss(labels, ignore_index, weight)?;
    Ok(Loss { sum, count })
}

/// `1 - cos(a, b)` if the target is 1 and `max(0, cos(a, b) - margin)` if the target is -1, summed
/// over the batch, `torch.nn.CosineEmbeddingLoss`. As in PyTorch, `cos(a, b) = Σ a·b / √((Σ a² + ε)
/// · (Σ b² + ε))` with ε = 1e-12.
///
/// # Shapes
/// `a, b: [N, D]`, `target: [N]` of a's type
///
/// # Errors
/// `Shape`, `DType`, `OutOfMemory`; `Option` for a margin outside `[-1, 1]`.
pub fn cosine_embedding(a: Var, b: Var, target: &Tensor, margin: f64) -> Result<Loss> {
    total(terms::cosine_embedding(a, b, target, margin)?)
}

/// `1 - (2 Σ p·t + s) / (Σ p + Σ t + s)`, where p are the probabilities and t the targets of one
/// sample and class; summed over samples and classes (Milletari, Navab and Ahmadi, "V-Net", 2016,
/// without squares). A smoothing s of 1 is usual. With it, the loss is 0 if both target and
/// prediction are empty. The count is the number of samples times the number of classes.
///
/// # Shapes
/// `probabilities, target: [N, C, ..]`
///
/// # Errors
/// `Shape`, `DType`, `OutOfMemory`; `Option` for a negative smoothing.
pub fn dice(probabilities: Var, target: &Tensor, smoothing: f64) -> Result<Loss> {
    check_option("smoothing", smoothing, "[0, ∞)", |smoothing| smoothing >= 0.0)?;
    let left = *probabilities.shape();
    if left.len() < 2 || *target.shape() != left {
        return Err(TensorError::Shape { op: "dice", left, right: *target.shape() }.into());
    }
    let rows = Shape::new(&[left[0], left[1], left[2..].iter().product()]);
    let (p, t) = (probabilities.reshape(rows)?, target.reshape(rows)?);
    let pass = p.pass().clone();
    let sizes = p.clone().sum(&[2])?.add(pass.constant(t.sum(&[2])?))?.add_scalar(smoothing)?;
    let shared = p.mul(pass.constant(t))?.sum(&[2])?.mul_scalar(2.0)?.add_scalar(smoothing)?;
    let loss = shared.div(sizes)?.neg()?.add_scalar(1.0)?;
    counted(left[0] * left[1], loss.sum_all()?)
}

/// The sum of [`terms::gaussian_nll`]. The count is the number of elements.
///
/// # Errors
/// The errors of [`terms::gaussian_nll`].
pub fn gaussian_nll(
    input: Var,
    target: Var,
    variance: Var,
    options: GaussianNllOptions,
) -> Result<Loss> {
    total(terms::gaussian_nll(input, target, variance, options)?)
}

/// The sum of [`terms::poisson_nll`]. The count is the number of elements.
///
/// # Errors
/// The errors of [`terms::poisson_nll`].
pub fn poisson_nll(input: Var, target: Var, options: PoissonNllOptions) -> Result<Loss> {
    total(terms::poisson_nll(input, target, options)?)
}

/// The sum of [`terms::margin_ranking`]. The count is the number of pairs.
///
/// # Errors
/// The errors of [`terms::margin_ranking`].
pub fn margin_ranking(a: Var, b: Var, target: &Tensor, margin: f64) -> Result<Loss> {
    total(terms::margin_ranking(a, b, target, margin)?)
}

/// The sum of [`terms::triplet_margin`]. The count is the number of triplets.
///
/// # Errors
/// The errors of [`terms::triplet_margin`].
pub fn triplet_margin(
    anchor: Var,
    positive: Var,
    negative: Var,
    options: TripletMarginOptions,
) -> Result<Loss> {
    total(terms::triplet_margin(anchor, positive, negative, options)?)
}

/// The sum of [`terms::hinge_embedding`]. The count is the number of elements.
///
/// # Errors
/// The errors of [`terms::hinge_embedding`].
pub fn hinge_embedding(input: Var, target: &Tensor, margin: f64) -> Result<Loss> {
    total(terms::hinge_embedding(input, target, margin)?)
}

/// The sum of [`terms::soft_margin`]. The count is the number of elements.
///
/// # Errors
/// The errors of [`terms::soft_margin`].
pub fn soft_margin(input: Var, target: &Tensor) -> Result<Loss> {
    total(terms::soft_margin(input, target)?)
}

/// The sum of [`terms::multi_margin`]. The count is the number of labels, even with weights, as in
/// PyTorch.
///
/// # Errors
/// The errors of [`terms::multi_margin`].
pub fn multi_margin(input: Var, labels: &Tensor, options: MultiMarginOptions<'_>) -> Result<Loss> {
    total(terms::multi_margin(input, labels, options)?)
}

/// The sum of [`terms::multilabel_soft_margin`]. The count is the number of samples.
///
/// # Errors
/// The errors of [`terms::multilabel_soft_margin`].
pub fn multilabel_soft_margin(
    input: Var,
    target: &Tensor,
    weight: Option<&Tensor>,
) -> Result<Loss> {
    total(terms::multilabel_soft_margin(input, target, weight)?)
}

/// The sum of [`terms::ctc`], each term divided by the length of its target, or by 1 if the length
/// is 0. The count is the number of samples, so that the mean is PyTorch's `reduction="mean"`.
///
/// # Errors
/// The errors of [`terms::ctc`].
pub fn ctc(
    logarithms: Var,
    targets: &Tensor,
    lengths: [&Tensor; 2],
    options: CtcOptions,
) -> Result<Loss> {
    let terms = terms::ctc(logarithms, targets, lengths, options)?;
    let lens = lengths[1].maximum_scalar(1.0)?.to_dtype(terms.value().dtype())?;
    let lens = terms.pass().constant(lens);
    total(terms.div(lens)?)
}
