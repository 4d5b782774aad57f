//! The mean of each window. Windows have a fixed size, or their number is fixed.
//!
//! x: [B, C, H, W], y: [B, C, H', W'].

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;

use std::num::NonZeroUsize;

use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::dtype::{DType, for_each_float};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::layout::Shape;
use crate::ops::direction::Direction;
use crate::ops::max_pool2d::{Pool1dGeometry, Pool2dGeometry};
use crate::ops::windows::{
    Axis, Kind, SizeRounding, check_image, pair_shape, window_count, with_size,
};
use crate::tensor::Tensor;
use cpu::Means;

/// The divisor of the sum of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Divisor {
    /// The number of places of the window, padding included: PyTorch's default
    /// (`count_include_pad`).
    #[default]
    Window,
    /// The number of places of the window inside the input.
    Inside,
    /// A fixed number: `divisor_override`.
    Exactly(NonZeroUsize),
}

/// The options of an average pooling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AvgPool {
    /// The divisor of sums.
    pub divisor: Divisor,
    /// The rounding of the number of windows.
    pub rounding: SizeRounding,
}

fn with(op: &'static str, x: &Shape, window: Pool2dGeometry, options: AvgPool) -> Result<Means> {
    let Pool2dGeometry { kernel, stride, padding } = window;
    let mismatch = TensorError::Shape { op, left: *x, right: pair_shape(kernel) };
    let [batch, channels, height, width] = check_image(op, x, pair_shape(kernel))?;
    let axis = |at: usize, in_len| {
        let [kernel, stride, padding] = [kernel, stride, padding].map(|pair| pair[at]);
        let out_len = window_count(in_len, kernel, stride, padding, options.rounding)?;
        Some(Axis { in_len, out_len, kind: Kind::Stepped { kernel, stride, padding } })
    };
    let (Some(rows), Some(cols)) = (axis(0, height), axis(1, width)) else { return Err(mismatch) };
    Ok(Means { planes: batch * channels, axes: [rows, cols], divisor: options.divisor })
}

fn with_adaptive(op: &'static str, x: &Shape, out_size: [usize; 2]) -> Result<Means> {
    let [batch, channels, height, width] = check_image(op, x, pair_shape(out_size))?;
    let is_possible = with_size(x, out_size).is_some();
    if out_size.contains(&0) || height == 0 || width == 0 || !is_possible {
        return Err(TensorError::Shape { op, left: *x, right: pair_shape(out_size) });
    }
    let axes = [Axis::adaptive(height, out_size[0]), Axis::adaptive(width, out_size[1])];
    Ok(Means { planes: batch * channels, axes, divisor: Divisor::Inside })
}

struct AvgPool2d {
    op: &'static str,
    direction: Direction,
    shape: Means,
    dtype: DType,
}

impl AvgPool2d {
    #[track_caller]
    fn run(self, from: &Tensor, to_shape: Shape) -> Result<Tensor> {
        from.check_any_float(self.op)?;
        let from = from.contiguous()?;
        let to = Tensor::empty(from.device(), to_shape, self.dtype)?;
        from.device().launch(self, &[&from], &[&to])?;
        Ok(to)
    }
}

impl FullKernel for AvgPool2d {
    fn name(&self) -> &'static str {
        self.op
    }

    fn cost(&self) -> Cost {
        let len = |size: [usize; 2]| (self.shape.planes * size[0] * size[1]) as f64;
        let (x_len, y_len) = (len(self.shape.in_size()), len(self.shape.out_size()));
        let window_len: usize =
            self.shape.axes.map(|axis| axis.window(axis.out_len / 2).len()).iter().product();
        let bytes = (x_len + y_len) * self.dtype.size_bytes() as f64;
        Cost { class: OpClass::Pooling, flops: y_len * window_len as f64, bytes }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for_each_float!(self.dtype, E as T => {
            let (from, to) = (operands.read::<E>(0).slice(), operands.write::<E>(0).slice());
            match self.direction {
                Direction::Forward => cpu::forward::<E, T>(cpu.pool(), &self.shape, from, to),
                Direction::Backward => cpu::backward::<E, T>(cpu.pool(), &self.shape, from, to),
            }
        });
        Ok(())
    }
}

#[track_caller]
fn forward(op: &'static str, x: &Tensor, shape: Means) -> Result<Tensor> {
    let [height, width] = shape.out_size();
    let y_shape = x.shape().with(2, height).with(3, width);
    AvgPool2d { op, direction: Direction::Forward, shape, dtype: x.dtype() }.run(x, y_shape)
}

