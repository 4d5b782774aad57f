//! Pooling of sequences, as images one row high.

use super::{MaxPool, Pool2dGeometry, backward, forward};
use crate::error::Result;
use crate::layout::Shape;
use crate::ops::windows::{image_of_sequence, image_shape_of_sequence};
use crate::tensor::Tensor;

/// Windows of a pooling over sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool1dGeometry {
    /// Length of a window; at most 256 for max pooling.
    pub kernel: usize,
    /// Step between windows, at least 1.
    pub stride: usize,
    /// Positions outside the input on each side that windows may cover, at most half a window.
    pub padding: usize,
}

impl Pool1dGeometry {
    /// Adjacent windows: PyTorch's default stride.
    pub fn side_by_side(kernel: usize) -> Self {
        Pool1dGeometry { kernel, stride: kernel, padding: 0 }
    }

    /// The equivalent windows of an image one row high.
    pub(crate) fn as_2d(self) -> Pool2dGeometry {
        let Pool1dGeometry { kernel, stride, padding } = self;
        Pool2dGeometry { kernel: [1, kernel], stride: [1, stride], padding: [0, padding] }
    }

    /// `[B, C, L]` as `[B, C, 1, L]`.
    pub(crate) fn image_of(self, op: &'static str, x: &Tensor) -> Result<Tensor> {
        image_of_sequence(op, x, [self.kernel].into())
    }

    /// [`Pool1dGeometry::image_of`] for a shape.
    pub(crate) fn image_shape(self, op: &'static str, x: &Shape) -> Result<Shape> {
        image_shape_of_sequence(op, x, [self.kernel].into())
    }
}

impl Tensor {
    /// [`Tensor::max_pool2d`] of sequences: `[B, C, L] → [B, C, L']` twice.
    ///
    /// # Errors
    /// As [`Tensor::max_pool2d`].
    #[track_caller]
    pub fn max_pool1d(&self, window: Pool1dGeometry) -> Result<(Tensor, Tensor)> {
        let op = "max_pool1d";
        let (x, options) = (window.image_of(op, self)?, MaxPool::default());
        let (y, winners) = forward(op, &x, window.as_2d(), options)?;
        Ok((y.squeeze(2)?, winners.squeeze(2)?))
    }

    /// The gradient of x through [`Tensor::max_pool1d`], for `self = dy`.
    ///
    /// # Errors
    /// As [`Tensor::max_pool2d`].
    #[track_caller]
    pub fn max_pool1d_backward(
        &self,
        winners: &Tensor,
        x_shape: Shape,
        window: Pool1dGeometry,
    ) -> Result<Tensor> {
        let op = "max_pool1d_backward";
        let x_shape = window.image_shape(op, &x_shape)?;
        let [dy, winners] = [window.image_of(op, self)?, window.image_of(op, winners)?];
        let (window, options) = (window.as_2d(), MaxPool::default());
        backward(op, [&dy, &winners], x_shape, window, options)?.squeeze(2)
    }
}
