//! Two-dimensional convolution (cross-correlation) and its two backwards.
//!
//! x: [B, I, H, W], w: [O, I / groups, KH, KW], b: [O], y: [B, O, H', W'].
//!
//! Words of the loops on the processor:
//!
//! - tap: one (kh, kw) of the kernel, for one channel of the source; K of them meet an output.
//! - pixel: one (h, w) of an output plane; P of them.
//! - tile (`tile.rs`): the part of the source that some rows of outputs read, copied so that each
//!   tap is one contiguous run of pixels. Of dw, a tile holds rows of several images.
//! - phase (`phases.rs`): for dx, the rows and columns that a stride lets meet the same taps.
//! - bundle, frame, strip (`depthwise.rs`): where each channel is a group, sixteen planes whose
//!   pixels are turned together; some rows of them with zeros around; the results that read these.
//! - columns (`columns.rs`): of small planes, what each tap meets in all images, side by side.
//! - patches (`patches.rs`): what the taps meet where nothing of x is met twice.
//! - unit, task (`units.rs`): units are the equal parts of the result, each of some output channels
//!   of some images; a task is some units that share scratch memory, and is what a thread takes.
//! - role: which of y, dx or dw a unit computes, for whole or half types.
//! - part: a cut of a group's output channels, or of the batch for dw, whose partial sums are added
//!   up in order afterwards.
//! - piece (`weight.rs`): the rows of a few images that one tile of dw covers.
//! - run (`weight_by_pixel.rs`): so many pixels that rows of dy stay in the first-level cache.
//! - block (`output_tile.rs`): output channels whose sums are in registers at once.
//! - lanes: what the elements of a vector are: pixels, output channels (`weight_by_channel.rs`) or
//!   planes (`depthwise.rs`).
//! - turn: to transpose, of pixels and channels; turned around: the kernel read backwards, for dx.

mod channels_last;
mod columns;
mod cpu;
#[cfg(test)]
mod cpu_tests;
#[cfg(feature = "cuda")]
mod cuda;
mod depthwise;
mod depthwise_lanes;
mod one;
mod output_tile;
mod padded_plane;
mod patches;
mod phases;
mod shape;
mod tile;
mod transposed;
mod units;
mod way;
mod weight;
mod weight_by_channel;
mod weight_by_pixel;

use std::fmt::{self, Display};

use channels_last::ChannelsLast;

use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
#[cfg(feature = "cuda")]
use crate::cuda::{Cuda, CudaOperands};
use crate::dtype::{DType, for_each_float};
use crate::error::{Result, TensorError};
use crate::launch::{Kernel, Operands};
use crate::layout::Shape;
use crate::spec::DeviceKind;
use crate::tensor::Tensor;
#[cfg(feature = "cuda")]
use crate::write_mode::WriteMode;
pub use one::{Conv1dGeometry, ConvTranspose1dGeometry};
use shape::Conv2dShape;
pub use transposed::ConvTranspose2dGeometry;

/// With fewer pixels in a plane of the result a convolution runs at a part of the rate of others,
/// as with a stride: forward at 0.7 of it with 2 x 2 pixels, at 0.6 to 0.9 with a stride of 2 (one
/// core of an Intel Xeon with AVX-512, 2026-11-27).
const PIXELS_MIN: usize = 16;

/// How a convolution walks over its input, (height, width); PyTorch's defaults.
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
    /// The sizes of a convolution of `x` with `w`, if they go together.
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

/// Bytes of scratch that a convolution and its gradients take beside their results. They depend on
/// the sizes and the kind of device alone, not on the number of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2dWorkspace {
    /// Of [`Tensor::conv2d`].
    pub forward_bytes: usize,
    /// Of [`Tensor::conv2d_backward_input`].
    pub backward_input_bytes: usize,
    /// Of [`Tensor::conv2d_backward_weight`].
    pub backward_weight_bytes: usize,
}

