//! Logits that the loss can compute in chunks, and losses of distillation and likelihood.
//!
//! Hinton, Vinyals and Dean, "Distilling the knowledge in a neural network" (2015).
//!
//! `N` rows, `D` features, `C` classes.

use lowtide_autograd::{SavedPolicy, Var};
use lowtide_tensor::{DType, LinearCrossEntropyOptions, PairLoss, Tensor, TensorError};

use crate::checks::check_option;
use crate::error::{NnError, Result};
use crate::loss::{
    CrossEntropyOptions, Loss, cross_entropy, cross_entropy_with, linear_cross_entropy, terms,
};
use crate::parallel::features::vocabulary::VocabularyShare;

/// The logits of a model: `[N, C]`, or `[.., C]` of sequences.
#[derive(Clone)]
pub enum Logits {
    /// The logits as one tensor.
    Whole(Var),
    /// The input and the weight of an output layer. The loss computes the logits in chunks, so that
    /// the logits of a large vocabulary never exist as a whole.
    Linear {
        /// The input of the layer, `[.., D]`.
        input: Var,
        /// The weight of the layer, `[C, D]`.
        weight: Var,
    },
    /// The input and the weight of an output layer that ranks
    /// [share](crate::parallel::share_layers). The loss computes the logits.
    Shared {
        /// The input of the layer, `[.., D]`.
        input: Var,
        /// The rows of the layer's weight on this rank, `[n, D]`.
        weight: Var,
        /// The share of this rank: the range of its rows.
        share: VocabularyShare,
    },
}

/// Largest number of chunks: every chunk adds to the full gradient of the weight.
const CHUNKS_MAX: usize = 8;
/// Smallest number of rows in a chunk: products with fewer rows are slow.
const CHUNK_ROWS_MIN: usize = 16;

impl Logits {
    /// The logits of an output layer. `weight` is the whole weight, or the rows on this rank if
    /// ranks share the layer.
    pub fn of(input: Var, weight: Var, share: Option<&VocabularyShare>) -> Logits {
        match share.cloned() {
            Some(share) => Logits::Shared { input, weight, share },
            None => Logits::Linear { input, weight },
        }
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        match self {
            Logits::Whole(logits) => logits.shape().last().copied().unwrap_or_default(),
            Logits::Linear { weight, .. } => weight.shape()[0],
            Logits::Shared { share, .. } => share.len(),
        }
    }

    /// The logits as one tensor, `[.., C]`.
    ///
    /// # Errors
    /// `Shape`, `OutOfMemory`.
    pub fn whole(self) -> Result<Var> {
        match self {
            Logits::Whole(logits) => Ok(logits),
            Logits::Linear { input, weight } => Ok(input.linear(weight, None)?),
            Logits::Shared { input, weight, share } => share.logits(input, weight),
        }
    }

    /// The cross-entropy with labels. Labels of -100 do not count. The result has the bits of
    /// [`cross_entropy`](crate::cross_entropy) or
    /// [`linear_cross_entropy`](crate::linear_cross_entropy).
    ///
    /// # Shapes
    /// `labels: [..]` of i64
    ///
    /// # Errors
    /// The errors of these two functions.
    pub fn cross_entropy(self, labels: &Tensor) -> Result<Loss> {
        match self {
            Logits::Whole(logits) if logits.shape().len() == 2 => cross_entropy(logits, labels),
            Logits::Whole(logits) => {
                let rows = labels.reshape([labels.element_count()])?;
                cross_entropy(in_rows(logits)?, &rows)
            }
            logits => logits.cross_entropy_in_chunks(labels, LinearCrossEntropyOptions::default()),
        }
    }

