//! A linear layer and the cross-entropy of its results in one operation, by chunks of rows. The
//! logits of all rows, which can be the largest tensor of a language model, never exist. After Hsu
//! et al., "Liger Kernel: efficient Triton kernels for LLM training" (2024).
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

/// The interpretation of labels in [`Tensor::linear_cross_entropy`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearCrossEntropyOptions {
    /// Rows with this label do not count.
    pub ignore_index: i64,
    /// The fraction of the target that is spread evenly over all classes; 0 for none.
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

/// Bytes of the workspace: the logits of one chunk of rows, and their losses. On a processor at
/// most twice the bytes of x if there are many rows, and the logits of a few rows otherwise. On an
/// NVIDIA device up to 128 MiB of logits in f32 if that is more, and the losses of all rows.
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

/// The gradients of w and b; the kernel adds to them.
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

/// The rows whose logits are in memory at once.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    rows: usize,
    /// Elements between the logits of neighbouring rows.
    row_len: usize,
}

impl Sizes {
    /// A chunk whose logits take about the bytes of x, with enough rows for efficient products.
    fn chunk(self, kind: DeviceKind) -> Chunk {
        const ROWS_MIN: usize = 128;
        /// Largest number of chunks on a fast device. Each chunk reads all weights and adds to all
        /// their gradients, which takes as long as the products of some hundred rows.
        const CUDA_CHUNKS: usize = 8;
        /// Largest number of logits of a chunk.
        const CUDA_LEN_MAX: usize = 1 << 25;
        /// Alignment of rows in elements: the library's kernels for tensor cores need multiples of
        /// 16 bytes.
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
    /// Memory never holds more logits than [`linear_cross_entropy_workspace_bytes`] accounts for.
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
    /// gradient of the sum. Returns the gradient of x; adds the gradients of w and b to `dw` and
    /// `db`. As a backward pass, this method computes the logits a second time. If `dy` is known
    /// beforehand (1, or a loss scale over the count), a single call is both passes.
    ///
    /// `dw` and `db` have x's type, or f32 if x is of a half type: a sum over many chunks in a half
    /// type loses terms.
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

    /// [`Tensor::linear_cross_entropy_gradients`] with the gradient of x alone, for frozen w and b.
    /// Nothing of w's size is allocated.
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

    /// The loss, and the gradient of x. Adds the gradients of w and perhaps of b to the given
    /// tensors.
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
