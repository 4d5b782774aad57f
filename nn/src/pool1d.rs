//! Pooling of sequences; x: [B, C, L], y: [B, C, L'].

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{AvgPool, Pool1dGeometry};

use crate::{Module, Parameters, Result};

/// The largest value in each window, `torch.nn.MaxPool1d`.
#[derive(Clone, Copy, Debug)]
pub struct MaxPool1d(pub Pool1dGeometry);

impl Parameters for MaxPool1d {}

impl Module for MaxPool1d {
    /// # Shapes
    /// `input: [B, C, L] → [B, C, L']`
    fn forward(&self, _: &Pass, input: Var) -> Result<Var> {
        Ok(input.max_pool1d(self.0)?)
    }
}

/// The mean of each window, `torch.nn.AvgPool1d`.
#[derive(Clone, Copy, Debug)]
pub struct AvgPool1d {
    /// The windows.
    pub window: Pool1dGeometry,
    /// What stands at the edges; the default is PyTorch's.
    pub options: AvgPool,
}

impl Parameters for AvgPool1d {}

impl Module for AvgPool1d {
    /// # Shapes
    /// `input: [B, C, L] → [B, C, L']`
    fn forward(&self, _: &Pass, input: Var) -> Result<Var> {
        Ok(input.avg_pool1d(self.window, self.options)?)
    }
}