    /// The cross-entropy with labels. Logits that are not computed yet are computed in chunks, as
    /// in [`linear_cross_entropy`](crate::linear_cross_entropy).
    ///
    /// # Shapes
    /// `labels: [..]` of i64
    ///
    /// # Errors
    /// The errors of [`cross_entropy_with`](crate::cross_entropy_with) and
    /// [`linear_cross_entropy`](crate::linear_cross_entropy); `Index` for a label outside of the
    /// classes if ranks share the output layer.
    pub fn cross_entropy_in_chunks(
        self,
        labels: &Tensor,
        options: LinearCrossEntropyOptions,
    ) -> Result<Loss> {
        match self {
            Logits::Whole(logits) => {
                let LinearCrossEntropyOptions { ignore_index, label_smoothing } = options;
                let options = CrossEntropyOptions { ignore_index, label_smoothing, weight: None };
                let rows = labels.reshape([labels.element_count()])?;
                cross_entropy_with(in_rows(logits)?, &rows, options)
            }
            Logits::Linear { input, weight } => {
                linear_cross_entropy(input, weight, None, labels, options)
            }
            Logits::Shared { input, weight, share } => {
                share.cross_entropy(input, weight, labels, options)
            }
        }
    }

    /// The log-probability of each sequence of labels: `Σ ln softmax(logits)[label]` over the
    /// positions whose label is not -100.
    ///
    /// # Shapes
    /// `labels: [B, T]` of i64 `→ [B]`
    ///
    /// # Errors
    /// `Shape`, `DType`, `Label` for a label outside `0..C`, `OutOfMemory`.
    pub fn log_likelihoods(self, labels: &Tensor) -> Result<Var> {
        let (op, right) = ("log_likelihoods", *labels.shape());
        let left = match &self {
            Logits::Whole(logits) => *logits.shape(),
            Logits::Linear { input, .. } | Logits::Shared { input, .. } => *input.shape(),
        };
        let (&[batch, len], 3) = (&*right, left.len()) else {
            return Err(TensorError::Shape { op, left, right }.into());
        };
        match &self {
            Logits::Whole(logits) => {
                let rows = labels.reshape([batch * len])?;
                let options = CrossEntropyOptions::default();
                let of_labels = terms::cross_entropy(in_rows(logits.clone())?, &rows, options)?;
                Ok(of_labels.reshape([batch, len])?.sum(&[1])?.neg()?)
            }
            Logits::Linear { .. } | Logits::Shared { .. } => {
                let one = |index: usize| -> Result<Var> {
                    let options = LinearCrossEntropyOptions::default();
                    let labels = labels.narrow(0, index, 1)?;
                    let loss = self.sequence(index)?.cross_entropy_in_chunks(&labels, options)?;
                    Ok(loss.sum.neg()?)
                };
                Ok(Var::stack((0..batch).map(one).collect::<Result<_>>()?, 0)?)
            }
        }
    }

    /// The logits of the sequence at `index`, `[1, T, C]`.
    fn sequence(&self, index: usize) -> Result<Logits> {
        let of_one = |x: &Var| x.clone().narrow(0, index, 1);
        Ok(match self {
            Logits::Whole(logits) => Logits::Whole(of_one(logits)?),
            Logits::Linear { input, weight } => {
                Logits::Linear { input: of_one(input)?, weight: weight.clone() }
            }
            Logits::Shared { input, weight, share } => {
                let (weight, share) = (weight.clone(), share.clone());
                Logits::Shared { input: of_one(input)?, weight, share }
            }
        })
    }

    /// `T² · KL(softmax(teacher / T) ‖ softmax(logits / T))`, summed over the rows whose label is
    /// not -100, where T is the temperature. The factor T² keeps the gradient as large as the
    /// gradient of a cross-entropy when T grows. No gradient flows to the teacher. With
    /// [`Logits::Linear`] on both sides, only an eighth of the logits exists at a time, and
    /// backward recomputes it.
    ///
    /// # Shapes
    /// Both sides have equal rows and classes; `labels: [..]` of i64
    ///
    /// # Errors
    /// `Option` unless the temperature is above 0; `Shape`, `DType`, `OutOfMemory`.
    pub fn distillation(self, teacher: Logits, labels: &Tensor, temperature: f64) -> Result<Loss> {
        let is_valid = |t: f64| t > 0.0 && t.is_finite();
        check_option("temperature", temperature, "(0, ∞)", is_valid)?;
        let ignored = labels.reshape([labels.element_count(), 1])?.eq_scalar(-100.0)?;
        let count = ignored.logical_not()?;
        let sum = match (self, teacher) {
            (
                Logits::Linear { input, weight },
                Logits::Linear { input: teacher, weight: teacher_weight },
            ) => {
                let teacher = [in_rows(teacher)?, teacher_weight].map(|x| x.value().clone());
                chunked([in_rows(input)?, weight], teacher, &ignored, temperature)?
            }
            (logits, teacher) => {
                let teacher = in_rows(teacher.whole()?)?.value().clone();
                softened_kl(in_rows(logits.whole()?)?, teacher, &ignored, temperature)?
            }
        };
        let count = count.to_dtype(sum.value().dtype())?.sum_all()?;
        Ok(Loss { sum, count })
    }
}

