//! Matrix products, single or batched. Operands may have any strides and are not copied. Products
//! allocate nothing but their results, and use up to 500 KB of a thread's stack. On an NVIDIA
//! device, a library gets scratch memory if a product is too small to keep the whole device busy,
//! see [`library_workspace_bytes`].
//!
//! a: [.., M, K], b: [.., K, N], y: [.., M, N].

pub(crate) mod addend;
#[cfg(feature = "cuda")]
mod cuda;

use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::cpu::gemm::{Batch, Matrix, MatrixMut, gemm_batched};
use crate::cpu::math::SimdFloat;
use crate::dtype::{DType, Element, for_each_float};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::layout::{Layout, RANK_MAX, Shape};
use crate::operand_view::ViewMut;
use crate::ops::workspace::Workspace;
use crate::spec::DeviceKind;
use crate::tensor::Tensor;
use crate::write_mode::WriteMode;

/// The layouts of the operands of a product. All dimensions but the last two are the batch.
struct OperandLayout {
    batch: Batch,
    /// M, K, N.
    size: [usize; 3],
    /// Row and column strides of a, b and y.
    strides: [[usize; 2]; 3],
}

impl OperandLayout {
    /// The layouts have the same batch dimensions, which may be broadcast.
    fn new(a: &Layout, b: &Layout, y: &Layout) -> Self {
        let layouts = [a, b, y];
        let outer = y.shape().len() - 2;
        let strides = layouts.map(|layout| [layout.strides()[outer], layout.strides()[outer + 1]]);
        let batch =
            Batch::new(&y.shape()[..outer], layouts.map(|layout| &layout.strides()[..outer]));
        let size = [a.shape()[outer], a.shape()[outer + 1], b.shape()[outer + 1]];
        OperandLayout { batch, size, strides }.merged()
    }

    /// Counts batch dimensions that only add rows as rows: one large product instead of many. For
    /// such a dimension, b has stride 0, and the next rows of a and y follow the last ones.
    fn merged(mut self) -> Self {
        while let Some((len, [a, b, y])) = self.batch.last() {
            let rows = self.size[0];
            let continues = |stride, k: usize| stride == rows * self.strides[k][0];
            if len != 1 && !(b == 0 && continues(a, 0) && continues(y, 2)) {
                break;
            }
            self.size[0] *= len;
            self.batch = self.batch.without_last();
        }
        self
    }
}

/// y = or += a·b; or y = a·b + bias with the bias added to every row; or, on NVIDIA devices, y =
/// a·b and the sums of the rows of a.
struct MatMul {
    op: &'static str,
    plan: OperandLayout,
    dtype: DType,
    start: WriteMode,
    /// True if the second written tensor is for the sums of the rows of a.
    has_row_sums: bool,
}

impl FullKernel for MatMul {
    fn name(&self) -> &'static str {
        self.op
    }

    fn cost(&self) -> Cost {
        let [m, k, n] = self.plan.size;
        let count = self.plan.batch.len();
        let bytes = (count * (m * k + k * n + m * n) * self.dtype.size_bytes()) as f64;
        Cost { class: OpClass::Product, flops: 2.0 * (count * m * k * n) as f64, bytes }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        if self.has_row_sums {
            return Err(TensorError::NoKernel { op: self.op, device: "cpu" });
        }
        let is_wide = operands.write_dtype(0) != self.dtype;
        for_each_float!(self.dtype, E as T => match is_wide {
            true => self.run::<T, E, T>(cpu, operands),
            false => self.run::<T, E, E>(cpu, operands),
        });
        Ok(())
    }
}

/// Bytes of scratch memory for one launch of a product on an NVIDIA device. If there are fewer
/// tiles than multiprocessors, the library lets several of them work on parts of K and adds up the
/// parts. Devices and libraries would take different amounts. These bytes depend on the sizes
/// alone, so that a plan made without a device is also right on the device. Products in place get
/// no scratch memory, because nothing may be allocated where an optimizer writes.
fn library_workspace_bytes(plan: &OperandLayout) -> usize {
    /// Rows and columns of the library's tiles, and number of multiprocessors of a large device.
    const TILE: usize = 128;
    const PROCESSORS: usize = 132;
    /// The smallest length of a part of K.
    const PART_LEN_MIN: usize = 256;
    /// The workspace that NVIDIA recommends for its largest devices.
    const BYTES_MAX: usize = 32 << 20;
    let [m, k, n] = plan.size;
    let matrices = plan.batch.last().map_or(1, |(len, _)| len);
    let tiles = m.div_ceil(TILE) * n.div_ceil(TILE) * matrices;
    let parts = (PROCESSORS / tiles.max(1)).min(k / PART_LEN_MIN);
    let sums = m * n * matrices * size_of::<f32>();
    if parts < 2 { 0 } else { sums.saturating_mul(parts).min(BYTES_MAX) }
}

