//! Matrix products; transposed operands are read where they lie.
//!
//! a: [M, K], b: [K, N], y: [M, N].

mod cpu;

use crate::cpu::Cpu;
use crate::cpu::gemm::{Matrix, MatrixMut, packing_bytes_bound};
use crate::dtype::for_float;
use crate::{Cost, DType, Element, Kernel, Operands, Result, Tensor, TensorError, View};
use cpu::Start;

/// y = a·b, or y = a·b + bias with the bias row added to every row.
struct MatMul {
    op: &'static str,
    /// M, K, N.
    sizes: [usize; 3],
    dtype: DType,
}

impl Kernel for MatMul {
    fn name(&self) -> &'static str {
        self.op
    }

    fn cost(&self) -> Cost {
        let [m, k, n] = self.sizes;
        let bytes = ((m * k + k * n + m * n) * self.dtype.size_bytes()) as f64;
        Cost { flops: 2.0 * (m * k * n) as f64, bytes }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for_float!(self.dtype, T => {
            let [a, b] = [0, 1].map(|index| matrix(operands.read::<T>(index)));
            let y = operands.write::<T>(0).slice();
            let columns = self.sizes[2];
            let start = if operands.read_count() > 2 {
                let bias = operands.read::<T>(2).slice();
                y.chunks_exact_mut(columns.max(1)).for_each(|row| row.copy_from_slice(bias));
                Start::Accumulate
            } else {
                Start::Overwrite
            };
            cpu::matmul(cpu.pool(), self.sizes, a, b, start, MatrixMut::row_major(y, columns));
        }, else unreachable!("checked to be a float"));
        Ok(())
    }
}

fn matrix<T: Element>(view: View<'_, T>) -> Matrix<'_, T> {
    let &[row_stride, col_stride] = view.layout().strides() else {
        unreachable!("checked to have two dimensions")
    };
    Matrix { data: view.data(), row_stride, col_stride }
}

impl Tensor {
    /// The matrix product.
    ///
    /// # Shapes
    /// `[M, K] · [K, N] → [M, N]`
    ///
    /// # Errors
    /// `Shape`, `DType` (both the same float type), `OutOfMemory`.
    #[track_caller]
    pub fn matmul(&self, other: &Tensor) -> Result<Tensor> {
        product("matmul", self, other, None)
    }

    /// `x wᵀ + b`, a fully connected layer, for `self = x`.
    ///
    /// # Shapes
    /// `x: [N, I], w: [O, I], b: [O] → [N, O]`
    ///
    /// # Errors
    /// As [`Tensor::matmul`].
    #[track_caller]
    pub fn linear(&self, w: &Tensor, b: Option<&Tensor>) -> Result<Tensor> {
        let op = "linear";
        if w.shape().len() != 2 {
            return Err(TensorError::Shape { op, left: *self.shape(), right: *w.shape() });
        }
        if let Some(b) = b {
            self.check_dtype(op, b)?;
            b.check_shape(op, [w.shape()[0]])?;
        }
        product(op, self, &w.transpose(0, 1)?, b)
    }
}

#[track_caller]
fn product(op: &'static str, a: &Tensor, b: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    a.check_float(op)?;
    a.check_dtype(op, b)?;
    let sizes = match (&**a.shape(), &**b.shape()) {
        (&[m, k], &[b_rows, n]) if k == b_rows => [m, k, n],
        _ => return Err(TensorError::Shape { op, left: *a.shape(), right: *b.shape() }),
    };
    let [m, k, n] = sizes;
    let (device, dtype) = (a.device(), a.dtype());
    let packing_bytes =
        packing_bytes_bound(dtype.size_bytes(), m, k, n, device.threads(), device.caches());
    device.charge_packing(packing_bytes)?;
    let bias = bias.map(Tensor::contiguous).transpose()?;
    let y = Tensor::empty(device, [m, n], dtype)?;
    let reads: Vec<&Tensor> = [Some(a), Some(b), bias.as_ref()].into_iter().flatten().collect();
    device.launch(MatMul { op, sizes, dtype }, &reads, &[&y])?;
    Ok(y)
}