/// x as a matrix: the last dimension as columns, all others merged into rows.
fn in_rows(x: Var) -> Result<Var> {
    let shape = *x.shape();
    let features = shape.last().copied().unwrap_or_default();
    if shape.len() == 2 {
        return Ok(x);
    }
    let rows = shape[..shape.len().saturating_sub(1)].iter().product();
    Ok(x.reshape([rows, features])?)
}

/// The loss of logits and teacher, both `[N, C]`, without the rows marked in `ignored: [N, 1]`.
fn softened_kl(logits: Var, teacher: Tensor, ignored: &Tensor, temperature: f64) -> Result<Var> {
    let (left, right) = (*logits.shape(), *teacher.shape());
    if left != right {
        return Err(TensorError::Shape { op: "distillation", left, right }.into());
    }
    let logarithms = softened(logits, temperature)?.log_softmax(1)?;
    let dtype = logarithms.value().dtype();
    let teacher = if teacher.dtype() == dtype { teacher } else { teacher.to_dtype(dtype)? };
    let mut target = teacher.mul_scalar(1.0 / temperature)?;
    drop(teacher);
    target.softmax_(1)?;
    // A target of zeros adds nothing, and has no gradient.
    target.masked_fill_(ignored, 0.0)?;
    let sum = logarithms.pair_loss(&target, PairLoss::KlDivergence)?;
    Ok(sum.mul_scalar(temperature * temperature)?)
}

/// `x / T`. Half types are converted to f32.
fn softened(x: Var, temperature: f64) -> Result<Var> {
    let wide = match x.value().dtype() {
        DType::F64 => x,
        _ => x.to_dtype(DType::F32)?,
    };
    Ok(if temperature == 1.0 { wide } else { wide.mul_scalar(1.0 / temperature)? })
}

/// [`softened_kl`] of two linear layers, in chunks of rows.
fn chunked(
    [input, weight]: [Var; 2],
    teacher: [Tensor; 2],
    ignored: &Tensor,
    temperature: f64,
) -> Result<Var> {
    let rows = input.shape()[0];
    let chunk = rows.div_ceil(CHUNKS_MAX).max(CHUNK_ROWS_MIN);
    let pass = input.pass().clone();
    let mut sum: Option<Var> = None;
    for first in (0..rows.max(1)).step_by(chunk) {
        let len = chunk.min(rows - first);
        let part = teacher[0].narrow(0, first, len)?;
        let (of_teacher, ignored) = ([part, teacher[1].clone()], ignored.narrow(0, first, len)?);
        let segment = move |_: &lowtide_autograd::Pass, inputs: Vec<Var>| {
            let [input, weight] =
                inputs.try_into().unwrap_or_else(|_| unreachable!("as many as there were"));
            let run = || -> Result<Var> {
                let teacher = of_teacher[0].linear(&of_teacher[1], None)?;
                softened_kl(input.linear(weight, None)?, teacher, &ignored, temperature)
            };
            Ok(vec![run().map_err(NnError::into_autograd)?])
        };
        let inputs = vec![input.clone().narrow(0, first, len)?, weight.clone()];
        let own = pass.segment_many(&SavedPolicy::Recompute, inputs, segment)?;
        let own = own.into_iter().next().expect("one output");
        sum = Some(match sum {
            Some(sum) => sum.add(own)?,
            None => own,
        });
    }
    Ok(sum.expect("one chunk or more"))
}
