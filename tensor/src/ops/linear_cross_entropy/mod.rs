//! A linear layer and the cross-entropy of its results in one, by chunks of rows: the logits of
//! all rows, which can be the largest tensor of a language model, never exist. After Hsu et al.,
//! "Liger Kernel: efficient Triton kernels for LLM training" (2024).
//!
//! x: [N, D], w: [V, D], b: [V], labels: [N] of i64.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;

use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::dtype::{DType, for_each_float};
use crate::error::{Result, TensorError};
use crate::launch::{Kernel, Operands};
use crate::spec::DeviceKind;
use crate::tensor::Tensor;

/// The meaning of labels in [`Tensor::linear_cross_entropy`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearCrossEntropyOptions {
    /// Rows with this label do not count.
    pub ignore_index: i64,
    /// The part of the target that is spread over all classes evenly; 0 for none.
    pub label_smoothing: f64,
}

impl Default for LinearCrossEntropyOptions {
    fn default() -> Self {
        LinearCrossEntropyOptions { ignore_index: -100, label_smoothing: 0.0 }
    }
}

/// The results of [`Tensor::linear_cross_entropy`]; in f32 for the half types.
#[derive(Clone, Debug)]
pub struct LinearCrossEntropy {
    /// The sum of the losses of the rows that count, without dimensions.
    pub sum: Tensor,
    /// The number of rows that count, without dimensions.
    pub count: Tensor,
}

/// Bytes of the workspace: the logits of one chunk of rows, and their losses. On the processor no
/// more than twice x where there are many rows, and a few rows of logits where there are not; on an
/// NVIDIA device up to 128 MiB of logits in f32 where that is more, and the losses of all rows.
pub fn linear_cross_entropy_workspace_bytes(
    kind: DeviceKind,
    [rows, dim, classes]: [usize; 3],
    dtype: DType,
) -> usize {
    let chunk = Sizes { rows, dim, classes }.chunk(kind);
    let losses = if kind == DeviceKind::Cuda { rows } else { chunk.rows };
    let len = chunk.rows.saturating_mul(chunk.row_len).saturating_add(losses);
    len.saturating_mul(dtype.computed().size_bytes())
}

/// The gradients of w and b, which are added to.
struct WeightGradients<'a> {
    dw: &'a Tensor,
    db: Option<&'a Tensor>,
}

/// N, D and V.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    rows: usize,
    dim: usize,
    classes: usize,
}

/// The rows whose logits are held at once.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    rows: usize,
    /// Elements from the logits of one row to the logits of the next.
    row_len: usize,
}

impl Sizes {
    /// Rows whose logits take the bytes of x, but enough rows for products to be efficient.
    fn chunk(self, kind: DeviceKind) -> Chunk {
        const ROWS_MIN: usize = 128;
        /// Each chunk reads all weights and adds to all their gradients: on a fast device that
        /// takes as long as the products of some hundred rows. So there are few.
        const CUDA_CHUNKS: usize = 8;
        /// Logits of a chunk.
        const CUDA_LEN_MAX: usize = 1 << 25;
        /// The library's kernels for tensor cores need rows that begin at multiples of 16 bytes.
        const CUDA_ALIGNMENT: usize = 4;
        let Sizes { rows, dim, classes } = self;
        let chunk_count = classes.div_ceil(dim.max(1)).max(1);
        let chunk_rows = rows.div_ceil(chunk_count).max(ROWS_MIN);
        match kind {
            DeviceKind::Cpu => Chunk { rows: chunk_rows.min(rows), row_len: classes },
            DeviceKind::Cuda => {
                let row_len = classes.next_multiple_of(CUDA_ALIGNMENT);
                let few_chunks = rows.div_ceil(CUDA_CHUNKS).min(CUDA_LEN_MAX / row_len);
                let few_chunks = few_chunks / ROWS_MIN * ROWS_MIN;
                Chunk { rows: chunk_rows.max(few_chunks).min(rows), row_len }
            }
        }
    }
}

struct LinearCrossEntropyKernel {
    op: &'static str,
    sizes: Sizes,
    options: LinearCrossEntropyOptions,
    dtype: DType,
    has_bias: bool,
    has_gradients: bool,
    /// True if the gradients of w and perhaps of b are computed.
    has_weight_gradient: bool,
}