impl MatMul {
    /// Launches the product, with scratch memory if the device's library takes some.
    #[track_caller]
    fn launch_with_workspace(self, reads: &[&Tensor], writes: &[&Tensor]) -> Result<()> {
        let device = writes[0].device();
        let bytes = match device.kind() {
            DeviceKind::Cuda => library_workspace_bytes(&self.plan),
            DeviceKind::Cpu => 0,
        };
        let workspace = match bytes {
            0 => Workspace::none(),
            bytes => Workspace::new(DType::U8, [bytes]),
        };
        device.launch_with(&workspace, self, reads, writes).map(drop)
    }

    /// Computes in `T` from operands in `E`, to a destination in `Y`.
    fn run<T: SimdFloat, E: Element, Y: Element>(self, cpu: &Cpu, operands: &mut Operands<'_>) {
        let [a, b] = [0, 1].map(|index| operands.read::<E>(index));
        let y: ViewMut<'_, Y> = operands.write(0);
        let OperandLayout { batch, size, strides } = self.plan;
        let [[a_row, a_col], [b_row, b_col], [row_stride, col_stride]] = strides;
        let has_bias = operands.read_count() > 2;
        let bias = if has_bias { operands.read::<Y>(2).slice() } else { &[] };
        let data = y.into_data();
        let a = Matrix { data: a.data(), row_stride: a_row, col_stride: a_col };
        let b = Matrix { data: b.data(), row_stride: b_row, col_stride: b_col };
        let y = MatrixMut { data, row_stride, col_stride };
        gemm_batched::<T, _, _, _>(cpu.pool(), &batch, size, a, b, bias, self.start, y);
    }
}

impl Tensor {
    /// The matrix product of the last two dimensions, for every index of the leading dimensions,
    /// which broadcast. A vector is a row on the left and a column on the right; the result lacks
    /// that dimension. Operands may have any strides and are not copied. The half types sum in f32.
    ///
    /// # Shapes
    /// `[.., M, K] · [.., K, N] → [.., M, N]`; `[K] · [.., K, N] → [.., N]`;
    /// `[.., M, K] · [K] → [.., M]`; `[K] · [K] → []`
    ///
    /// # Errors
    /// `Shape`, `DType` (both the same float type), `OutOfMemory`.
    #[track_caller]
    pub fn matmul(&self, other: &Tensor) -> Result<Tensor> {
        product("matmul", self, other, None)
    }

    /// One matrix product for each index of the first dimension, without broadcasting.
    ///
    /// # Shapes
    /// `[B, M, K] · [B, K, N] → [B, M, N]`
    ///
    /// # Errors
    /// As [`Tensor::matmul`].
    #[track_caller]
    pub fn bmm(&self, other: &Tensor) -> Result<Tensor> {
        let op = "bmm";
        let (left, right) = (*self.shape(), *other.shape());
        if left.len() != 3 || right.len() != 3 || left[0] != right[0] {
            return Err(TensorError::Shape { op, left, right });
        }
        product(op, self, other, None)
    }

    /// The sum of the products of two vectors.
    ///
    /// # Shapes
    /// `[K] · [K] → []`
    ///
    /// # Errors
    /// As [`Tensor::matmul`].
    #[track_caller]
    pub fn dot(&self, other: &Tensor) -> Result<Tensor> {
        let op = "dot";
        self.check_ranks(op, other, [1, 1])?;
        product(op, self, other, None)
    }

    /// A matrix times a vector.
    ///
    /// # Shapes
    /// `[M, K] · [K] → [M]`
    ///
    /// # Errors
    /// As [`Tensor::matmul`].
    #[track_caller]
    pub fn matvec(&self, vector: &Tensor) -> Result<Tensor> {
        let op = "matvec";
        self.check_ranks(op, vector, [2, 1])?;
        product(op, self, vector, None)
    }

    /// The products of every element of `self` with every element of `other`.
    ///
    /// # Shapes
    /// `[M], [N] → [M, N]`
    ///
    /// # Errors
    /// As [`Tensor::matmul`].
    #[track_caller]
    pub fn outer(&self, other: &Tensor) -> Result<Tensor> {
        let op = "outer";
        self.check_ranks(op, other, [1, 1])?;
        product(op, &self.unsqueeze(1)?, &other.unsqueeze(0)?, None)
    }

