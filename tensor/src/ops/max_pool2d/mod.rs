//! The largest value in each window, and its place.
//!
//! x: [B, C, H, W], y: [B, C, H', W'].

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod halves;
mod pool1d;
mod rows;
#[cfg(feature = "testing")]
pub(crate) mod testing;

use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::dtype::{DType, for_each_dtype, for_each_float};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::layout::Shape;
use crate::ops::windows::{SizeRounding, check_image, pair_shape, with_size};
use crate::tensor::Tensor;
use cpu::MaxPool2dShape;
pub(crate) use cpu::exceeds;
pub use pool1d::Pool1dGeometry;

/// Windows of a pooling operation, (height, width).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool2dGeometry {
    /// Size of a window, at most 256 elements.
    pub kernel: [usize; 2],
    /// Step between windows, at least 1.
    pub stride: [usize; 2],
    /// Positions outside the input on each side that windows may cover, at most half a window.
    pub padding: [usize; 2],
}

impl Pool2dGeometry {
    /// Adjacent square windows: PyTorch's default stride.
    pub fn square(kernel: usize) -> Self {
        Pool2dGeometry { kernel: [kernel; 2], stride: [kernel; 2], padding: [0, 0] }
    }
}

/// The options of a max pooling; the default is PyTorch's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxPool {
    /// Step between neighbouring positions of a window, at least 1.
    pub dilation: [usize; 2],
    /// The rounding of the number of windows.
    pub rounding: SizeRounding,
}

impl Default for MaxPool {
    fn default() -> Self {
        MaxPool { dilation: [1, 1], rounding: SizeRounding::Down }
    }
}

impl Pool2dGeometry {
    /// The sizes of pooling `x`.
    ///
    /// # Errors
    /// `Shape` if no window fits.
    fn with(self, op: &'static str, x: &Shape, options: MaxPool) -> Result<MaxPool2dShape> {
        let right = pair_shape(self.kernel);
        let [batch, channels, height, width] = check_image(op, x, right)?;
        MaxPool2dShape::new(batch * channels, [height, width], self, options)
            .filter(|shape| with_size(x, shape.out_size()).is_some())
            .ok_or(TensorError::Shape { op, left: *x, right })
    }
}

fn cost(shape: &MaxPool2dShape, dtype: DType) -> Cost {
    let bytes = (shape.x_len() + shape.y_len()) * dtype.size_bytes() + shape.y_len();
    let flops = (shape.y_len() * shape.kernel[0] * shape.kernel[1]) as f64;
    Cost { class: OpClass::Pooling, flops, bytes: bytes as f64 }
}

struct Forward {
    op: &'static str,
    shape: MaxPool2dShape,
    dtype: DType,
}

impl FullKernel for Forward {
    fn name(&self) -> &'static str {
        self.op
    }

    fn cost(&self) -> Cost {
        cost(&self.shape, self.dtype)
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for_each_dtype!(self.dtype, E => {
            let x = operands.read::<E>(0).slice();
            let (y, winners) = (operands.write::<E>(0).slice(), operands.write::<u8>(1).slice());
            cpu::forward(cpu.pool(), &self.shape, x, y, winners);
        });
        Ok(())
    }
}

struct Backward {
    op: &'static str,
    shape: MaxPool2dShape,
    dtype: DType,
}

impl FullKernel for Backward {
    fn name(&self) -> &'static str {
        self.op
    }

    fn cost(&self) -> Cost {
        cost(&self.shape, self.dtype)
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for_each_float!(self.dtype, E as T => {
            let (dy, winners) = (operands.read::<E>(0).slice(), operands.read::<u8>(1).slice());
            let dx = operands.write::<E>(0).slice();
            cpu::backward::<E, T>(cpu.pool(), &self.shape, dy, winners, dx);
        });
        Ok(())
    }
}