impl Kernel for LinearCrossEntropyKernel {
    fn name(&self) -> &'static str {
        self.op
    }

    fn cost(&self) -> Cost {
        let Sizes { rows, dim, classes } = self.sizes;
        let products = [true, self.has_gradients, self.has_weight_gradient];
        let passes = products.into_iter().filter(|&is_there| is_there).count() as f64;
        let elements = rows * dim + classes * dim;
        Cost {
            class: OpClass::Product,
            flops: passes * 2.0 * (rows * dim * classes) as f64,
            bytes: passes * (elements * self.dtype.size_bytes()) as f64,
        }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let (op, classes) = (self.name(), self.sizes.classes);
        let is_wide = self.has_weight_gradient && operands.write_dtype(5) != self.dtype;
        let labels = operands.read::<i64>(2).slice();
        let outcome = for_each_float!(self.dtype, E as T => if is_wide {
            cpu::run::<T, E, T>(cpu, &self, operands)
        } else {
            cpu::run::<T, E, E>(cpu, &self, operands)
        });
        outcome.map_err(|position| {
            let (label, class_count) = (labels[position], classes);
            TensorError::Label { op, position, label, class_count }
        })
    }
}

impl LinearCrossEntropyKernel {
    fn new(
        op: &'static str,
        [x, w, labels]: [&Tensor; 3],
        b: Option<&Tensor>,
        options: &LinearCrossEntropyOptions,
    ) -> Result<Self> {
        if !x.dtype().is_float() {
            return Err(TensorError::DType { op, left: x.dtype(), right: DType::F32 });
        }
        x.check_dtype(op, w)?;
        if labels.dtype() != DType::I64 {
            return Err(TensorError::DType { op, left: labels.dtype(), right: DType::I64 });
        }
        let (&[rows, dim], &[classes, w_dim]) = (&**x.shape(), &**w.shape()) else {
            return Err(TensorError::Shape { op, left: *x.shape(), right: *w.shape() });
        };
        if dim != w_dim || classes == 0 {
            return Err(TensorError::Shape { op, left: *x.shape(), right: *w.shape() });
        }
        labels.check_shape(op, [rows])?;
        if let Some(b) = b {
            x.check_dtype(op, b)?;
            b.check_shape(op, [classes])?;
        }
        let sizes = Sizes { rows, dim, classes };
        let (dtype, has_bias) = (x.dtype(), b.is_some());
        let (has_gradients, has_weight_gradient) = (false, false);
        Ok(Self {
            op,
            sizes,
            options: *options,
            dtype,
            has_bias,
            has_gradients,
            has_weight_gradient,
        })
    }

    /// Allocates the logits of one chunk and the losses of its rows.
    fn workspace(&self, like: &Tensor) -> Result<[Tensor; 2]> {
        let (device, dtype) = (like.device(), self.dtype.computed());
        let chunk = self.sizes.chunk(device.kind());
        // An NVIDIA device adds up the losses of all rows at the end.
        let is_cuda = device.kind() == DeviceKind::Cuda;
        let loss_count = if is_cuda { self.sizes.rows } else { chunk.rows };
        Ok([
            Tensor::workspace(device, chunk.rows * chunk.row_len, dtype)?,
            Tensor::workspace(device, loss_count, dtype)?,
        ])
    }
}

impl Tensor {
    /// The cross-entropy of `x wᵀ + b` with `labels`, for `self = x`, summed over the rows whose
    /// label is not the ignored one. With smoothing ε, a row's loss is
    /// `lse(z) - (1 - ε) · z[label] - ε / V · Σ z`, as in PyTorch.
    ///
    /// Memory never holds more logits than [`linear_cross_entropy_workspace_bytes`] says.
    ///
    /// # Shapes
    /// `x: [N, D], w: [V, D], b: [V], labels: [N] → [], []`
    ///
    /// # Errors
    /// `Label` for a label that is neither a class nor the ignored one, `Shape`, `DType`,
    /// `OutOfMemory`.
    #[track_caller]
    pub fn linear_cross_entropy(
        &self,
        w: &Tensor,
        b: Option<&Tensor>,
        labels: &Tensor,
        options: &LinearCrossEntropyOptions,
    ) -> Result<LinearCrossEntropy> {
        let op = "linear_cross_entropy";
        let kernel = LinearCrossEntropyKernel::new(op, [self, w, labels], b, options)?;
        let (device, dtype) = (self.device(), self.dtype().computed());
        let (labels, b) = (labels.contiguous()?, b.map(Tensor::contiguous).transpose()?);
        let sum = Tensor::empty(device, [], dtype)?;
        let count = Tensor::empty(device, [], dtype)?;
        let [logits, losses] = kernel.workspace(self)?;
        #[cfg(feature = "cuda")]
        if device.kind() == DeviceKind::Cuda {
            let writes = [&sum, &count, &logits, &losses];
            kernel.launch_chunks([self, w, &labels], b.as_ref(), None, writes)?;
            return Ok(LinearCrossEntropy { sum, count });
        }
        let reads: Vec<&Tensor> = [self, w, &labels].into_iter().chain(b.as_ref()).collect();
        device.launch(kernel, &reads, &[&sum, &count, &logits, &losses])?;
        Ok(LinearCrossEntropy { sum, count })
    }