    fn check_ranks(&self, op: &'static str, other: &Tensor, ranks: [usize; 2]) -> Result<()> {
        if [self.shape().len(), other.shape().len()] == ranks {
            return Ok(());
        }
        Err(TensorError::Shape { op, left: *self.shape(), right: *other.shape() })
    }

    /// `x wᵀ + b`, a fully connected layer, for `self = x`.
    ///
    /// # Shapes
    /// `x: [.., I], w: [O, I], b: [O] → [.., O]`
    ///
    /// # Errors
    /// As [`Tensor::matmul`].
    #[track_caller]
    pub fn linear(&self, w: &Tensor, b: Option<&Tensor>) -> Result<Tensor> {
        let op = "linear";
        if w.shape().len() != 2 || self.shape().is_empty() {
            return Err(TensorError::Shape { op, left: *self.shape(), right: *w.shape() });
        }
        if let Some(b) = b {
            self.check_dtype(op, b)?;
            b.check_shape(op, [w.shape()[0]])?;
        }
        product(op, self, &w.transpose(0, 1)?, b)
    }

    /// The gradient of the weight of [`Tensor::linear`] for `self = x`: the sum of `dyᵀ x` over all
    /// rows. On NVIDIA devices the same launch computes the gradient of the bias, the sum of the
    /// rows of `dy`; on other devices the second result is `None`.
    ///
    /// # Shapes
    /// `x: [.., I], dy: [.., O] → [O, I], [O]`
    ///
    /// # Errors
    /// As [`Tensor::matmul`].
    #[track_caller]
    pub fn linear_weight_gradient(&self, dy: &Tensor) -> Result<(Tensor, Option<Tensor>)> {
        let op = "linear_weight_gradient";
        let (Some((&inputs, outer)), Some((&outputs, dy_outer))) =
            (self.shape().split_last(), dy.shape().split_last())
        else {
            return Err(TensorError::Shape { op, left: *self.shape(), right: *dy.shape() });
        };
        if outer != dy_outer {
            return Err(TensorError::Shape { op, left: *self.shape(), right: *dy.shape() });
        }
        let count: usize = outer.iter().product();
        let dy_rows = dy.reshape([count, outputs])?.transpose(0, 1)?;
        let x_rows = self.reshape([count, inputs])?;
        let device = self.device();
        if device.kind() == DeviceKind::Cpu {
            return Ok((product(op, &dy_rows, &x_rows, None)?, None));
        }
        let Factors { a, b, .. } = Factors::new(op, &dy_rows, &x_rows)?;
        let dtype = a.dtype();
        let dw = Tensor::empty(device, [outputs, inputs], dtype)?;
        let db = Tensor::empty(device, [outputs], dtype)?;
        let plan = OperandLayout::new(a.layout(), b.layout(), dw.layout());
        let start = WriteMode::Overwrite;
        let kernel = MatMul { op, plan, dtype, start, has_row_sums: true };
        kernel.launch_with_workspace(&[&a, &b], &[&dw, &db])?;
        Ok((dw, Some(db)))
    }

    /// Adds the product `a · b`, as [`Tensor::matmul`] defines it, in place. `self` may be f32 if
    /// `a` and `b` are of a half type, to sum many products in the wider type.
    ///
    /// # Errors
    /// `Shape` unless `self` has the shape of the product, `DType`, `Frozen`, `Overlap`.
    #[track_caller]
    pub fn matmul_add_(&mut self, a: &Tensor, b: &Tensor) -> Result<()> {
        self.multiply("matmul_add", a, b, WriteMode::Accumulate)
    }

    /// Writes the product `a · b` to this tensor, or adds it to this tensor.
    #[track_caller]
    pub(super) fn multiply(
        &self,
        op: &'static str,
        a: &Tensor,
        b: &Tensor,
        start: WriteMode,
    ) -> Result<()> {
        let (Factors { a, b, .. }, y, plan) = self.addition(op, a, b)?;
        let kernel = MatMul { op, plan, dtype: a.dtype(), start, has_row_sums: false };
        self.device().launch(kernel, &[&a, &b], &[&y])
    }

    /// Writes the product `a · b` to this tensor, with the bias added to every row. A device's
    /// library may take scratch memory, as with [`Tensor::matmul`].
    #[track_caller]
    pub(super) fn multiply_with_bias(
        &self,
        op: &'static str,
        a: &Tensor,
        b: &Tensor,
        bias: Option<&Tensor>,
    ) -> Result<()> {
        let (Factors { a, b, .. }, y, plan) = self.addition(op, a, b)?;
        let start = WriteMode::Overwrite;
        let kernel = MatMul { op, plan, dtype: a.dtype(), start, has_row_sums: false };
        let reads: Vec<&Tensor> = [Some(&a), Some(&b), bias].into_iter().flatten().collect();
        kernel.launch_with_workspace(&reads, &[&y])
    }

