//! The transposed convolution: [`Tensor::conv2d_backward_input`] as a layer. Its y is the x of a
//! convolution, and its gradients are the other two products of that convolution.

use super::{Conv2d, Conv2dGeometry, Conv2dShape, Product};
use crate::error::{Result, TensorError};
use crate::layout::Shape;
use crate::tensor::Tensor;

/// Strides and padding of a transposed convolution, (height, width): the numbers of the convolution
/// whose gradient it is. PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvTranspose2dGeometry {
    /// Step in the result between neighbouring inputs, at least 1.
    pub stride: [usize; 2],
    /// Positions left out on each side of the result.
    pub padding: [usize; 2],
    /// Rows and columns added at the end of the result, less than the stride. With a stride, a
    /// convolution maps several sizes to the same size; this number selects one.
    pub output_padding: [usize; 2],
    /// Step between the taps of the kernel, at least 1.
    pub dilation: [usize; 2],
    /// Independent convolutions side by side; divides both channel counts.
    pub groups: usize,
}

impl Default for ConvTranspose2dGeometry {
    fn default() -> Self {
        let Conv2dGeometry { stride, padding, dilation, groups } = Conv2dGeometry::default();
        ConvTranspose2dGeometry { stride, padding, output_padding: [0, 0], dilation, groups }
    }
}

impl ConvTranspose2dGeometry {
    fn convolution(self) -> Conv2dGeometry {
        let ConvTranspose2dGeometry { stride, padding, dilation, groups, .. } = self;
        Conv2dGeometry { stride, padding, dilation, groups }
    }

    /// The shape of y, and the sizes of the convolution from y to x.
    fn with(self, op: &'static str, x: &Shape, w: &Shape) -> Result<(Shape, Conv2dShape)> {
        let mismatch = TensorError::Shape { op, left: *x, right: *w };
        let dims = self.out_dims(x, w).ok_or(mismatch.clone())?;
        let len = dims.iter().try_fold(1usize, |len, &dim| len.checked_mul(dim));
        len.ok_or(mismatch.clone())?;
        let y: Shape = dims.into();
        let shape = self.convolution().with(op, &y, w).map_err(|_| mismatch)?;
        Ok((y, shape))
    }

    /// `H' = (H - 1) stride - 2 padding + dilation (KH - 1) + output_padding + 1`; `None` if no
    /// result has this size.
    fn out_dims(&self, x: &Shape, w: &Shape) -> Option<[usize; 4]> {
        let (&[batch, ins, height, width], &[w_ins, taps, kh, kw]) = (&**x, &**w) else {
            return None;
        };
        let len = |axis: usize, in_len: usize, kernel: usize| {
            if self.output_padding[axis] >= self.stride[axis] {
                return None;
            }
            let span = in_len.checked_sub(1)?.checked_mul(self.stride[axis])?;
            let reach = kernel.checked_sub(1)?.checked_mul(self.dilation[axis])?;
            let whole = span.checked_add(reach)?.checked_add(self.output_padding[axis] + 1)?;
            whole.checked_sub(self.padding[axis].checked_mul(2)?).filter(|&len| len > 0)
        };
        let outs = taps.checked_mul(self.groups)?;
        let size = [len(0, height, kh)?, len(1, width, kw)?];
        (ins == w_ins).then_some([batch, outs, size[0], size[1]])
    }
}

#[track_caller]
pub(super) fn forward(
    op: &'static str,
    x: &Tensor,
    w: &Tensor,
    b: Option<&Tensor>,
    geometry: ConvTranspose2dGeometry,
) -> Result<Tensor> {
    let (y_shape, shape) = geometry.with(op, x.shape(), w.shape())?;
    if let Some(b) = b {
        b.check_shape(op, [y_shape[1]])?;
    }
    let reads = [Some(x), Some(w), b].into_iter().flatten().collect::<Vec<_>>();
    Conv2d::of(op, Product::BackwardInput, shape, &reads).run(&reads, y_shape)
}

#[track_caller]
pub(super) fn backward_input(
    op: &'static str,
    dy: &Tensor,
    w: &Tensor,
    x_shape: Shape,
    geometry: ConvTranspose2dGeometry,
) -> Result<Tensor> {
    let (y_shape, shape) = geometry.with(op, &x_shape, w.shape())?;
    dy.check_shape(op, y_shape)?;
    let reads = [dy, w];
    Conv2d::of(op, Product::Forward, shape, &reads).run(&reads, x_shape)
}

#[track_caller]
pub(super) fn backward_weight(
    op: &'static str,
    dy: &Tensor,
    x: &Tensor,
    w_shape: Shape,
    geometry: ConvTranspose2dGeometry,
) -> Result<Tensor> {
    let (y_shape, shape) = geometry.with(op, x.shape(), &w_shape)?;
    dy.check_shape(op, y_shape)?;
    // This x is the y of the convolution, and this y is its x.
    let reads = [x, dy];
    Conv2d::of(op, Product::BackwardWeight, shape, &reads).run(&reads, w_shape)
}

impl Tensor {
    /// The transposed convolution of `self = x` with `w`, plus `b` per output channel: the
    /// gradient that [`Tensor::conv2d`] with these weights gives its input. Every float type.
    ///
    /// # Shapes
    /// `x: [B, I, H, W], w: [I, O / groups, KH, KW], b: [O] → [B, O, H', W']` with
    /// `H' = (H - 1) stride - 2 padding + dilation (KH - 1) + output_padding + 1`.
    ///
    /// # Errors
    /// `Shape` (also if the result would be empty), `DType`, `OutOfMemory`.
    #[track_caller]
    pub fn conv_transpose2d(
        &self,
        w: &Tensor,
        b: Option<&Tensor>,
        geometry: ConvTranspose2dGeometry,
    ) -> Result<Tensor> {
        forward("conv_transpose2d", self, w, b, geometry)
    }

    /// The gradient of x through [`Tensor::conv_transpose2d`], for `self = dy`.
    ///
    /// # Errors
    /// As [`Tensor::conv_transpose2d`].
    #[track_caller]
    pub fn conv_transpose2d_backward_input(
        &self,
        w: &Tensor,
        x_shape: Shape,
        geometry: ConvTranspose2dGeometry,
    ) -> Result<Tensor> {
        backward_input("conv_transpose2d_backward_input", self, w, x_shape, geometry)
    }

    /// The gradient of w through [`Tensor::conv_transpose2d`], for `self = dy`. The gradient of b
    /// is the sum of `dy` over all dimensions but the channels.
    ///
    /// # Errors
    /// As [`Tensor::conv_transpose2d`].
    #[track_caller]
    pub fn conv_transpose2d_backward_weight(
        &self,
        x: &Tensor,
        w_shape: Shape,
        geometry: ConvTranspose2dGeometry,
    ) -> Result<Tensor> {
        backward_weight("conv_transpose2d_backward_weight", self, x, w_shape, geometry)
    }
}
