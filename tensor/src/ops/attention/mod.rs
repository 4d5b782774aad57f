//! Scaled dot-product attention that never stores the weights of all pairs. Keys are read in
//! blocks; when a larger score turns up, the earlier sums are rescaled. Milakov and Gimelshein,
//! "Online normalizer calculation for softmax" (2018); Dao, Fu, Ermon, Rudra and Ré,
//! "FlashAttention: fast and memory-efficient exact attention with IO-awareness" (2022).
//!
//! q: [B, H, T, D], k: [B, G, S, D], v: [B, G, S, E], y: [B, H, T, E]; G divides H, and each head
//! of k and v serves H / G consecutive heads of q.

mod backward;
mod block;
#[cfg(feature = "cuda")]
mod cuda;
mod forward;

use std::fmt::{self, Display};

use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::device::Device;
use crate::dtype::{DType, for_each_float};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::layout::Shape;
use crate::ops::workspace::Workspace;
use crate::random::RandomKey;
use crate::spec::DeviceKind;
use crate::tensor::Tensor;
use block::{Heads, Mask, Problem, Sizes, Source};

/// The causal mask: the keys that a query may see because of its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Causal {
    /// Every key.
    #[default]
    No,
    /// Query `i` sees keys `0..=i`: PyTorch's `is_causal`.
    UpperLeft,
    /// The last query sees all keys, the query before it all keys but the last, and so on: for
    /// queries that continue a sequence with cached keys. Equals `UpperLeft` where lengths are
    /// equal.
    LowerRight,
}

/// Dropout of weights: some are set to 0 at random, the others are scaled up to keep the mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionDropout {
    /// The stream of random words. Word `j % 4` of block `i * ceil(S / 4) + j / 4` decides the
    /// weight of query `i` (counted over samples, heads and queries) and key `j`.
    pub key: RandomKey,
    /// The probability that a weight becomes 0, with 32 bits of precision.
    pub probability: f64,
    /// Index of the first sample of q in the whole batch, so that a part of the batch drops the
    /// same weights as the whole batch.
    pub first_sample: u64,
}

/// The options of [`Tensor::attention`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AttentionOptions {
    /// The causal mask. `mask` may hide further keys.
    pub causal: Causal,
    /// Factor of the scores; `1 / sqrt(D)` if absent.
    pub scale: Option<f64>,
    /// Dropout of weights, if any.
    pub dropout: Option<AttentionDropout>,
}

impl AttentionOptions {
    /// Factor of the scores.
    fn factor(&self, dim: usize) -> f64 {
        self.scale.unwrap_or_else(|| 1.0 / (dim as f64).sqrt())
    }
}

/// The results of [`Tensor::attention`].
#[derive(Clone, Debug)]
pub struct Attention {
    /// The weighted sums of v.
    pub y: Tensor,
    /// `ln Σ_j exp(score[i, j])`, in f32 for the half types. Backward needs nothing else beside the
    /// operands. -∞ where a query sees no key.
    pub log_sum_exp: Tensor,
}

/// Bytes of scratch memory of attention and its gradients, beside the results. A processor takes a
/// few blocks for each thread, and for backward also dq of the heads that share a key. An NVIDIA
/// device takes nothing for forward and one number for each query for backward. All grow linearly
/// with the lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionWorkspace {
    /// Bytes of [`Tensor::attention`].
    pub forward_bytes: usize,
    /// Bytes of [`Tensor::attention_backward`].
    pub backward_bytes: usize,
}

impl AttentionWorkspace {
    /// The workspace of attention over q, k and v of these shapes and `dtype` on `device`.
    ///
    /// # Errors
    /// The errors of [`Tensor::attention`].
    pub fn of(device: &Device, shapes: [Shape; 3], dtype: DType) -> Result<Self> {
        let op = "attention";
        let sizes = sizes(op, shapes)?;
        if !dtype.is_float() {
            return Err(TensorError::DType { op, left: dtype, right: DType::F32 });
        }
        let [forward_bytes, backward_bytes] =
            workspace_lens(device, &sizes, dtype).map(|len| len * dtype.computed().size_bytes());
        Ok(AttentionWorkspace { forward_bytes, backward_bytes })
    }
}

impl Display for AttentionWorkspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AttentionWorkspace { forward_bytes, backward_bytes } = self;
        write!(f, "forward {forward_bytes} B, backward {backward_bytes} B")
    }
}

/// Elements of scratch for forward and backward. On a processor each working thread has its own
/// scratch. An NVIDIA device needs Σ dy·y of each query for backward.
fn workspace_lens(device: &Device, sizes: &Sizes, dtype: DType) -> [usize; 2] {
    if device.kind() == DeviceKind::Cuda {
        return [0, sizes.batch * sizes.heads * sizes.queries];
    }
    let is_half = dtype != dtype.computed();
    let threads = |tasks: usize| device.threads().min(tasks).max(1);
    [
        threads(forward::task_count(sizes)) * forward::scratch_len(sizes, is_half),
        threads(backward::task_count(sizes)) * backward::scratch_len(sizes, is_half),
    ]
}