    /// The plan that adds `a · b` to `self`: the factors, `self` with all dimensions, and the
    /// layouts.
    fn addition(
        &self,
        op: &'static str,
        a: &Tensor,
        b: &Tensor,
    ) -> Result<(Factors, Tensor, OperandLayout)> {
        let factors = Factors::new(op, a, b)?;
        let Factors { a, b, .. } = &factors;
        let is_wide = a.dtype().size_bytes() == 2 && self.dtype() == DType::F32;
        if self.dtype() != a.dtype() && !is_wide {
            return Err(TensorError::DType { op, left: self.dtype(), right: a.dtype() });
        }
        self.check_shape(op, factors.shape)?;
        let y = factors.with_all_dimensions(self)?;
        let plan = OperandLayout::new(a.layout(), b.layout(), y.layout());
        Ok((factors, y, plan))
    }
}

/// The factors of a product, broadcast to the same batch dimensions, and the shape of the result.
struct Factors {
    /// [.., M, K]
    a: Tensor,
    /// [.., K, N]
    b: Tensor,
    /// True for a factor that was a vector. The result lacks its dimension of length 1.
    is_vector: [bool; 2],
    /// The shape of the result, without the dimensions of vectors.
    shape: Shape,
}

impl Factors {
    fn new(op: &'static str, a: &Tensor, b: &Tensor) -> Result<Self> {
        let (left, right) = (*a.shape(), *b.shape());
        let mismatch = TensorError::Shape { op, left, right };
        if !a.dtype().is_float() {
            return Err(TensorError::DType { op, left: a.dtype(), right: DType::F32 });
        }
        a.check_dtype(op, b)?;
        if left.is_empty() || right.is_empty() {
            return Err(mismatch);
        }
        let is_vector = [left.len() == 1, right.len() == 1];
        let a = if is_vector[0] { a.unsqueeze(0)? } else { a.clone() };
        let b = if is_vector[1] { b.unsqueeze(1)? } else { b.clone() };
        let (&[ref a_batch @ .., m, k], &[ref b_batch @ .., rows, n]) =
            (&**a.shape(), &**b.shape())
        else {
            return Err(mismatch);
        };
        let batch = Shape::from(a_batch).broadcast(&Shape::from(b_batch));
        let (Some(batch), true) = (batch, rows == k) else { return Err(mismatch) };
        let with = |dims: &[usize]| {
            let dims = [&batch[..], dims].concat();
            let len = dims.iter().try_fold(1usize, |len, &dim| len.checked_mul(dim));
            (dims.len() <= RANK_MAX && len.is_some()).then(|| Shape::new(&dims))
        };
        let dims = [Some(m).filter(|_| !is_vector[0]), Some(n).filter(|_| !is_vector[1])];
        let dims: Vec<usize> = dims.into_iter().flatten().collect();
        let (Some(a_shape), Some(b_shape), Some(shape)) =
            (with(&[m, k]), with(&[k, n]), with(&dims))
        else {
            return Err(mismatch);
        };
        Ok(Factors { a: a.expand(a_shape)?, b: b.expand(b_shape)?, is_vector, shape })
    }

    /// The destination with dimensions of length 1 in the place of vectors.
    fn with_all_dimensions(&self, y: &Tensor) -> Result<Tensor> {
        let y = if self.is_vector[1] { y.unsqueeze(y.shape().len())? } else { y.clone() };
        if self.is_vector[0] { y.unsqueeze(y.shape().len() - 1) } else { Ok(y) }
    }
}

#[track_caller]
fn product(op: &'static str, a: &Tensor, b: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let factors = Factors::new(op, a, b)?;
    let (device, dtype) = (a.device(), a.dtype());
    let Factors { a, b, .. } = &factors;
    let bias = bias.map(Tensor::contiguous).transpose()?;
    let out = Tensor::empty(device, factors.shape, dtype)?;
    let y = factors.with_all_dimensions(&out)?;
    let plan = OperandLayout::new(a.layout(), b.layout(), y.layout());
    let reads: Vec<&Tensor> = [Some(a), Some(b), bias.as_ref()].into_iter().flatten().collect();
    let start = WriteMode::Overwrite;
    let kernel = MatMul { op, plan, dtype, start, has_row_sums: false };
    kernel.launch_with_workspace(&reads, &[&y])?;
    Ok(out)
}
