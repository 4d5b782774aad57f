//! The largest value in each of a fixed number of windows that cover an image, and its place.
//!
//! x: [B, C, H, W], y: [B, C, H', W'].

#[cfg(feature = "cuda")]
mod cuda;

use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::cpu::pool::Pool;
use crate::dtype::{DType, Element, Float, for_each_dtype, for_each_float};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::layout::Shape;
use crate::ops::direction::Direction;
use crate::ops::max_pool2d::exceeds;
use crate::ops::windows::{Axis, check_image, for_each_row, for_each_row2, pair_shape, with_size};
use crate::tensor::Tensor;

struct AdaptiveMaxPool2d {
    direction: Direction,
    planes: usize,
    axes: [Axis; 2],
    dtype: DType,
}

impl AdaptiveMaxPool2d {
    fn with(
        direction: Direction,
        x: &Shape,
        out_size: [usize; 2],
        dtype: DType,
        op: &'static str,
    ) -> Result<Self> {
        let [batch, channels, height, width] = check_image(op, x, pair_shape(out_size))?;
        // Places are counted in i32.
        let is_countable = height.checked_mul(width).is_some_and(|len| i32::try_from(len).is_ok())
            && with_size(x, out_size).is_some();
        if out_size.contains(&0) || height == 0 || width == 0 || !is_countable {
            return Err(TensorError::Shape { op, left: *x, right: pair_shape(out_size) });
        }
        let axes = [Axis::adaptive(height, out_size[0]), Axis::adaptive(width, out_size[1])];
        Ok(AdaptiveMaxPool2d { direction, planes: batch * channels, axes, dtype })
    }

    fn forward<E: Element>(&self, pool: &Pool, x: &[E], y: &mut [E], winners: &mut [i32]) {
        let [rows, cols] = self.axes;
        let width = cols.in_len;
        let size = [rows.out_len, cols.out_len];
        for_each_row2(pool, size, y, winners, |plane, row, y, winners| {
            let x = &x[plane * rows.in_len * width..][..rows.in_len * width];
            for (at, (y, winner)) in y.iter_mut().zip(winners).enumerate() {
                let (window, cols) = (rows.window(row), cols.window(at));
                let mut found = window.start * width + cols.start;
                for row in window {
                    for at in row * width + cols.start..row * width + cols.end {
                        found = if exceeds(x[at], x[found]) { at } else { found };
                    }
                }
                *y = x[found];
                *winner = found as i32;
            }
        });
    }

    fn backward<E: Element, T: Float>(&self, pool: &Pool, dy: &[E], winners: &[i32], dx: &mut [E]) {
        let [rows, cols] = self.axes;
        let plane_len = rows.out_len * cols.out_len;
        for_each_row(pool, dx, [rows.in_len, cols.in_len], |plane, row, dx| {
            let from = plane * plane_len;
            let (dy, winners) = (&dy[from..][..plane_len], &winners[from..][..plane_len]);
            for (col, dx) in dx.iter_mut().enumerate() {
                let place = (row * cols.in_len + col) as i32;
                let mut sum = T::ZERO;
                for p in rows.covering(row) {
                    for q in cols.covering(col) {
                        let at = p * cols.out_len + q;
                        if winners[at] == place {
                            sum += dy[at].cast();
                        }
                    }
                }
                *dx = sum.cast();
            }
        });
    }
}

impl FullKernel for AdaptiveMaxPool2d {
    fn name(&self) -> &'static str {
        match self.direction {
            Direction::Forward => "adaptive_max_pool2d",
            Direction::Backward => "adaptive_max_pool2d_backward",
        }
    }

    fn cost(&self) -> Cost {
        let [rows, cols] = self.axes;
        let x_len = self.planes * rows.in_len * cols.in_len;
        let y_len = self.planes * rows.out_len * cols.out_len;
        let bytes = (x_len + y_len) * self.dtype.size_bytes() + y_len * DType::I32.size_bytes();
        Cost { class: OpClass::Pooling, flops: x_len.max(y_len) as f64, bytes: bytes as f64 }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let pool = cpu.pool();
        match self.direction {
            Direction::Forward => for_each_dtype!(self.dtype, E => {
                let x = operands.read::<E>(0).slice();
                let y = operands.write::<E>(0).slice();
                self.forward(pool, x, y, operands.write::<i32>(1).slice());
            }),
            Direction::Backward => for_each_float!(self.dtype, E as T => {
                let (dy, winners) = (operands.read::<E>(0).slice(), operands.read(1).slice());
                self.backward::<E, T>(pool, dy, winners, operands.write::<E>(0).slice());
            }),
        }
        Ok(())
    }
}

impl Tensor {
    /// The largest value in each window of [`Tensor::adaptive_avg_pool2d`], and its place in the
    /// image, `row · W + column`. Places are i32 because windows may be too large for a byte. The
    /// first of equal values wins; NaN wins over every number.
    ///
    /// # Shapes
    /// `[B, C, H, W] → [B, C, out_size[0], out_size[1]]` twice.
    ///
    /// # Errors
    /// As [`Tensor::adaptive_avg_pool2d`], and `Shape` for images of 2³¹ pixels or more.
    #[track_caller]
    pub fn adaptive_max_pool2d(&self, out_size: [usize; 2]) -> Result<(Tensor, Tensor)> {
        let (op, dtype) = ("adaptive_max_pool2d", self.dtype());
        self.check_any_float(op)?;
        let shape = self.shape();
        let kernel = AdaptiveMaxPool2d::with(Direction::Forward, shape, out_size, dtype, op)?;
        let y_shape = shape.with(2, out_size[0]).with(3, out_size[1]);
        let x = self.contiguous()?;
        let y = Tensor::empty(self.device(), y_shape, dtype)?;
        let winners = Tensor::empty(self.device(), y_shape, DType::I32)?;
        self.device().launch(kernel, &[&x], &[&y, &winners])?;
        Ok((y, winners))
    }

    /// The gradient of x through [`Tensor::adaptive_max_pool2d`], for `self = dy`.
    ///
    /// # Errors
    /// As [`Tensor::adaptive_max_pool2d`].
    #[track_caller]
    pub fn adaptive_max_pool2d_backward(&self, winners: &Tensor, x_shape: Shape) -> Result<Tensor> {
        let (op, dtype) = ("adaptive_max_pool2d_backward", self.dtype());
        self.check_any_float(op)?;
        let [_, _, height, width] = check_image(op, self.shape(), x_shape)?;
        let out_size = [height, width];
        let kernel = AdaptiveMaxPool2d::with(Direction::Backward, &x_shape, out_size, dtype, op)?;
        self.check_shape(op, x_shape.with(2, height).with(3, width))?;
        self.check_shape(op, *winners.shape())?;
        if winners.dtype() != DType::I32 {
            return Err(TensorError::DType { op, left: winners.dtype(), right: DType::I32 });
        }
        let (dy, winners) = (self.contiguous()?, winners.contiguous()?);
        let dx = Tensor::empty(self.device(), x_shape, dtype)?;
        self.device().launch(kernel, &[&dy, &winners], &[&dx])?;
        Ok(dx)
    }
}
