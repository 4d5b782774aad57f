//! Losses as a sum and a count: with micro-batches, the total sum is divided by the total count
//! once.

pub(crate) mod compositions;
pub(crate) mod logits;
pub(crate) mod preference;
pub mod terms;

use lowtide_autograd::Var;
use lowtide_tensor::{Labelling, Tensor, TensorError};

pub use lowtide_tensor::{LinearCrossEntropyOptions, PairLoss};

use crate::checks::check_option;
use crate::error::Result;

/// A loss summed over the targets of a batch, and the number of those targets.
#[derive(Clone)]
pub struct Loss {
    /// The sum over all targets that count.
    pub sum: Var,
    /// Number of targets that count (or the sum of their weights), as one element on the device.
    pub count: Tensor,
}

impl Loss {
    /// `sum / count`. With a count of 0 the mean is NaN, as in PyTorch.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn mean(self) -> Result<Var> {
        let count = self.sum.pass().constant(self.count);
        Ok(self.sum.div(count)?)
    }
}

/// Options of [`cross_entropy_with`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropyOptions<'a> {
    /// The label of targets that do not count.
    pub ignore_index: i64,
    /// Fraction of each label that is spread evenly over all classes, from 0 to 1.
    pub label_smoothing: f64,
    /// A factor for each class: `[C]`, of the logits' type.
    pub weight: Option<&'a Tensor>,
}

impl Default for CrossEntropyOptions<'_> {
    fn default() -> Self {
        CrossEntropyOptions { ignore_index: -100, label_smoothing: 0.0, weight: None }
    }
}

/// `-log softmax(logits)[label]`, summed over the batch, `torch.nn.CrossEntropyLoss`.
///
/// # Shapes
/// `logits: [N, C, ..]`, `labels: [N, ..]` of i64
///
/// # Errors
/// `Shape`, `DType`, `Label` for a label outside `0..C`, `OutOfMemory`.
pub fn cross_entropy(logits: Var, labels: &Tensor) -> Result<Loss> {
    cross_entropy_with(logits, labels, CrossEntropyOptions::default())
}

/// [`cross_entropy`] with options. The count is the sum of the weights of the labels.
///
/// # Errors
/// The errors of [`cross_entropy`], and `Option` for a smoothing outside `[0, 1]`.
pub fn cross_entropy_with(
    logits: Var,
    labels: &Tensor,
    options: CrossEntropyOptions<'_>,
) -> Result<Loss> {
    let CrossEntropyOptions { ignore_index, label_smoothing: smoothing, weight } = options;
    check_smoothing(smoothing)?;
    let labelling = Labelling { ignore_index, smoothing, weight };
    let (sum, count) = logits.cross_entropy_with(labels, labelling)?;
    Ok(Loss { sum, count })
}

/// `-Σ target · log softmax(logits)` over the classes, summed over the batch,
/// `torch.nn.CrossEntropyLoss` with probabilities for targets. The count is the number of
/// positions, even with weights, as in PyTorch. No gradient flows to the target.
///
/// # Shapes
/// `logits, target: [N, C, ..]`
///
/// # Errors
/// `Shape`, `DType`, `OutOfMemory`; `Option` for a smoothing outside `[0, 1]` and for an
/// `ignore_index` other than -100.
pub fn soft_cross_entropy(
    logits: Var,
    target: &Tensor,
    options: CrossEntropyOptions<'_>,
) -> Result<Loss> {
    let CrossEntropyOptions { ignore_index, label_smoothing: smoothing, weight } = options;
    check_smoothing(smoothing)?;
    // There are no labels, so none can be ignored.
    check_option("ignore_index", ignore_index as f64, "{-100}", |index| index == -100.0)?;
    let shape = *logits.shape();
    let positions = shape.iter().enumerate().filter(|(axis, _)| *axis != 1);
    let len = positions.map(|(_, len)| len).product();
    let labelling = Labelling { ignore_index, smoothing, weight };
    counted(len, logits.soft_cross_entropy(target, labelling)?)
}

pub(crate) fn check_smoothing(smoothing: f64) -> Result<()> {
    check_option("label_smoothing", smoothing, "[0, 1]", |share| (0.0..=1.0).contains(&share))
}

/// [`cross_entropy`] of `input · weightᵀ + bias`, the output layer of a classifier, in chunks. The
/// logits never exist as a whole; backward keeps only the operands and recomputes the logits. Use
/// this for many classes, as in a language model.
///
/// # Shapes
/// `input: [.., D]`, `weight: [C, D]`, `bias: [C]`, `labels: [..]` of i64
///
/// # Errors
/// `Shape`, `DType`, `Label` for a label outside `0..C`, `OutOfMemory`.
pub fn linear_cross_entropy(
    input: Var,
    weight: Var,
    bias: Option<Var>,
    labels: &Tensor,
    options: LinearCrossEntropyOptions,
) -> Result<Loss> {
    let shape = *input.shape();
    let outer = &shape[..shape.len().saturating_sub(1)];
    if shape.is_empty() || **labels.shape() != *outer {
        let right = *labels.shape();
        return Err(TensorError::Shape { op: "linear_cross_entropy", left: shape, right }.into());
    }
    let row_count = outer.iter().product();
    let rows = input.reshape([row_count, shape[outer.len()]])?;
    let labels = labels.reshape([row_count])?;
    let (sum, count) = rows.linear_cross_entropy(weight, bias, &labels, options)?;
    Ok(Loss { sum, count })
}

