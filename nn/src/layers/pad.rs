//! Padding around the input.

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::PadMode;

use crate::error::Result;
use crate::module::Module;
use crate::node::parameters;

/// Pads the last dimensions: `torch.nn.ZeroPad2d`, `ConstantPad1d`, `ReflectionPad2d`,
/// `ReplicationPad1d`, `CircularPad2d` and similar layers.
#[derive(Clone, Debug, PartialEq)]
pub struct Pad {
    /// Numbers of elements added before and after, for each of the last dimensions. The last entry
    /// belongs to the last dimension.
    pub amounts: Vec<[usize; 2]>,
    /// The values of the padding.
    pub mode: PadMode,
}

impl Pad {
    /// Padding with zeros before and after, for each of the last dimensions.
    pub fn zeros(amounts: &[[usize; 2]]) -> Self {
        Pad { amounts: amounts.to_vec(), mode: PadMode::Constant(0.0) }
    }
}

parameters!(Pad {});

impl Module for Pad {
    /// # Shapes
    /// `input: [.., N, ..] → [.., before + N + after, ..]`
    fn forward(&self, _: &Pass, input: Var) -> Result<Var> {
        Ok(input.pad(&self.amounts, self.mode)?)
    }
}
