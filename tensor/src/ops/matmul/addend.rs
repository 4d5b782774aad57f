//! Products with an addend, `beta · y0 + alpha · a · b`. Half types are summed in f32 and rounded
//! once, which temporarily takes memory for the result and the addend in f32. In f32 and f64 the
//! result is the only allocation.

use super::product;
use crate::error::{Result, TensorError};
use crate::layout::Shape;
use crate::tensor::Tensor;

/// The factors of a product with an addend; the default is 1 for both.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scales {
    /// Factor of the addend. If this is 0, the addend is not read.
    pub beta: f64,
    /// Factor of the product.
    pub alpha: f64,
}

impl Default for Scales {
    fn default() -> Self {
        Scales { beta: 1.0, alpha: 1.0 }
    }
}

impl Tensor {
    /// `beta · self + alpha · a b`, for matrices; `self` is broadcast. Half types are rounded once,
    /// at the end.
    ///
    /// # Shapes
    /// `[M, N]` or a shape that broadcasts to it, `[M, K], [K, N] → [M, N]`
    ///
    /// # Errors
    /// As [`Tensor::matmul`].
    #[track_caller]
    pub fn addmm(&self, a: &Tensor, b: &Tensor, scales: Scales) -> Result<Tensor> {
        let op = "addmm";
        a.check_ranks(op, b, [2, 2])?;
        self.plus_product(op, [a, b], scales)
    }

    /// `beta · self + alpha · a b` for each index of the first dimension; `self` is broadcast.
    ///
    /// # Shapes
    /// `[B, M, N]` or a shape that broadcasts to it, `[B, M, K], [B, K, N] → [B, M, N]`
    ///
    /// # Errors
    /// As [`Tensor::bmm`].
    #[track_caller]
    pub fn baddbmm(&self, a: &Tensor, b: &Tensor, scales: Scales) -> Result<Tensor> {
        let op = "baddbmm";
        a.check_ranks(op, b, [3, 3])?;
        if a.shape()[0] != b.shape()[0] {
            return Err(TensorError::Shape { op, left: *a.shape(), right: *b.shape() });
        }
        self.plus_product(op, [a, b], scales)
    }

    /// `beta · self + alpha · a v`, for a matrix and a vector; `self` is broadcast.
    ///
    /// # Shapes
    /// `[M]` or a shape that broadcasts to it, `[M, K], [K] → [M]`
    ///
    /// # Errors
    /// As [`Tensor::matmul`].
    #[track_caller]
    pub fn addmv(&self, a: &Tensor, vector: &Tensor, scales: Scales) -> Result<Tensor> {
        let op = "addmv";
        a.check_ranks(op, vector, [2, 1])?;
        self.plus_product(op, [a, vector], scales)
    }

    #[track_caller]
    fn plus_product(
        &self,
        op: &'static str,
        [a, b]: [&Tensor; 2],
        scales: Scales,
    ) -> Result<Tensor> {
        self.check_dtype(op, a)?;
        // Checked before the product, which is the costly part.
        let (rows, columns) = (&a.shape()[..a.shape().len() - 1], &b.shape()[1..]);
        let columns = columns.last().copied().filter(|_| b.shape().len() > 1);
        let dims: Vec<usize> = rows.iter().copied().chain(columns).collect();
        let shape = Shape::new(&dims);
        if self.shape().broadcast(&shape) != Some(shape) {
            return Err(TensorError::Shape { op, left: *self.shape(), right: shape });
        }
        let (dtype, computed) = (self.dtype(), self.dtype().computed());
        if dtype == computed {
            return combined(product(op, a, b, None)?, self, scales);
        }
        let mut y = Tensor::zeros(self.device(), shape, computed)?;
        y.matmul_add_(a, b)?;
        combined(y, &self.to_dtype(computed)?, scales)?.to_dtype(dtype)
    }
}

/// `beta · addend + alpha · y`, in the memory of `y`.
#[track_caller]
fn combined(mut y: Tensor, addend: &Tensor, Scales { beta, alpha }: Scales) -> Result<Tensor> {
    if alpha != 1.0 {
        y.mul_scalar_(alpha)?;
    }
    if beta != 0.0 {
        y.add_scaled_(addend, beta)?;
    }
    Ok(y)
}