impl Conv2dWorkspace {
    /// That of a convolution of `x` with `w`, both of `dtype`, on a device that is, or stands for,
    /// one of this `kind`; without a bias, and not in tf32. Operands that are not contiguous are
    /// copied besides.
    ///
    /// # Errors
    /// Those of [`Tensor::conv2d`].
    pub fn of(
        kind: DeviceKind,
        x: Shape,
        w: Shape,
        geometry: Conv2dGeometry,
        dtype: DType,
    ) -> Result<Self> {
        let op = "conv2d";
        let shape = geometry.with(op, &x, &w)?;
        if !dtype.is_float() {
            return Err(TensorError::DType { op, left: dtype, right: DType::F32 });
        }
        let bytes = |product| {
            let conv = Conv2d { op, product, shape, dtype, is_in_tf32: false };
            let len = conv.workspace_len(kind, false);
            len * dtype.computed().size_bytes()
        };
        Ok(Conv2dWorkspace {
            forward_bytes: bytes(Product::Forward),
            backward_input_bytes: bytes(Product::BackwardInput),
            backward_weight_bytes: bytes(Product::BackwardWeight),
        })
    }
}

impl Display for Conv2dWorkspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Conv2dWorkspace { forward_bytes, backward_input_bytes, backward_weight_bytes } = self;
        write!(
            f,
            "forward {forward_bytes} B, backward of the input {backward_input_bytes} B, \
             of the weight {backward_weight_bytes} B"
        )
    }
}

/// Which of the three products of a convolution.
#[derive(Clone, Copy, Debug)]
enum Product {
    /// y from x, w and perhaps b.
    Forward,
    /// dx from dy and w.
    BackwardInput,
    /// dw from dy and x.
    BackwardWeight,
}

struct Conv2d {
    op: &'static str,
    product: Product,
    shape: Conv2dShape,
    dtype: DType,
    /// Whether factors in f32 may be rounded to tf32.
    is_in_tf32: bool,
}

impl Conv2d {
    /// A product of tensors like `first`.
    fn of(op: &'static str, product: Product, shape: Conv2dShape, first: &Tensor) -> Self {
        let (dtype, is_in_tf32) = (first.dtype(), first.device().is_in_tf32());
        Conv2d { op, product, shape, dtype, is_in_tf32 }
    }

    /// Whether it is of one tap, at each pixel: for each image a product of matrices, which a
    /// device's library does faster than any kernel for convolutions, if rows of pixels begin where
    /// it reads several at once.
    fn is_pointwise(&self, has_bias: bool) -> bool {
        let Conv2dShape { kernel, stride, padding, groups, .. } = self.shape;
        let is_of_pixels = [kernel, stride] == [[1, 1]; 2] && padding == [0, 0] && groups == 1;
        // Gradients of weights are sums over images.
        let is_of_images = !matches!(self.product, Product::BackwardWeight);
        let row_bytes = self.shape.in_height * self.shape.in_width * self.dtype.size_bytes();
        let are_rows_aligned = !channels_last::is_used(self) || row_bytes.is_multiple_of(8);
        let is_product = is_of_pixels && is_of_images && !has_bias;
        is_product && are_rows_aligned && self.shape.batch > 0
    }

