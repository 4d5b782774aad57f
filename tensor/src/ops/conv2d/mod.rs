//! Two-dimensional convolution (cross-correlation) and its gradients.
//!
//! x: [B, I, H, W], w: [O, I / groups, KH, KW], b: [O], y: [B, O, H', W'].
//!
//! The table of ways (`way.rs`) selects the way to compute a product, and states its scratch
//! memory:
//!
//! | on | way | when |
//! |---|---|---|
//! | processor | `depthwise` | each channel is a group |
//! | processor | `columns` | planes have few pixels: im2col over the pixels of several images |
//! | processor | `patches` | no number of x is read twice: im2col that is a permutation |
//! | processor | `tiles` | else: an implicit matrix product over tiles of the source |
//! | NVIDIA | the library's products | one tap at each pixel |
//! | NVIDIA | `tensor_cores` | half types and tf32: an implicit product with the channels last |
//! | NVIDIA | `conv2d.cu` | else: an implicit matrix product |
//!
//! Words of the loops on the processor:
//!
//! - product: y, dx or dw, each from two factors. The source of y is x, the source of dx is dy.
//! - tap: one (kh, kw) of the kernel, for one channel of the source. K taps meet an output.
//! - pixel: one (h, w) of a plane of y. A plane has P pixels.
//! - columns, patches: the im2col matrix `[K, P]`, a row for each tap, a column for each pixel.
//! - tile: the part of the source that some rows of outputs read, copied so that each tap is one
//!   contiguous run of pixels. For dw, a tile holds rows of several images.
//! - phase: the rows and columns of dx that meet the same taps, where the stride is above 1.
//! - bundle: sixteen planes side by side, a vector of channels for each pixel (NCHW16c).
//! - frame: the rows of a bundle that some results read, surrounded by zeros.
//! - strip: the results of one frame.
//! - unit, task: units are equal parts of the result, each of some output channels of some images.
//!   A task is the units that one thread takes, with scratch memory of its own.
//! - part: a cut of a group's output channels, or of the batch for dw. The parts of dw are partial
//!   sums, which are added up in order at the end.
//! - lanes: the elements of a vector, which are pixels, output channels or planes.

mod columns;
mod conv1d;
#[cfg(feature = "cuda")]
mod cuda;
mod depthwise;
mod geometry;
mod patches;
mod phases;
mod rows;
mod shape;
mod sums;
mod tensor_cores;
#[cfg(feature = "testing")]
pub(crate) mod testing;
mod tiles;
mod transposed;
mod way;
mod weight_order;
mod workspace;

use crate::cost::Cost;
use crate::cpu::Cpu;
use crate::dtype::{DType, for_each_float};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::layout::Shape;
use crate::ops::workspace::Workspace;
use crate::spec::DeviceKind;
use crate::tensor::Tensor;
#[cfg(feature = "cuda")]
use crate::write_mode::WriteMode;
pub use conv1d::{Conv1dGeometry, ConvTranspose1dGeometry};
use shape::Conv2dShape;
pub use transposed::ConvTranspose2dGeometry;
use way::{CudaWay, Slices};
pub use workspace::Conv2dWorkspace;

/// Strides and padding of a convolution, (height, width); PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2dGeometry {
    /// Step between outputs, at least 1.
    pub stride: [usize; 2],
    /// Zeros on each side of the input.
    pub padding: [usize; 2],
    /// Step between the taps of the kernel, at least 1.
    pub dilation: [usize; 2],
    /// Independent convolutions side by side; divides both channel counts.
    pub groups: usize,
}

impl Default for Conv2dGeometry {
    fn default() -> Self {
        Conv2dGeometry { stride: [1, 1], padding: [0, 0], dilation: [1, 1], groups: 1 }
    }
}

