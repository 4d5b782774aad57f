//! Losses that are put together from operations.

use lowtide_autograd::Var;
use lowtide_tensor::{Shape, Tensor, TensorError};

use crate::error::Result;
use crate::loss::{Loss, counted};
use crate::optim::check_option;

/// How [`nll`] reads labels; PyTorch's defaults.
#[derive(Clone, Copy, Debug)]
pub struct NllOptions<'a> {
    /// Targets with this value do not count.
    pub ignore_index: i64,
    /// A factor for each class: `[C]`, of the input's type.
    pub weight: Option<&'a Tensor>,
}

impl Default for NllOptions<'_> {
    fn default() -> Self {
        NllOptions { ignore_index: -100, weight: None }
    }
}

/// `-x[label]` of logarithms x of probabilities, summed over the batch, `torch.nn.NLLLoss`. The
/// count is the sum of the weights of the labels. [`crate::cross_entropy`] takes the logarithm as
/// well, and keeps less.
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

/// `1 - cos(a, b)` where the target is 1 and `max(0, cos(a, b) - margin)` where it is -1, summed
/// over the batch, `torch.nn.CosineEmbeddingLoss`. As there,
/// `cos(a, b) = Σ a·b / √((Σ a² + ε) · (Σ b² + ε))` with ε = 1e-12.
///
/// # Shapes
/// `a, b: [N, D]`, `target: [N]` of a's type
///
/// # Errors
/// `Shape`, `DType`, `OutOfMemory`; `Option` for a margin outside `[-1, 1]`.
pub fn cosine_embedding(a: Var, b: Var, target: &Tensor, margin: f64) -> Result<Loss> {
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
    let sum = alike.mul(pass.constant(is_alike?))?.add(apart.mul(pass.constant(is_apart?))?)?;
    counted(left[0], sum.sum_all()?)
}

/// `1 - (2 Σ p·t + s) / (Σ p + Σ t + s)` of each sample's and class's probabilities p and targets
/// t, summed over samples and classes (Milletari, Navab and Ahmadi, "V-Net", 2016, without
/// squares). A smoothing s of 1 is usual; it makes an empty target that was found to be so count
/// as 0. The count is that of samples and classes.
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
