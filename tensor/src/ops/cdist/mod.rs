//! Distances of each row of x from each row of y: `d[m, r] = ‖x[m] - y[r]‖` of order p. No tensor
//! of differences is stored. Sums are in f64.
//!
//! x: [B, M, D], y: [B, R, D], d: [B, M, R].

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;

use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::cpu::chunk::for_each_chunk;
use crate::dtype::{DType, for_each_float};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::layout::Shape;
use crate::tensor::Tensor;

/// The sizes of the operands, which match.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    rows: [usize; 2],
    len: usize,
    order: f64,
    dtype: DType,
}

impl Sizes {
    fn cost(&self, flops: f64) -> Cost {
        let distances = self.batch * self.rows[0] * self.rows[1];
        let elements = distances + self.batch * (self.rows[0] + self.rows[1]) * self.len;
        Cost {
            class: OpClass::Reduction,
            flops: flops * (distances * self.len) as f64,
            bytes: (elements * self.dtype.size_bytes()) as f64,
        }
    }
}

/// Reads x and y; writes d.
struct Forward(Sizes);

impl FullKernel for Forward {
    fn name(&self) -> &'static str {
        "cdist"
    }

    fn cost(&self) -> Cost {
        self.0.cost(3.0)
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let Sizes { rows: [m, r], len, order, .. } = self.0;
        for_each_float!(self.0.dtype, E => {
            let (x, y) = (operands.read::<E>(0).slice(), operands.read::<E>(1).slice());
            let distances = operands.write::<E>(0).slice();
            if distances.is_empty() {
                return Ok(());
            }
            for_each_chunk(cpu.pool(), distances, r, |row, distances| {
                let x = &x[row * len..][..len];
                let y = &y[row / m * r * len..][..r * len];
                cpu::distances(order, x, y, distances);
            });
        });
        Ok(())
    }
}

/// Reads dy, d, x and y; writes dx. dy and d may have any strides.
struct Backward(Sizes);

impl FullKernel for Backward {
    fn name(&self) -> &'static str {
        "cdist_backward"
    }

    fn cost(&self) -> Cost {
        self.0.cost(6.0)
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let Sizes { rows: [m, r], len, order, .. } = self.0;
        for_each_float!(self.0.dtype, E => {
            let (dy, d) = (operands.read::<E>(0), operands.read::<E>(1));
            let (x, y) = (operands.read::<E>(2).slice(), operands.read::<E>(3).slice());
            let dx = operands.write::<E>(0).slice();
            if dx.is_empty() {
                return Ok(());
            }
            for_each_chunk(cpu.pool(), dx, len, |row, dx| {
                let x = &x[row * len..][..len];
                let y = &y[row / m * r * len..][..r * len];
                let pairs = [&dy, &d].map(|view| {
                    let strides = view.layout().strides();
                    (view.data(), row / m * strides[0] + row % m * strides[1], strides[2])
                });
                cpu::gradient(order, pairs, x, y, dx);
            });
        });
        Ok(())
    }
}

/// The last two dimensions, preceded by the product of all others.
fn in_batches(shape: &Shape, op: &'static str, other: &Shape) -> Result<[usize; 3]> {
    match shape[..] {
        [ref outer @ .., rows, len] => Ok([outer.iter().product(), rows, len]),
        _ => Err(TensorError::Shape { op, left: *shape, right: *other }),
    }
}

fn sizes(op: &'static str, x: &Tensor, y: &Tensor, order: f64) -> Result<Sizes> {
    x.check_any_float(op)?;
    x.check_dtype(op, y)?;
    let (left, right) = (*x.shape(), *y.shape());
    let ([batch, m, len], [_, r, _]) =
        (in_batches(&left, op, &right)?, in_batches(&right, op, &left)?);
    let last = left.len() - 1;
    let is_same = left.len() == right.len() && left[..last - 1] == right[..last - 1];
    // Orders that are negative or NaN define no distance.
    if !is_same || left[last] != right[last] || order.is_nan() || order < 0.0 {
        return Err(TensorError::Shape { op, left, right });
    }
    Ok(Sizes { batch, rows: [m, r], len, order, dtype: x.dtype() })
}

impl Tensor {
    /// `‖x[m] - y[r]‖` of order p, at least 0, for each row of `self = x` and of `y`; order 0
    /// counts the elements that differ.
    ///
    /// # Shapes
    /// `x: [.., M, D], y: [.., R, D] → [.., M, R]`. The leading dimensions are equal.
    ///
    /// # Errors
    /// `Shape`, also for a negative order, `DType`, `OutOfMemory`.
    #[track_caller]
    pub fn cdist(&self, y: &Tensor, order: f64) -> Result<Tensor> {
        let sizes = sizes("cdist", self, y, order)?;
        let Sizes { batch, rows: [m, r], len, dtype, .. } = sizes;
        let mut shape = self.shape().to_vec();
        *shape.last_mut().expect("two dimensions") = r;
        let x = self.contiguous()?.reshape([batch, m, len])?;
        let y = y.contiguous()?.reshape([batch, r, len])?;
        let distances = Tensor::empty(self.device(), [batch, m, r], dtype)?;
        self.device().launch(Forward(sizes), &[&x, &y], &[&distances])?;
        distances.reshape(&shape[..])
    }

    /// The gradient of x through [`Tensor::cdist`], for `self = dy` and the resulting `distances`:
    /// `dx[m] = Σ_r dy[m, r] · ∂d[m, r]/∂x[m]`, where the derivative is 0 if the distance is 0. For
    /// the gradient of y, transpose dy and the distances, and exchange x and y.
    ///
    /// # Errors
    /// The errors of [`Tensor::cdist`].
    #[track_caller]
    pub fn cdist_backward(
        &self,
        distances: &Tensor,
        x: &Tensor,
        y: &Tensor,
        order: f64,
    ) -> Result<Tensor> {
        let op = "cdist_backward";
        let sizes = sizes(op, x, y, order)?;
        let Sizes { batch, rows: [m, r], len, dtype, .. } = sizes;
        self.check_dtype(op, x)?;
        distances.check_dtype(op, x)?;
        self.check_shape(op, *distances.shape())?;
        let mut shape = x.shape().to_vec();
        *shape.last_mut().expect("two dimensions") = r;
        distances.check_shape(op, &shape[..])?;
        let [dy, d] = [self, distances].map(|pairs| pairs.reshape([batch, m, r]));
        let x_rows = x.contiguous()?.reshape([batch, m, len])?;
        let y_rows = y.contiguous()?.reshape([batch, r, len])?;
        let dx = Tensor::empty(x.device(), *x.shape(), dtype)?;
        x.device().launch(Backward(sizes), &[&dy?, &d?, &x_rows, &y_rows], &[&dx])?;
        Ok(dx)
    }
}