/// The sizes of attention over q, k and v.
///
/// # Errors
/// `Shape` if the shapes do not match.
fn sizes(op: &'static str, [q, k, v]: [Shape; 3]) -> Result<Sizes> {
    let mismatch = |left, right| Err(TensorError::Shape { op, left, right });
    let &[batch, heads, queries, dim] = &*q else { return mismatch(q, k) };
    let &[k_batch, groups, keys, k_dim] = &*k else { return mismatch(q, k) };
    let &[v_batch, v_groups, v_keys, v_dim] = &*v else { return mismatch(q, v) };
    let divides = if groups == 0 { heads == 0 } else { heads.is_multiple_of(groups) };
    if k_batch != batch || k_dim != dim || !divides {
        return mismatch(q, k);
    }
    if [v_batch, v_groups, v_keys] != [batch, groups, keys] {
        return mismatch(k, v);
    }
    Ok(Sizes { batch, heads, groups, queries, keys, dim, v_dim })
}

/// The sizes, options and element type of both directions.
#[derive(Clone, Copy)]
struct Launch {
    sizes: Sizes,
    options: AttentionOptions,
    dtype: DType,
}

impl Launch {
    fn new(
        op: &'static str,
        [q, k, v]: [&Tensor; 3],
        mask: Option<&Tensor>,
        options: &AttentionOptions,
    ) -> Result<Self> {
        if !q.dtype().is_float() {
            return Err(TensorError::DType { op, left: q.dtype(), right: DType::F32 });
        }
        q.check_dtype(op, k)?;
        q.check_dtype(op, v)?;
        let sizes = sizes(op, [*q.shape(), *k.shape(), *v.shape()])?;
        if let Some(mask) = mask
            && mask.dtype() != DType::Bool
        {
            q.check_dtype(op, mask)?;
        }
        Ok(Launch { sizes, options: *options, dtype: q.dtype() })
    }

    fn mask(&self, op: &'static str, mask: Option<&Tensor>) -> Result<Option<Tensor>> {
        let Sizes { batch, heads, queries, keys, .. } = self.sizes;
        let right = Shape::new(&[batch, heads, queries, keys]);
        let expanded = |mask: &Tensor| {
            let left = *mask.shape();
            mask.expand(right).map_err(|_| TensorError::Shape { op, left, right })
        };
        mask.map(expanded).transpose()
    }

    /// The cost of `count` kinds of products over all pairs, and of reading the operands once.
    fn cost(&self, count: usize) -> Cost {
        let Sizes { batch, heads, groups, queries, keys, dim, v_dim } = self.sizes;
        let share = if self.options.causal == Causal::No { 1.0 } else { 0.5 };
        let pairs = share * (batch * heads * queries * keys) as f64;
        let elements = batch * (heads * queries + groups * keys) * (dim + v_dim);
        Cost {
            class: OpClass::Attention,
            flops: pairs * (count * (dim + v_dim)) as f64,
            bytes: (elements * count * self.dtype.size_bytes()) as f64,
        }
    }

    fn problem<'a, E: crate::dtype::Element>(
        &self,
        operands: &Operands<'a>,
        mask: Option<usize>,
    ) -> Problem<'a, E> {
        let of = |index: usize| Source::new(operands.read::<E>(index));
        let mask = match mask {
            None => Mask::None,
            Some(index) if operands.read_dtype(index) == DType::Bool => {
                Mask::Keep(Source::new(operands.read(index)))
            }
            Some(index) => Mask::Add(of(index)),
        };
        Problem { sizes: self.sizes, options: self.options, q: of(0), k: of(1), v: of(2), mask }
    }
}

struct Forward(Launch);

impl FullKernel for Forward {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn cost(&self) -> Cost {
        self.0.cost(2)
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let mask = (operands.read_count() > 3).then_some(3);
        let pool = cpu.pool();
        for_each_float!(self.0.dtype, E as T => {
            let problem = self.0.problem::<E>(operands, mask);
            let y = operands.write::<E>(0).slice();
            let [lse, scratch] = [1, 2].map(|index| operands.write::<T>(index).slice());
            forward::forward(pool, &problem, y, lse, scratch);
        });
        Ok(())
    }
}

struct Backward(Launch);

impl FullKernel for Backward {
    fn name(&self) -> &'static str {
        "attention_backward"
    }

    fn cost(&self) -> Cost {
        self.0.cost(5)
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let mask = (operands.read_count() > 6).then_some(6);
        let pool = cpu.pool();
        for_each_float!(self.0.dtype, E as T => {
            let problem = self.0.problem::<E>(operands, mask);
            let [y, dy] = [3, 4].map(|index| Source::new(operands.read::<E>(index)));
            let lse = operands.read::<T>(5).slice();
            let [dq, dk, dv] = [0, 1, 2].map(|index| operands.write::<E>(index).slice());
            let scratch = operands.write::<T>(3).slice();
            backward::backward(pool, &problem, [y, dy], lse, [dq, dk, dv], scratch);
        });
        Ok(())
    }
}