#[track_caller]
fn backward(op: &'static str, dy: &Tensor, x_shape: Shape, shape: Means) -> Result<Tensor> {
    let [height, width] = shape.out_size();
    dy.check_shape(op, x_shape.with(2, height).with(3, width))?;
    AvgPool2d { op, direction: Direction::Backward, shape, dtype: dy.dtype() }.run(dy, x_shape)
}

impl Tensor {
    /// The mean of each window; padding counts as zeros. Every float type; half types are summed in
    /// f32.
    ///
    /// # Shapes
    /// `[B, C, H, W] → [B, C, H', W']` with `H' = (H + 2 padding - kernel) / stride + 1`, rounded
    /// as `options` says. Windows may have any size.
    ///
    /// # Errors
    /// `Shape` (also when no window fits), `DType`, `OutOfMemory`.
    #[track_caller]
    pub fn avg_pool2d(&self, window: Pool2dGeometry, options: AvgPool) -> Result<Tensor> {
        let op = "avg_pool2d";
        forward(op, self, with(op, self.shape(), window, options)?)
    }

    /// The gradient of x through [`Tensor::avg_pool2d`], for `self = dy`.
    ///
    /// # Errors
    /// As [`Tensor::avg_pool2d`].
    #[track_caller]
    pub fn avg_pool2d_backward(
        &self,
        x_shape: Shape,
        window: Pool2dGeometry,
        options: AvgPool,
    ) -> Result<Tensor> {
        let op = "avg_pool2d_backward";
        backward(op, self, x_shape, with(op, &x_shape, window, options)?)
    }

    /// [`Tensor::avg_pool2d`] of sequences: `[B, C, L] → [B, C, L']`.
    ///
    /// # Errors
    /// As [`Tensor::avg_pool2d`].
    #[track_caller]
    pub fn avg_pool1d(&self, window: Pool1dGeometry, options: AvgPool) -> Result<Tensor> {
        let op = "avg_pool1d";
        let x = window.image_of(op, self)?;
        let shape = with(op, x.shape(), window.as_2d(), options)?;
        forward(op, &x, shape)?.squeeze(2)
    }

    /// The gradient of x through [`Tensor::avg_pool1d`], for `self = dy`.
    ///
    /// # Errors
    /// As [`Tensor::avg_pool2d`].
    #[track_caller]
    pub fn avg_pool1d_backward(
        &self,
        x_shape: Shape,
        window: Pool1dGeometry,
        options: AvgPool,
    ) -> Result<Tensor> {
        let op = "avg_pool1d_backward";
        let (dy, x_shape) = (window.image_of(op, self)?, window.image_shape(op, &x_shape)?);
        let shape = with(op, &x_shape, window.as_2d(), options)?;
        backward(op, &dy, x_shape, shape)?.squeeze(2)
    }

    /// The means of `out_size[0] × out_size[1]` windows that cover the image; `[1, 1]` is the mean
    /// of the whole image. Of n windows over H rows, window i reaches from row ⌊i H / n⌋ to row ⌈(i
    /// + 1) H / n⌉, as in PyTorch.
    ///
    /// # Shapes
    /// `[B, C, H, W] → [B, C, out_size[0], out_size[1]]`.
    ///
    /// # Errors
    /// `Shape` (also for images or results without elements, unless the batch is empty), `DType`,
    /// `OutOfMemory`.
    #[track_caller]
    pub fn adaptive_avg_pool2d(&self, out_size: [usize; 2]) -> Result<Tensor> {
        let op = "adaptive_avg_pool2d";
        forward(op, self, with_adaptive(op, self.shape(), out_size)?)
    }

    /// The gradient of x through [`Tensor::adaptive_avg_pool2d`], for `self = dy`. The shape of dy
    /// gives the number of windows.
    ///
    /// # Errors
    /// As [`Tensor::adaptive_avg_pool2d`].
    #[track_caller]
    pub fn adaptive_avg_pool2d_backward(&self, x_shape: Shape) -> Result<Tensor> {
        let op = "adaptive_avg_pool2d_backward";
        let [_, _, height, width] = check_image(op, self.shape(), x_shape)?;
        backward(op, self, x_shape, with_adaptive(op, &x_shape, [height, width])?)
    }
}