impl Conv2dGeometry {
    /// The sizes of a convolution of `x` with `w`.
    ///
    /// # Errors
    /// `Shape` if the shapes do not match.
    fn with(&self, op: &'static str, x: &Shape, w: &Shape) -> Result<Conv2dShape> {
        let mismatch = TensorError::Shape { op, left: *x, right: *w };
        let (&[batch, in_channels, in_height, in_width], &[out_channels, taps, kh, kw]) =
            (&**x, &**w)
        else {
            return Err(mismatch);
        };
        let &Conv2dGeometry { stride, padding, dilation, groups } = self;
        let positive = [stride, dilation, [kh, kw], [groups, groups]].concat();
        if positive.contains(&0) || taps * groups != in_channels || out_channels % groups != 0 {
            return Err(mismatch);
        }
        let kernel = [kh, kw];
        let shape = Conv2dShape {
            batch,
            in_channels,
            in_height,
            in_width,
            out_channels,
            kernel,
            stride,
            padding,
            dilation,
            groups,
        };
        let fits = shape.out_height() > 0 && shape.out_width() > 0;
        if fits { Ok(shape) } else { Err(mismatch) }
    }
}

/// The three products of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Product {
    /// y from x, w and perhaps b.
    Forward,
    /// dx from dy and w, and for the transposed convolution perhaps a bias.
    BackwardInput,
    /// dw from dy and x.
    BackwardWeight,
}

/// A product to compute.
struct Conv2d {
    op: &'static str,
    product: Product,
    shape: Conv2dShape,
    dtype: DType,
    has_bias: bool,
    /// True if factors in f32 may be rounded to tf32.
    is_in_tf32: bool,
}

impl Conv2d {
    /// The product that reads `reads`: two factors, and perhaps a bias.
    fn of(op: &'static str, product: Product, shape: Conv2dShape, reads: &[&Tensor]) -> Self {
        let (dtype, is_in_tf32) = (reads[0].dtype(), reads[0].device().is_in_tf32());
        Conv2d { op, product, shape, dtype, has_bias: reads.len() > 2, is_in_tf32 }
    }

    /// Elements of scratch, in the type of the sums.
    fn workspace_len(&self, kind: DeviceKind) -> usize {
        match kind {
            DeviceKind::Cpu => for_each_float!(self.dtype, E as T => {
                way::workspace_len::<E, T>(&self.shape, self.product)
            }),
            DeviceKind::Cuda => CudaWay::of(self).workspace_len(self),
        }
    }

    #[track_caller]
    fn forward(
        op: &'static str,
        x: &Tensor,
        w: &Tensor,
        b: Option<&Tensor>,
        geometry: Conv2dGeometry,
    ) -> Result<Tensor> {
        let shape = geometry.with(op, x.shape(), w.shape())?;
        if let Some(b) = b {
            b.check_shape(op, [shape.out_channels])?;
        }
        let reads = [Some(x), Some(w), b].into_iter().flatten().collect::<Vec<_>>();
        Conv2d::of(op, Product::Forward, shape, &reads).run(&reads, output_shape(&shape))
    }

    #[track_caller]
    fn backward_input(
        op: &'static str,
        dy: &Tensor,
        w: &Tensor,
        x_shape: Shape,
        geometry: Conv2dGeometry,
    ) -> Result<Tensor> {
        let shape = geometry.with(op, &x_shape, w.shape())?;
        dy.check_shape(op, output_shape(&shape))?;
        let reads = [dy, w];
        Conv2d::of(op, Product::BackwardInput, shape, &reads).run(&reads, x_shape)
    }

    #[track_caller]
    fn backward_weight(
        op: &'static str,
        dy: &Tensor,
        x: &Tensor,
        w_shape: Shape,
        geometry: Conv2dGeometry,
    ) -> Result<Tensor> {
        let shape = geometry.with(op, x.shape(), &w_shape)?;
        dy.check_shape(op, output_shape(&shape))?;
        let reads = [dy, x];
        Conv2d::of(op, Product::BackwardWeight, shape, &reads).run(&reads, w_shape)
    }

    /// Allocates the result and the workspace, and launches.
    #[track_caller]
    fn run(self, reads: &[&Tensor], y_shape: Shape) -> Result<Tensor> {
        let first = reads[0];
        let op = self.op;
        first.check_any_float(op)?;
        reads.iter().try_for_each(|tensor| first.check_dtype(op, tensor))?;
        let reads = reads.iter().map(|tensor| tensor.contiguous()).collect::<Result<Vec<_>>>()?;
        let device = first.device();
        let y = Tensor::empty(device, y_shape, first.dtype())?;
        #[cfg(feature = "cuda")]
        if device.kind() == DeviceKind::Cuda && matches!(CudaWay::of(&self), CudaWay::Library) {
            self.multiply_pixels(&y, &reads[0], &reads[1])?;
            return Ok(y);
        }
        let workspace_len = self.workspace_len(device.kind());
        let workspace = Workspace::new(first.dtype().computed(), [workspace_len]);
        let reads: Vec<&Tensor> = reads.iter().collect();
        device.launch_with(&workspace, self, &reads, &[&y])?;
        Ok(y)
    }
}

