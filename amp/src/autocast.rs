//! Autocast: the type that each operation runs in. The lists are PyTorch's for CUDA
//! (`ATen/autocast_mode.h` of 2.15), under the names that `lowtide-autograd` and `lowtide-nn` give
//! the operations.

use lowtide_autograd::CastPolicy;
use lowtide_tensor::DType;

/// Operations in the half type: products, which gain most from it and sum in f32 inside. The list
/// is PyTorch's `AT_FORALL_LOWER_PRECISION_FP`, with operations that PyTorch composes of several.
const NARROW: &[&str] = &[
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

/// Operations in f32: functions that overflow or cancel in a half type, and long sums. The list is
/// PyTorch's `AT_FORALL_FP32` and `AT_FORALL_FP32_SET_OPT_DTYPE`; losses are sums here.
const F32: &[&str] = &[
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

/// Operations in the type of their first input, which compute in f32 inside.
const LIKE_FIRST: &[&str] = &["batch_norm", "batch_norm_fixed"];

/// PyTorch's autocast as a policy of a pass.
///
/// Products run in bf16 or f16. Operations that need the range or the digits run in f32. Every
/// other operation runs in the widest type of its inputs. Integers are not converted, and
/// operations with an f64 input run as they are.
///
/// Parameters stay f32 and have f32 gradients. Each parameter is converted once per step, and
/// operations keep the converted tensors for backward.
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
    /// Products in bf16, which has 8 binary digits. Losses need no scaling, because bf16 has the
    /// range of f32.
    #[must_use]
    pub const fn bf16() -> Self {
        Autocast { narrow: DType::BF16 }
    }

    /// Products in f16, which has 11 binary digits. Its range is small: gradients overflow or round
    /// to zero unless a [`LossScaler`](crate::LossScaler) scales the loss.
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
        if floats.all(|dtype| dtype == first) {
            return None;
        }
        // f32 is the widest type here, and the smallest one that holds both bf16 and f16.
        Some(if LIKE_FIRST.contains(&op) { first } else { DType::F32 })
    }
}
