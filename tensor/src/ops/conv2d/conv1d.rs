//! Convolutions of sequences, as images one row high. A view turns `[B, C, L]` into `[B, C, 1, L]`.

use super::{Conv2d, Conv2dGeometry, ConvTranspose2dGeometry, transposed};
use crate::error::Result;
use crate::layout::Shape;
use crate::ops::windows::{image_of_sequence, image_shape_of_sequence};
use crate::tensor::Tensor;

/// Strides and padding of a convolution over sequences; PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv1dGeometry {
    /// Step between outputs, at least 1.
    pub stride: usize,
    /// Zeros on each side of the input.
    pub padding: usize,
    /// Step between the taps of the kernel, at least 1.
    pub dilation: usize,
    /// Independent convolutions side by side; divides both channel counts.
    pub groups: usize,
}

impl Default for Conv1dGeometry {
    fn default() -> Self {
        Conv1dGeometry { stride: 1, padding: 0, dilation: 1, groups: 1 }
    }
}

impl Conv1dGeometry {
    fn as_2d(self) -> Conv2dGeometry {
        let Conv1dGeometry { stride, padding, dilation, groups } = self;
        Conv2dGeometry {
            stride: [1, stride],
            padding: [0, padding],
            dilation: [1, dilation],
            groups,
        }
    }
}

/// Strides and padding of a transposed convolution over sequences; PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvTranspose1dGeometry {
    /// Step in the result between neighbouring inputs, at least 1.
    pub stride: usize,
    /// Positions left out on each side of the result.
    pub padding: usize,
    /// Positions added at the end of the result, less than the stride.
    pub output_padding: usize,
    /// Step between the taps of the kernel, at least 1.
    pub dilation: usize,
    /// Independent convolutions side by side; divides both channel counts.
    pub groups: usize,
}

impl Default for ConvTranspose1dGeometry {
    fn default() -> Self {
        ConvTranspose1dGeometry { stride: 1, padding: 0, output_padding: 0, dilation: 1, groups: 1 }
    }
}

impl ConvTranspose1dGeometry {
    fn as_2d(self) -> ConvTranspose2dGeometry {
        let ConvTranspose1dGeometry { stride, padding, output_padding, dilation, groups } = self;
        ConvTranspose2dGeometry {
            stride: [1, stride],
            padding: [0, padding],
            output_padding: [0, output_padding],
            dilation: [1, dilation],
            groups,
        }
    }
}

impl Tensor {
    /// [`Tensor::conv2d`] of sequences.
    ///
    /// # Shapes
    /// `x: [B, I, L], w: [O, I / groups, K], b: [O] → [B, O, L']`.
    ///
    /// # Errors
    /// As [`Tensor::conv2d`].
    #[track_caller]
    pub fn conv1d(
        &self,
        w: &Tensor,
        b: Option<&Tensor>,
        geometry: Conv1dGeometry,
    ) -> Result<Tensor> {
        let op = "conv1d";
        let x = image_of_sequence(op, self, *w.shape())?;
        let w = image_of_sequence(op, w, *self.shape())?;
        Conv2d::forward(op, &x, &w, b, geometry.as_2d())?.squeeze(2)
    }

    /// The gradient of x through [`Tensor::conv1d`], for `self = dy`.
    ///
    /// # Errors
    /// As [`Tensor::conv2d`].
    #[track_caller]
    pub fn conv1d_backward_input(
        &self,
        w: &Tensor,
        x_shape: Shape,
        geometry: Conv1dGeometry,
    ) -> Result<Tensor> {
        let op = "conv1d_backward_input";
        let x_shape = image_shape_of_sequence(op, &x_shape, *w.shape())?;
        let dy = image_of_sequence(op, self, x_shape)?;
        let w = image_of_sequence(op, w, x_shape)?;
        Conv2d::backward_input(op, &dy, &w, x_shape, geometry.as_2d())?.squeeze(2)
    }

    /// The gradient of w through [`Tensor::conv1d`], for `self = dy`.
    ///
    /// # Errors
    /// As [`Tensor::conv2d`].
    #[track_caller]
    pub fn conv1d_backward_weight(
        &self,
        x: &Tensor,
        w_shape: Shape,
        geometry: Conv1dGeometry,
    ) -> Result<Tensor> {
        let op = "conv1d_backward_weight";
        let w_shape = image_shape_of_sequence(op, &w_shape, *x.shape())?;
        let dy = image_of_sequence(op, self, w_shape)?;
        let x = image_of_sequence(op, x, w_shape)?;
        Conv2d::backward_weight(op, &dy, &x, w_shape, geometry.as_2d())?.squeeze(2)
    }

    /// [`Tensor::conv_transpose2d`] of sequences.
    ///
    /// # Shapes
    /// `x: [B, I, L], w: [I, O / groups, K], b: [O] → [B, O, L']`.
    ///
    /// # Errors
    /// As [`Tensor::conv_transpose2d`].
    #[track_caller]
    pub fn conv_transpose1d(
        &self,
        w: &Tensor,
        b: Option<&Tensor>,
        geometry: ConvTranspose1dGeometry,
    ) -> Result<Tensor> {
        let op = "conv_transpose1d";
        let x = image_of_sequence(op, self, *w.shape())?;
        let w = image_of_sequence(op, w, *self.shape())?;
        transposed::forward(op, &x, &w, b, geometry.as_2d())?.squeeze(2)
    }

    /// The gradient of x through [`Tensor::conv_transpose1d`], for `self = dy`.
    ///
    /// # Errors
    /// As [`Tensor::conv_transpose2d`].
    #[track_caller]
    pub fn conv_transpose1d_backward_input(
        &self,
        w: &Tensor,
        x_shape: Shape,
        geometry: ConvTranspose1dGeometry,
    ) -> Result<Tensor> {
        let op = "conv_transpose1d_backward_input";
        let x_shape = image_shape_of_sequence(op, &x_shape, *w.shape())?;
        let dy = image_of_sequence(op, self, x_shape)?;
        let w = image_of_sequence(op, w, x_shape)?;
        transposed::backward_input(op, &dy, &w, x_shape, geometry.as_2d())?.squeeze(2)
    }

    /// The gradient of w through [`Tensor::conv_transpose1d`], for `self = dy`.
    ///
    /// # Errors
    /// As [`Tensor::conv_transpose2d`].
    #[track_caller]
    pub fn conv_transpose1d_backward_weight(
        &self,
        x: &Tensor,
        w_shape: Shape,
        geometry: ConvTranspose1dGeometry,
    ) -> Result<Tensor> {
        let op = "conv_transpose1d_backward_weight";
        let w_shape = image_shape_of_sequence(op, &w_shape, *x.shape())?;
        let dy = image_of_sequence(op, self, w_shape)?;
        let x = image_of_sequence(op, x, w_shape)?;
        transposed::backward_weight(op, &dy, &x, w_shape, geometry.as_2d())?.squeeze(2)
    }
}