#[track_caller]
fn forward(
    op: &'static str,
    x: &Tensor,
    window: Pool2dGeometry,
    options: MaxPool,
) -> Result<(Tensor, Tensor)> {
    if x.dtype() == DType::Bool {
        return Err(TensorError::DType { op, left: x.dtype(), right: DType::F32 });
    }
    let shape = window.with(op, x.shape(), options)?;
    let [out_height, out_width] = shape.out_size();
    let y_shape = x.shape().with(2, out_height).with(3, out_width);
    let (device, dtype, x) = (x.device(), x.dtype(), x.contiguous()?);
    let y = Tensor::empty(device, y_shape, dtype)?;
    let winners = Tensor::empty(device, y_shape, DType::U8)?;
    device.launch(Forward { op, shape, dtype }, &[&x], &[&y, &winners])?;
    Ok((y, winners))
}

#[track_caller]
fn backward(
    op: &'static str,
    [dy, winners]: [&Tensor; 2],
    x_shape: Shape,
    window: Pool2dGeometry,
    options: MaxPool,
) -> Result<Tensor> {
    dy.check_any_float(op)?;
    let shape = window.with(op, &x_shape, options)?;
    let [out_height, out_width] = shape.out_size();
    dy.check_shape(op, x_shape.with(2, out_height).with(3, out_width))?;
    dy.check_shape(op, *winners.shape())?;
    if winners.dtype() != DType::U8 {
        return Err(TensorError::DType { op, left: winners.dtype(), right: DType::U8 });
    }
    let (device, dtype) = (dy.device(), dy.dtype());
    let (dy, winners) = (dy.contiguous()?, winners.contiguous()?);
    let dx = Tensor::empty(device, x_shape, dtype)?;
    device.launch(Backward { op, shape, dtype }, &[&dy, &winners], &[&dx])?;
    Ok(dx)
}

impl Tensor {
    /// The largest value in each window, and its place in the window (row-major, u8). Backward
    /// needs this byte for each output instead of x. The first of equal values wins; NaN wins over
    /// every number. Floats and integers.
    ///
    /// # Shapes
    /// `[B, C, H, W] → [B, C, H', W']` twice, with `H' = (H + 2 padding - kernel) / stride + 1`,
    /// rounded down.
    ///
    /// # Errors
    /// `Shape` (also if no window fits), `DType`, `OutOfMemory`.
    #[track_caller]
    pub fn max_pool2d(&self, geometry: Pool2dGeometry) -> Result<(Tensor, Tensor)> {
        forward("max_pool2d", self, geometry, MaxPool::default())
    }

    /// [`Tensor::max_pool2d`] with dilated windows, or with windows that do not fit whole. The
    /// result has `H' = (H + 2 padding - dilation · (kernel - 1) - 1) / stride + 1`, rounded as
    /// `options` says. The padding is at most half of the length that a window spans.
    ///
    /// # Errors
    /// As [`Tensor::max_pool2d`], and `Shape` if there is padding and the dilation is larger than
    /// the image: a window could meet no input.
    #[track_caller]
    pub fn max_pool2d_with(
        &self,
        geometry: Pool2dGeometry,
        options: MaxPool,
    ) -> Result<(Tensor, Tensor)> {
        forward("max_pool2d_with", self, geometry, options)
    }

    /// The gradient of x through [`Tensor::max_pool2d_with`], for `self = dy`.
    ///
    /// # Errors
    /// As [`Tensor::max_pool2d_with`].
    #[track_caller]
    pub fn max_pool2d_with_backward(
        &self,
        winners: &Tensor,
        x_shape: Shape,
        geometry: Pool2dGeometry,
        options: MaxPool,
    ) -> Result<Tensor> {
        backward("max_pool2d_with_backward", [self, winners], x_shape, geometry, options)
    }

    /// The gradient of x through [`Tensor::max_pool2d`], for `self = dy`.
    ///
    /// # Errors
    /// As [`Tensor::max_pool2d`].
    #[track_caller]
    pub fn max_pool2d_backward(
        &self,
        winners: &Tensor,
        x_shape: Shape,
        geometry: Pool2dGeometry,
    ) -> Result<Tensor> {
        let options = MaxPool::default();
        backward("max_pool2d_backward", [self, winners], x_shape, geometry, options)
    }
}
