//! Resized images. A pixel of y is the nearest pixel of x, or the mean of the four surrounding
//! pixels, weighted by distance.
//!
//! x: [B, C, H, W], y: [B, C, H', W'].

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;

use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::dtype::{DType, for_each_float};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::layout::Shape;
use crate::ops::windows::{check_image, pair_shape, with_size};
use crate::tensor::Tensor;
use cpu::Line;

/// The size of the result, (height, width).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Resize {
    /// This number of rows and columns.
    To([usize; 2]),
    /// Multiples of the input's rows and columns, rounded down. Pixels are at exactly these
    /// factors, as in PyTorch with `scale_factor`. For every factor, a side that keeps its length
    /// is copied, and so is a side that [`Interpolation::Nearest`] doubles.
    By([f64; 2]),
}

/// The pixels of x that a pixel of the result depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interpolation {
    /// The pixel ⌊i · H / H'⌋, as PyTorch's `nearest`, computed in f32 for every element type. On
    /// the CPU, PyTorch 2.15 takes other pixels in two cases if the sides of the result add up to
    /// more than 128: if a factor other than 2 doubles a side, and for elements in f64. PyTorch's
    /// gradients agree with the pixels taken here.
    Nearest,
    /// The four surrounding pixels, weighted by distance.
    Bilinear(Corners),
}

/// The alignment of the two images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Corners {
    /// The outer edges of the corner pixels coincide: PyTorch's default, and right for pixels as
    /// areas.
    Centers,
    /// The centers of the corner pixels coincide (`align_corners`).
    Aligned,
}

/// Largest number of rows or columns of a result; more are taken for a mistake.
const SIDE_MAX: f64 = 2147483647.0;

struct Upsample2d {
    is_backward: bool,
    planes: usize,
    lines: [Line; 2],
    dtype: DType,
}

impl Upsample2d {
    /// A resize of `x`; `self.lines` give the size of the result.
    fn with(
        op: &'static str,
        x: &Shape,
        size: Resize,
        interpolation: Interpolation,
        dtype: DType,
    ) -> Result<Self> {
        let right = match size {
            Resize::To(size) => pair_shape(size),
            Resize::By(_) => *x,
        };
        let mismatch = TensorError::Shape { op, left: *x, right };
        let [batch, channels, height, width] = check_image(op, x, right)?;
        let line = |axis: usize, in_len: usize| {
            let (out_len, factor) = match size {
                Resize::To(size) => (size[axis], None),
                Resize::By(factors) => {
                    let out_len = (in_len as f64 * factors[axis]).floor();
                    // False for NaN, too.
                    let is_sane = (1.0..=SIDE_MAX).contains(&out_len);
                    (if is_sane { out_len as usize } else { 0 }, Some(factors[axis]))
                }
            };
            let is_valid = in_len > 0 && out_len > 0;
            is_valid.then_some(Line { in_len, out_len, factor, interpolation })
        };
        let (Some(rows), Some(cols)) = (line(0, height), line(1, width)) else {
            return Err(mismatch);
        };
        if with_size(x, [rows.out_len, cols.out_len]).is_none() {
            return Err(mismatch);
        }
        let planes = batch * channels;
        Ok(Upsample2d { is_backward: op.ends_with("backward"), planes, lines: [rows, cols], dtype })
    }

    fn out_shape(&self, x: &Shape) -> Shape {
        x.with(2, self.lines[0].out_len).with(3, self.lines[1].out_len)
    }

    #[track_caller]
    fn run(self, from: &Tensor, to_shape: Shape) -> Result<Tensor> {
        from.check_any_float(self.name())?;
        let from = from.contiguous()?;
        let to = Tensor::empty(from.device(), to_shape, self.dtype)?;
        from.device().launch(self, &[&from], &[&to])?;
        Ok(to)
    }
}

impl FullKernel for Upsample2d {
    fn name(&self) -> &'static str {
        if self.is_backward { "upsample2d_backward" } else { "upsample2d" }
    }

    fn cost(&self) -> Cost {
        let [rows, cols] = self.lines;
        let y_len = (self.planes * rows.out_len * cols.out_len) as f64;
        let x_len = (self.planes * rows.in_len * cols.in_len) as f64;
        let flops = match rows.interpolation {
            Interpolation::Nearest => 0.0,
            Interpolation::Bilinear(_) => 9.0 * y_len,
        };
        Cost {
            class: OpClass::Elementwise,
            flops,
            bytes: (x_len + y_len) * self.dtype.size_bytes() as f64,
        }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for_each_float!(self.dtype, E as T => {
            let (from, to) = (operands.read::<E>(0).slice(), operands.write::<E>(0).slice());
            if self.is_backward {
                cpu::backward::<E, T>(cpu.pool(), self.lines, from, to);
            } else {
                cpu::forward::<E, T>(cpu.pool(), self.lines, from, to);
            }
        });
        Ok(())
    }
}

impl Tensor {
    /// The image in another size, larger or smaller. Every float type; half types have weights and
    /// sums in f32. The formulas are those of PyTorch's `interpolate` without antialiasing.
    ///
    /// # Shapes
    /// `[B, C, H, W] → [B, C, H', W']`.
    ///
    /// # Errors
    /// `Shape` (also for images or results without pixels), `DType`, `OutOfMemory`.
    #[track_caller]
    pub fn upsample2d(&self, size: Resize, interpolation: Interpolation) -> Result<Tensor> {
        let dtype = self.dtype();
        let kernel = Upsample2d::with("upsample2d", self.shape(), size, interpolation, dtype)?;
        let y_shape = kernel.out_shape(self.shape());
        kernel.run(self, y_shape)
    }

    /// The gradient of x through [`Tensor::upsample2d`], for `self = dy`.
    ///
    /// # Errors
    /// As [`Tensor::upsample2d`].
    #[track_caller]
    pub fn upsample2d_backward(
        &self,
        x_shape: Shape,
        size: Resize,
        interpolation: Interpolation,
    ) -> Result<Tensor> {
        let (op, dtype) = ("upsample2d_backward", self.dtype());
        let kernel = Upsample2d::with(op, &x_shape, size, interpolation, dtype)?;
        self.check_shape(op, kernel.out_shape(&x_shape))?;
        kernel.run(self, x_shape)
    }
}
