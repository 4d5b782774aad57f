//! Resizes images; x: [B, C, H, W], y: [B, C, H', W'].

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{Interpolation, Resize};

use crate::error::Result;
use crate::module::Module;
use crate::node::parameters;

/// Resizes images, `torch.nn.Upsample` in two dimensions.
#[derive(Clone, Copy, Debug)]
pub struct Upsample {
    /// The size of the result.
    pub size: Resize,
    /// The interpolation of pixels.
    pub interpolation: Interpolation,
}

impl Upsample {
    /// Multiplies height and width by `factor`, with the nearest pixel: PyTorch's default.
    pub fn by(factor: f64) -> Self {
        Upsample { size: Resize::By([factor; 2]), interpolation: Interpolation::Nearest }
    }
}

parameters!(Upsample {});

impl Module for Upsample {
    /// # Shapes
    /// `input: [B, C, H, W] → [B, C, H', W']`
    fn forward(&self, _: &Pass, input: Var) -> Result<Var> {
        Ok(input.upsample2d(self.size, self.interpolation)?)
    }
}
