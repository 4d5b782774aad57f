//! Which operation runs in which type: PyTorch's lists for CUDA (`ATen/autocast_mode.h` of 2.15),
//! under the names of the operations of `lowtide-autograd` and `lowtide-nn`.

use lowtide_autograd::CastPolicy;
use lowtide_tensor::DType;

/// Products, which gain most and bear it, for their sums are f32 inside. PyTorch's
/// `AT_FORALL_LOWER_PRECISION_FP`, and what is one operation here and several there.
pub(crate) const NARROW: [&str; 18] = [
    "addmm",
    "addmv",
    "attention",
    "baddbmm",
    "bmm",
    "conv1d",
    "conv2d",
    "conv_transpose1d",
    "conv_transpose2d",
    "cross_attention",
    "gru",
    "linear",
    "linear_cross_entropy",
    "lstm",
    "matmul",
    "matvec",
    "prelu",
    "self_attention",
];

/// What overflows or cancels in a half type, and long sums. PyTorch's `AT_FORALL_FP32` and
/// `AT_FORALL_FP32_SET_OPT_DTYPE`; the losses are sums here.
pub(crate) const F32: [&str; 34] = [
    "acos",
    "asin",
    "cosh",
    "cross_entropy",
    "cumprod",
    "cumsum",
    "dist",
    "exp",
    "expm1",
    "group_norm",
    "layer_norm",
    "log",
    "log10",
    "log1p",
    "log2",
    "log_softmax",
    "logsumexp",
    "nll_loss",
    "norm",
    "pair_loss",
    "pow",
    "pow_scalar",
    "prod",
    "reciprocal",
    "rms_norm",
    "rsqrt",
    "sinh",
    "soft_cross_entropy",
    "softmax",
    "softplus",
    "sum",
    "sum_to",
    "tan",
    "upsample2d",
];

/// What has its own f32 inside for any type of x; weight and bias follow x.
pub(crate) const LIKE_FIRST: [&str; 2] = ["batch_norm", "batch_norm_fixed"];

/// PyTorch's autocast as a policy of a pass: products in bf16 or f16, what needs range or digits in
/// f32, and everything else in the widest of the types of its inputs. f64 and integers are left
/// alone, and so is an operation that one of the inputs is f64 of.
///
/// Parameters stay f32 and have f32 gradients. Their casts are made once a step, and what
/// operations keep for backward are the casts.
///
/// # Examples
/// ```
/// use lowtide_amp::Autocast;
/// use lowtide_autograd::{Attempt, AutogradResult, LeafId, Pass};
/// use lowtide_tensor::{CpuOptions, DType, Device, RandomKey, Tensor};
///
/// # fn main() -> AutogradResult<()> {
/// let device = Device::cpu(CpuOptions::default())?;
/// let w = Tensor::from_slice(&device, [1, 2], &[0.5_f32, -1.0])?;
/// let x = Tensor::from_slice(&device, [1, 2], &[2.0_f32, 3.0])?;
/// let (leaf, attempt) = (LeafId::new(), Attempt::new());
/// let pass = Pass::train(RandomKey::new(0), &attempt).with_casts(Autocast::bf16());
/// let y = pass.constant(x).linear(pass.leaf(leaf, &w)?, None)?;
/// assert_eq!(y.value().dtype(), DType::BF16);
/// let loss = y.sum_all()?;
/// assert_eq!(loss.value().dtype(), DType::F32);
/// pass.backward(loss)?;
/// assert_eq!(attempt.into_gradients().get(leaf).unwrap().to_vec::<f32>()?, [2.0, 3.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Autocast {
    narrow: DType,
}

impl Autocast {
    /// Products in bf16: the range of f32, so that losses need no scaling, and 8 binary digits.
    #[must_use]
    pub const fn bf16() -> Self {
        Autocast { narrow: DType::BF16 }
    }

    /// Products in f16: 11 binary digits, and a range that gradients leave below and above unless
    /// a [`LossScaler`](crate::LossScaler) keeps them in it.
    #[must_use]
    pub const fn f16() -> Self {
        Autocast { narrow: DType::F16 }
    }
}

impl CastPolicy for Autocast {
    fn dtype(&self, op: &str, inputs: &[DType]) -> Option<DType> {
        let mut floats = inputs.iter().copied().filter(|dtype| dtype.is_float());
        let first = floats.next()?;
        if inputs.contains(&DType::F64) {
            return None;
        }
        if NARROW.contains(&op) {
            return Some(self.narrow);
        }
        if F32.contains(&op) {
            return Some(DType::F32);
        }
        let is_mixed = floats.any(|dtype| dtype != first);
        match is_mixed {
            true if LIKE_FIRST.contains(&op) => Some(first),
            // bf16 and f16 have no wider one between them.
            true => Some(DType::F32),
            false => None,
        }
    }
}