impl Tensor {
    /// `softmax(scale · q kᵀ + mask) v` for each head, for `self = q`. Scratch memory is a few
    /// blocks for each thread, so memory is linear in the lengths.
    ///
    /// A `Bool` mask says which keys count; a mask of q's type is added to the scores. Masks
    /// broadcast to `[B, H, T, S]`. Where a query sees no key, y is 0, as in PyTorch, and so are
    /// the gradients. The half types are computed in f32. Tensor cores take weights and gradients
    /// of scores rounded to the half type.
    ///
    /// # Shapes
    /// `q: [B, H, T, D], k: [B, G, S, D], v: [B, G, S, E] → [B, H, T, E], [B, H, T]`, where G
    /// divides H. Operands may have any strides; none is copied.
    ///
    /// # Errors
    /// `Shape`, `DType` (all the same float type), `OutOfMemory`.
    #[track_caller]
    pub fn attention(
        &self,
        k: &Tensor,
        v: &Tensor,
        mask: Option<&Tensor>,
        options: &AttentionOptions,
    ) -> Result<Attention> {
        let op = "attention";
        let launch = Launch::new(op, [self, k, v], mask, options)?;
        let mask = launch.mask(op, mask)?;
        let Sizes { batch, heads, queries, v_dim, .. } = launch.sizes;
        let device = self.device();
        let y = Tensor::empty(device, [batch, heads, queries, v_dim], self.dtype())?;
        let lse_dtype = self.dtype().computed();
        let log_sum_exp = Tensor::empty(device, [batch, heads, queries], lse_dtype)?;
        let [workspace_len, _] = workspace_lens(device, &launch.sizes, launch.dtype);
        let workspace = Workspace::new(lse_dtype, [workspace_len]);
        let reads: Vec<&Tensor> = [self, k, v].into_iter().chain(mask.as_ref()).collect();
        device.launch_with(&workspace, Forward(launch), &reads, &[&y, &log_sum_exp])?;
        Ok(Attention { y, log_sum_exp })
    }

    /// The gradients of q, k and v through [`Tensor::attention`], for `self = dy`. The weights p
    /// are recomputed from the scores and `log_sum_exp`:
    /// `ds = p · (dy vᵀ - Σ dy·y)`, `dq = scale · ds k`, `dk = scale · dsᵀ q`, `dv = pᵀ dy`.
    ///
    /// The workspace holds, for each thread, dq of the heads that share a key, and a few blocks.
    /// Each thread takes some of the heads of k and v.
    ///
    /// # Errors
    /// As [`Tensor::attention`].
    #[track_caller]
    pub fn attention_backward(
        &self,
        [q, k, v]: [&Tensor; 3],
        mask: Option<&Tensor>,
        found: &Attention,
        options: &AttentionOptions,
    ) -> Result<[Tensor; 3]> {
        let op = "attention_backward";
        let launch = Launch::new(op, [q, k, v], mask, options)?;
        let mask = launch.mask(op, mask)?;
        let Sizes { batch, heads, queries, v_dim, .. } = launch.sizes;
        let Attention { y, log_sum_exp } = found;
        for tensor in [self, y] {
            tensor.check_shape(op, [batch, heads, queries, v_dim])?;
            tensor.check_dtype(op, q)?;
        }
        log_sum_exp.check_shape(op, [batch, heads, queries])?;
        let lse_dtype = q.dtype().computed();
        if log_sum_exp.dtype() != lse_dtype {
            return Err(TensorError::DType { op, left: log_sum_exp.dtype(), right: lse_dtype });
        }
        let (device, lse) = (self.device(), log_sum_exp.contiguous()?);
        let of = |x: &Tensor| Tensor::empty(device, *x.shape(), x.dtype());
        let gradients = [of(q)?, of(k)?, of(v)?];
        let [_, workspace_len] = workspace_lens(device, &launch.sizes, launch.dtype);
        let workspace = Workspace::new(lse_dtype, [workspace_len]);
        let reads = [q, k, v, y, self, &lse].into_iter().chain(mask.as_ref());
        let reads: Vec<&Tensor> = reads.collect();
        device.launch_with(&workspace, Backward(launch), &reads, &gradients.each_ref())?;
        Ok(gradients)
    }
}

/// The head of q with index `row` over the whole batch, and the head of k and v that serves it.
fn heads_of(sizes: &Sizes, row: usize) -> Heads {
    let (b, h) = (row / sizes.heads, row % sizes.heads);
    Heads { b, h, g: h / (sizes.heads / sizes.groups) }
}
