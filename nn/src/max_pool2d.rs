//! The largest value in each window; x: [B, C, H, W], y: [B, C, H', W'].

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::Pool2dGeometry;

use crate::{Module, Parameters, Result};

/// Max pooling, `torch.nn.MaxPool2d`.
#[derive(Clone, Copy, Debug)]
pub struct MaxPool2d(pub Pool2dGeometry);

impl MaxPool2d {
    /// Square windows of `kernel` side by side.
    pub fn square(kernel: usize) -> Self {
        MaxPool2d(Pool2dGeometry::square(kernel))
    }
}

impl Parameters for MaxPool2d {}

impl Module for MaxPool2d {
    /// # Shapes
    /// `input: [B, C, H, W] → [B, C, H', W']`
    fn forward(&self, _: &Pass, input: Var) -> Result<Var> {
        Ok(input.max_pool2d(self.0)?)
    }
}