    fn workspace_len(&self, kind: DeviceKind, has_bias: bool) -> usize {
        if kind == DeviceKind::Cuda && self.is_pointwise(has_bias) {
            return 0;
        }
        if kind == DeviceKind::Cuda && channels_last::is_used(self) {
            let [.., len] = ChannelsLast::of(self).scratch();
            return len;
        }
        if kind == DeviceKind::Cuda {
            return match (self.product, self.shape.weight_parts()) {
                (Product::BackwardWeight, parts @ 2..) => parts * self.shape.w_len(),
                _ => 0,
            };
        }
        for_each_float!(self.dtype, E as T => match self.product {
            Product::Forward => cpu::forward_workspace_len::<E, T>(&self.shape),
            Product::BackwardInput => cpu::backward_input_workspace_len::<E, T>(&self.shape),
            Product::BackwardWeight => weight::backward_weight_workspace_len::<E, T>(&self.shape),
        })
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
        let kernel = Conv2d::of(op, Product::Forward, shape, x);
        let reads = [Some(x), Some(w), b].into_iter().flatten().collect::<Vec<_>>();
        kernel.run(&reads, output_shape(&shape))
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
        let kernel = Conv2d::of(op, Product::BackwardInput, shape, dy);
        kernel.run(&[dy, w], x_shape)
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
        let kernel = Conv2d::of(op, Product::BackwardWeight, shape, dy);
        kernel.run(&[dy, x], w_shape)
    }

    /// Allocates the result and the workspace, and launches.
    #[track_caller]
    fn run(self, reads: &[&Tensor], y_shape: Shape) -> Result<Tensor> {
        let first = reads[0];
        let op = self.op;
        first.check_any_float(op)?;
        reads.iter().try_for_each(|tensor| first.check_dtype(op, tensor))?;
        let reads = reads.iter().map(|tensor| tensor.contiguous()).collect::<Result<Vec<_>>>()?;
        let (device, has_bias) = (first.device(), reads.len() > 2);
        let y = Tensor::empty(device, y_shape, first.dtype())?;
        #[cfg(feature = "cuda")]
        if device.kind() == DeviceKind::Cuda && self.is_pointwise(has_bias) {
            self.multiply_pixels(&y, &reads[0], &reads[1])?;
            return Ok(y);
        }
        let scratch_len = self.workspace_len(device.kind(), has_bias);
        let scratch = Tensor::workspace(device, scratch_len, first.dtype().computed())?;
        let reads: Vec<&Tensor> = reads.iter().collect();
        device.launch(self, &reads, &[&y, &scratch])?;
        Ok(y)
    }
}

#[cfg(feature = "cuda")]
impl Conv2d {
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

impl Kernel for Conv2d {
    fn name(&self) -> &'static str {
        self.op
    }

    fn cost(&self) -> Cost {
        let s = &self.shape;
        let elements = s.x_len() + s.w_len() + s.y_len();
        let products = s.y_len() * s.w_len() / s.out_channels.max(1);
        let bytes = (elements * self.dtype.size_bytes()) as f64;
        let pixels = s.out_height() * s.out_width();
        let class = match s.stride == [1, 1] && pixels >= PIXELS_MIN {
            true => OpClass::Convolution,
            false => OpClass::CoarseConvolution,
        };
        Cost { class, flops: 2.0 * products as f64, bytes }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let (pool, shape) = (cpu.pool(), &self.shape);
        for_each_float!(self.dtype, E as T => {
            let [a, b] = [0, 1].map(|index| operands.read::<E>(index).slice());
            let bias = (operands.read_count() > 2).then(|| operands.read::<E>(2).slice());
            let y = operands.write::<E>(0).slice();
            let scratch = operands.write::<T>(1).slice();
            match self.product {
                Product::Forward => cpu::forward(pool, shape, a, b, bias, y, scratch),
                Product::BackwardInput => cpu::backward_input(pool, shape, a, b, bias, y, scratch),
                Product::BackwardWeight => {
                    weight::backward_weight(pool, shape, a, b, y, scratch);
                }
            }
        });
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn check_cuda(&self, _: &CudaOperands<'_>) -> Result<()> {
        cuda::check(self)
    }

    #[cfg(feature = "cuda")]
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        cuda::run(&self, cuda, operands)
    }
}

impl Tensor {
    /// The convolution of `self = x` with `w`, plus `b` per output channel. Every float
    /// type; sums of half types in f32.
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

    /// The gradient of w through [`Tensor::conv2d`], for `self = dy`. That of b is the sum of
    /// `dy` over all but the channels.
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