    /// [`Tensor::linear_cross_entropy`] and, in the same pass, its gradients times `dy`, the
    /// gradient of the sum. The gradient of x is returned; the gradients of w and b are added to
    /// `dw` and `db`. As a backward pass it computes the logits a second time; where `dy` is known
    /// beforehand (1, or a loss scale over the count), it is both passes in one.
    ///
    /// `dw` and `db` have x's type, or f32 where that is a half type: a sum in a half type loses
    /// the terms of many chunks.
    ///
    /// # Errors
    /// As [`Tensor::linear_cross_entropy`], `Frozen`, `Overlap`.
    #[track_caller]
    #[expect(clippy::too_many_arguments, reason = "the operands and destinations of one loss")]
    pub fn linear_cross_entropy_gradients(
        &self,
        w: &Tensor,
        b: Option<&Tensor>,
        labels: &Tensor,
        options: &LinearCrossEntropyOptions,
        dy: &Tensor,
        dw: &mut Tensor,
        db: Option<&mut Tensor>,
    ) -> Result<(LinearCrossEntropy, Tensor)> {
        let op = "linear_cross_entropy_gradients";
        let dtype = self.dtype().computed();
        dw.check_shape(op, *w.shape())?;
        if dw.dtype() != self.dtype() && dw.dtype() != dtype {
            return Err(TensorError::DType { op, left: dw.dtype(), right: self.dtype() });
        }
        if let Some(db) = &db {
            db.check_shape(op, [w.shape()[0]])?;
            dw.check_dtype(op, db)?;
        }
        let of_weight = WeightGradients { dw: &*dw, db: db.as_deref() };
        self.with_gradients(op, [w, labels, dy], b, options, Some(of_weight))
    }

    /// [`Tensor::linear_cross_entropy_gradients`] with the gradient of x alone, where w and b are
    /// frozen: nothing of w's size is made.
    ///
    /// # Errors
    /// As [`Tensor::linear_cross_entropy`].
    #[track_caller]
    pub fn linear_cross_entropy_input_gradient(
        &self,
        w: &Tensor,
        b: Option<&Tensor>,
        labels: &Tensor,
        options: &LinearCrossEntropyOptions,
        dy: &Tensor,
    ) -> Result<(LinearCrossEntropy, Tensor)> {
        let op = "linear_cross_entropy_input_gradient";
        self.with_gradients(op, [w, labels, dy], b, options, None)
    }

    /// The loss, and the gradient of x. The gradients of w and perhaps of b are added to the
    /// tensors that are given.
    #[track_caller]
    fn with_gradients(
        &self,
        op: &'static str,
        [w, labels, dy]: [&Tensor; 3],
        b: Option<&Tensor>,
        options: &LinearCrossEntropyOptions,
        of_weight: Option<WeightGradients<'_>>,
    ) -> Result<(LinearCrossEntropy, Tensor)> {
        let mut kernel = LinearCrossEntropyKernel::new(op, [self, w, labels], b, options)?;
        (kernel.has_gradients, kernel.has_weight_gradient) = (true, of_weight.is_some());
        let (device, dtype) = (self.device(), self.dtype().computed());
        dy.check_shape(op, [])?;
        if dy.dtype() != dtype {
            return Err(TensorError::DType { op, left: dy.dtype(), right: dtype });
        }
        let (dw, db) = match of_weight {
            Some(WeightGradients { dw, db }) => (Some(dw), db),
            None => (None, None),
        };
        let reads = [Some(self), Some(w), Some(labels), b, Some(dy)];
        let reads: Vec<&Tensor> = reads.into_iter().flatten().collect();
        let gradients: Vec<&Tensor> = [dw, db].into_iter().flatten().collect();
        device.check_launch(op, &reads, &gradients)?;
        let (labels, b) = (labels.contiguous()?, b.map(Tensor::contiguous).transpose()?);
        let sum = Tensor::empty(device, [], dtype)?;
        let count = Tensor::empty(device, [], dtype)?;
        let dx = Tensor::empty(device, *self.shape(), self.dtype())?;
        let [logits, losses] = kernel.workspace(self)?;
        #[cfg(feature = "cuda")]
        if device.kind() == DeviceKind::Cuda {
            let gradients = cuda::Gradients { dy, dx: &dx, dw, db };
            let writes = [&sum, &count, &logits, &losses];
            kernel.launch_chunks([self, w, &labels], b.as_ref(), Some(&gradients), writes)?;
            return Ok((LinearCrossEntropy { sum, count }, dx));
        }
        let reads = [Some(self), Some(w), Some(&labels), b.as_ref(), Some(dy)];
        let reads: Vec<&Tensor> = reads.into_iter().flatten().collect();
        let mut writes = vec![&sum, &count, &logits, &losses, &dx];
        writes.extend([dw, db].into_iter().flatten());
        device.launch(kernel, &reads, &writes)?;
        Ok((LinearCrossEntropy { sum, count }, dx))
    }
}
