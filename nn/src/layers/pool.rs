//! Pooling of sequences [B, C, L] and of images [B, C, H, W].

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{AvgPool, Pool1dGeometry, Pool2dGeometry};

use crate::error::Result;
use crate::module::Module;
use crate::node::parameters;

/// The largest value in each window, `torch.nn.MaxPool1d`.
#[derive(Clone, Copy, Debug)]
pub struct MaxPool1d(pub Pool1dGeometry);

parameters!(MaxPool1d {});

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
    /// Size and stride of the windows.
    pub window: Pool1dGeometry,
    /// Padding at the edges, and the divisor of the means; PyTorch's defaults.
    pub options: AvgPool,
}

parameters!(AvgPool1d {});

impl Module for AvgPool1d {
    /// # Shapes
    /// `input: [B, C, L] → [B, C, L']`
    fn forward(&self, _: &Pass, input: Var) -> Result<Var> {
        Ok(input.avg_pool1d(self.window, self.options)?)
    }
}

/// Max pooling, `torch.nn.MaxPool2d`.
#[derive(Clone, Copy, Debug)]
pub struct MaxPool2d(pub Pool2dGeometry);

impl MaxPool2d {
    /// Adjacent square windows with edges of `kernel` places.
    pub fn square(kernel: usize) -> Self {
        MaxPool2d(Pool2dGeometry::square(kernel))
    }
}

parameters!(MaxPool2d {});

impl Module for MaxPool2d {
    /// # Shapes
    /// `input: [B, C, H, W] → [B, C, H', W']`
    fn forward(&self, _: &Pass, input: Var) -> Result<Var> {
        Ok(input.max_pool2d(self.0)?)
    }
}

/// The mean of each window, `torch.nn.AvgPool2d`.
#[derive(Clone, Copy, Debug)]
pub struct AvgPool2d {
    /// Size and stride of the windows.
    pub window: Pool2dGeometry,
    /// Padding at the edges, and the divisor of the means; PyTorch's defaults.
    pub options: AvgPool,
}

impl AvgPool2d {
    /// Adjacent square windows with edges of `kernel` places.
    pub fn square(kernel: usize) -> Self {
        AvgPool2d { window: Pool2dGeometry::square(kernel), options: AvgPool::default() }
    }
}

parameters!(AvgPool2d {});

impl Module for AvgPool2d {
    /// # Shapes
    /// `input: [B, C, H, W] → [B, C, H', W']`
    fn forward(&self, _: &Pass, input: Var) -> Result<Var> {
        Ok(input.avg_pool2d(self.window, self.options)?)
    }
}

/// The means of this number of windows that cover the sequence, `torch.nn.AdaptiveAvgPool1d`.
#[derive(Clone, Copy, Debug)]
pub struct AdaptiveAvgPool1d(pub usize);

parameters!(AdaptiveAvgPool1d {});

impl Module for AdaptiveAvgPool1d {
    /// # Shapes
    /// `input: [B, C, L] → [B, C, windows]`
    fn forward(&self, _: &Pass, input: Var) -> Result<Var> {
        Ok(input.unsqueeze(2)?.adaptive_avg_pool2d([1, self.0])?.squeeze(2)?)
    }
}

/// The largest values of this number of windows that cover the sequence,
/// `torch.nn.AdaptiveMaxPool1d`.
#[derive(Clone, Copy, Debug)]
pub struct AdaptiveMaxPool1d(pub usize);

parameters!(AdaptiveMaxPool1d {});

impl Module for AdaptiveMaxPool1d {
    /// # Shapes
    /// `input: [B, C, L] → [B, C, windows]`
    fn forward(&self, _: &Pass, input: Var) -> Result<Var> {
        Ok(input.unsqueeze(2)?.adaptive_max_pool2d([1, self.0])?.squeeze(2)?)
    }
}

/// The means of (rows, columns) windows that cover the image, `torch.nn.AdaptiveAvgPool2d`.
#[derive(Clone, Copy, Debug)]
pub struct AdaptiveAvgPool2d(pub [usize; 2]);

parameters!(AdaptiveAvgPool2d {});

impl Module for AdaptiveAvgPool2d {
    /// # Shapes
    /// `input: [B, C, H, W] → [B, C, rows, columns]`
    fn forward(&self, _: &Pass, input: Var) -> Result<Var> {
        Ok(input.adaptive_avg_pool2d(self.0)?)
    }
}

/// The largest values of (rows, columns) windows that cover the image,
/// `torch.nn.AdaptiveMaxPool2d`.
#[derive(Clone, Copy, Debug)]
pub struct AdaptiveMaxPool2d(pub [usize; 2]);

parameters!(AdaptiveMaxPool2d {});

impl Module for AdaptiveMaxPool2d {
    /// # Shapes
    /// `input: [B, C, H, W] → [B, C, rows, columns]`
    fn forward(&self, _: &Pass, input: Var) -> Result<Var> {
        Ok(input.adaptive_max_pool2d(self.0)?)
    }
}