/// `(x - t)²`, summed, `torch.nn.MSELoss`; see [`pair_loss`].
///
/// # Errors
/// The errors of [`pair_loss`].
pub fn mse(input: Var, target: &Tensor) -> Result<Loss> {
    pair_loss(input, target, PairLoss::SquaredError)
}

/// `|x - t|`, summed, `torch.nn.L1Loss`.
///
/// # Errors
/// The errors of [`pair_loss`].
pub fn l1(input: Var, target: &Tensor) -> Result<Loss> {
    pair_loss(input, target, PairLoss::AbsoluteError)
}

/// Quadratic up to a distance of `beta` (PyTorch's default is 1), then linear in the distance;
/// summed, `torch.nn.SmoothL1Loss`; see [`PairLoss::SmoothL1`].
///
/// # Errors
/// The errors of [`pair_loss`], and `Option` for a negative `beta`.
pub fn smooth_l1(input: Var, target: &Tensor, beta: f64) -> Result<Loss> {
    check_option("beta", beta, "[0, ∞)", |beta| beta >= 0.0)?;
    pair_loss(input, target, PairLoss::SmoothL1 { beta })
}

/// Quadratic up to a distance of `delta` (PyTorch's default is 1), then `delta` times linear in the
/// distance; summed, `torch.nn.HuberLoss`; see [`PairLoss::Huber`].
///
/// # Errors
/// The errors of [`pair_loss`], and `Option` unless `delta` is positive.
pub fn huber(input: Var, target: &Tensor, delta: f64) -> Result<Loss> {
    check_option("delta", delta, "(0, ∞)", |delta| delta > 0.0)?;
    pair_loss(input, target, PairLoss::Huber { delta })
}

/// `-t·ln x - (1 - t)·ln(1 - x)` of probabilities, summed, `torch.nn.BCELoss`.
///
/// # Errors
/// The errors of [`pair_loss`].
pub fn bce(probabilities: Var, target: &Tensor) -> Result<Loss> {
    pair_loss(probabilities, target, PairLoss::BinaryCrossEntropy)
}

/// `t · (ln t - x)` of log-probabilities x, summed, `torch.nn.KLDivLoss`. For `batchmean`, divide
/// the sum by the batch instead of the count.
///
/// # Errors
/// The errors of [`pair_loss`].
pub fn kl_divergence(logarithms: Var, target: &Tensor) -> Result<Loss> {
    pair_loss(logarithms, target, PairLoss::KlDivergence)
}

/// The sum of a loss over all elements and their targets. `loss` selects the formula of
/// `torch.nn.MSELoss`, `L1Loss`, `SmoothL1Loss`, `HuberLoss`, `BCELoss`, `BCEWithLogitsLoss` or
/// `KLDivLoss`. The count is the number of elements, so that the mean is PyTorch's
/// `reduction="mean"`. No gradient flows to the target.
///
/// # Shapes
/// `input: [..]`; the target broadcasts to the shape of the input.
///
/// # Errors
/// `Shape`, `DType`, `OutOfMemory`.
pub fn pair_loss(input: Var, target: &Tensor, loss: PairLoss) -> Result<Loss> {
    counted(input.value().element_count(), input.pair_loss(target, loss)?)
}

/// `-(weight · t · ln σ(x) + (1 - t) · ln(1 - σ(x)))`, summed, `torch.nn.BCEWithLogitsLoss` with
/// its `pos_weight`; see [`pair_loss`].
///
/// # Errors
/// The errors of [`pair_loss`].
pub fn bce_with_logits(
    logits: Var,
    target: &Tensor,
    positive_weight: Option<&Tensor>,
) -> Result<Loss> {
    let (len, loss) = (logits.value().element_count(), PairLoss::BinaryCrossEntropyOfLogits);
    counted(len, logits.pair_loss_weighted(target, loss, positive_weight)?)
}

/// A loss with the sum `sum` and the count `len`.
pub(crate) fn counted(len: usize, sum: Var) -> Result<Loss> {
    let value = sum.value();
    let count = Tensor::full(value.device(), [], value.dtype(), len as f64)?;
    Ok(Loss { sum, count })
}

/// The sum and the number of terms. Half types are summed in f32.
pub(crate) fn total(terms: Var) -> Result<Loss> {
    let (len, dtype) = (terms.value().element_count(), terms.value().dtype().computed());
    counted(len, terms.to_dtype(dtype)?.sum_all()?)
}
