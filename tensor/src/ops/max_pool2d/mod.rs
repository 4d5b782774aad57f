//! The largest value in each window, and where it stood.
//!
//! x: [B, C, H, W], y: [B, C, H', W'].

mod cpu;

use crate::cpu::Cpu;
use crate::dtype::for_float;
use crate::{Cost, DType, Kernel, Operands, Result, Shape, Tensor, TensorError};
use cpu::MaxPool2dShape;

/// Windows of a pooling operation, (height, width).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool2dGeometry {
    /// Size of a window; at most 256 elements.
    pub kernel: [usize; 2],
    /// Step between windows, at least 1.
    pub stride: [usize; 2],
    /// Positions outside the input on each side that windows may cover, at most half a window.
    pub padding: [usize; 2],
}

impl Pool2dGeometry {
    /// Square windows side by side, PyTorch's default stride.
    pub fn square(kernel: usize) -> Self {
        Pool2dGeometry { kernel: [kernel; 2], stride: [kernel; 2], padding: [0, 0] }
    }
}

impl Pool2dGeometry {
    /// The sizes of pooling `x`, if the windows fit.
    fn with(&self, op: &'static str, x: &Shape) -> Result<MaxPool2dShape> {
        let &Pool2dGeometry { kernel, stride, padding } = self;
        let mismatch = TensorError::Shape { op, left: *x, right: kernel.into() };
        let &[batch, channels, height, width] = &**x else { return Err(mismatch) };
        let area_fits = (1..=256).contains(&(kernel[0] * kernel[1]));
        let padding_fits = (0..2).all(|axis| 2 * padding[axis] <= kernel[axis]);
        let planes = batch * channels;
        let shape = MaxPool2dShape { planes, in_size: [height, width], kernel, stride, padding };
        if !area_fits || !padding_fits || stride.contains(&0) || shape.out_size().contains(&0) {
            return Err(mismatch);
        }
        Ok(shape)
    }
}

fn cost(shape: &MaxPool2dShape, dtype: DType) -> Cost {
    let bytes = (shape.x_len() + shape.y_len()) * dtype.size_bytes() + shape.y_len();
    let flops = (shape.y_len() * shape.kernel[0] * shape.kernel[1]) as f64;
    Cost { flops, bytes: bytes as f64 }
}

struct Forward {
    shape: MaxPool2dShape,
    dtype: DType,
}

impl Kernel for Forward {
    fn name(&self) -> &'static str {
        "max_pool2d"
    }

    fn cost(&self) -> Cost {
        cost(&self.shape, self.dtype)
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for_float!(self.dtype, T => {
            let x = operands.read::<T>(0).slice();
            let (y, winners) = (operands.write::<T>(0).slice(), operands.write::<u8>(1).slice());
            cpu::forward(cpu.pool(), &self.shape, x, y, winners);
        }, else unreachable!("checked to be a float"));
        Ok(())
    }
}

struct Backward {
    shape: MaxPool2dShape,
    dtype: DType,
}

impl Kernel for Backward {
    fn name(&self) -> &'static str {
        "max_pool2d_backward"
    }

    fn cost(&self) -> Cost {
        cost(&self.shape, self.dtype)
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for_float!(self.dtype, T => {
            let (dy, winners) = (operands.read::<T>(0).slice(), operands.read::<u8>(1).slice());
            cpu::backward(cpu.pool(), &self.shape, dy, winners, operands.write::<T>(0).slice());
        }, else unreachable!("checked to be a float"));
        Ok(())
    }
}

impl Tensor {
    /// The largest value in each window, and its place in the window (row-major, u8), which is
    /// what backward needs: a byte per output instead of x. The first of equals wins, NaN over
    /// everything.
    ///
    /// # Shapes
    /// `[B, C, H, W] → [B, C, H', W']` twice, with `H' = (H + 2 padding - kernel) / stride + 1`,
    /// rounded down.
    ///
    /// # Errors
    /// `Shape` (also when no window fits), `DType`, `OutOfMemory`.
    #[track_caller]
    pub fn max_pool2d(&self, geometry: Pool2dGeometry) -> Result<(Tensor, Tensor)> {
        let op = "max_pool2d";
        self.check_float(op)?;
        let shape = geometry.with(op, self.shape())?;
        let [out_height, out_width] = shape.out_size();
        let y_shape = self.shape().with(2, out_height).with(3, out_width);
        let (device, x) = (self.device(), self.contiguous()?);
        let y = Tensor::empty(device, y_shape, self.dtype())?;
        let winners = Tensor::empty(device, y_shape, DType::U8)?;
        device.launch(Forward { shape, dtype: self.dtype() }, &[&x], &[&y, &winners])?;
        Ok((y, winners))
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
        let op = "max_pool2d_backward";
        self.check_float(op)?;
        let shape = geometry.with(op, &x_shape)?;
        let [out_height, out_width] = shape.out_size();
        self.check_shape(op, x_shape.with(2, out_height).with(3, out_width))?;
        self.check_shape(op, *winners.shape())?;
        if winners.dtype() != DType::U8 {
            return Err(TensorError::DType { op, left: winners.dtype(), right: DType::U8 });
        }
        let (device, dy, winners) = (self.device(), self.contiguous()?, winners.contiguous()?);
        let dx = Tensor::empty(device, x_shape, self.dtype())?;
        device.launch(Backward { shape, dtype: self.dtype() }, &[&dy, &winners], &[&dx])?;
        Ok(dx)
    }
}