#[cfg(feature = "cuda")]
impl Conv2d {
    /// Writes y as a product of matrices for each image: for kernels of one tap at each pixel.
    #[track_caller]
    fn multiply_pixels(&self, y: &Tensor, x: &Tensor, w: &Tensor) -> Result<()> {
        let Conv2dShape { batch, in_channels, out_channels, .. } = self.shape;
        let pixels = self.shape.in_height * self.shape.in_width;
        let w = w.reshape([out_channels, in_channels])?;
        let (w, [ins, outs]) = match self.product {
            Product::BackwardInput => (w.transpose(0, 1)?, [out_channels, in_channels]),
            _ => (w, [in_channels, out_channels]),
        };
        let (x, y) = (x.reshape([batch, ins, pixels])?, y.reshape([batch, outs, pixels])?);
        y.multiply(self.op, &w, &x, WriteMode::Overwrite)
    }
}

impl FullKernel for Conv2d {
    fn name(&self) -> &'static str {
        self.op
    }

    fn cost(&self) -> Cost {
        let s = &self.shape;
        let elements = s.x_len() + s.w_len() + s.y_len();
        let products = s.y_len() * s.w_len() / s.out_channels.max(1);
        let bytes = (elements * self.dtype.size_bytes()) as f64;
        Cost { class: way::op_class(s), flops: 2.0 * products as f64, bytes }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for_each_float!(self.dtype, E as T => {
            let slices = Slices {
                factors: [0, 1].map(|index| operands.read::<E>(index).slice()),
                bias: self.has_bias.then(|| operands.read::<E>(2).slice()),
                to: operands.write::<E>(0).slice(),
                workspace: operands.write::<T>(1).slice(),
            };
            way::run(cpu.pool(), &self.shape, self.product, slices);
        });
        Ok(())
    }
}

impl Tensor {
    /// The convolution of `self = x` with `w`, plus `b` for each output channel. Every float type;
    /// half types are summed in f32.
    ///
    /// # Shapes
    /// `x: [B, I, H, W], w: [O, I / groups, KH, KW], b: [O] → [B, O, H', W']` with
    /// `H' = (H + 2 padding - dilation (KH - 1) - 1) / stride + 1`, rounded down.
    ///
    /// # Errors
    /// `Shape` (also when the kernel does not fit), `DType`, `OutOfMemory`.
    #[track_caller]
    pub fn conv2d(
        &self,
        w: &Tensor,
        b: Option<&Tensor>,
        geometry: Conv2dGeometry,
    ) -> Result<Tensor> {
        Conv2d::forward("conv2d", self, w, b, geometry)
    }

    /// The gradient of x through [`Tensor::conv2d`], for `self = dy`.
    ///
    /// # Errors
    /// As [`Tensor::conv2d`].
    #[track_caller]
    pub fn conv2d_backward_input(
        &self,
        w: &Tensor,
        x_shape: Shape,
        geometry: Conv2dGeometry,
    ) -> Result<Tensor> {
        Conv2d::backward_input("conv2d_backward_input", self, w, x_shape, geometry)
    }

    /// The gradient of w through [`Tensor::conv2d`], for `self = dy`. The gradient of b is the sum
    /// of `dy` over all dimensions but the channels.
    ///
    /// # Errors
    /// As [`Tensor::conv2d`].
    #[track_caller]
    pub fn conv2d_backward_weight(
        &self,
        x: &Tensor,
        w_shape: Shape,
        geometry: Conv2dGeometry,
    ) -> Result<Tensor> {
        Conv2d::backward_weight("conv2d_backward_weight", self, x, w_shape, geometry)
    }
}

fn output_shape(shape: &Conv2dShape) -> Shape {
    [shape.batch, shape.out_channels, shape.out_height(), shape.out_width()].into()
}
