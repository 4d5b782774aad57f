//! More places around the input.

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::PadMode;

use crate::error::Result;
use crate::module::Module;
use crate::node::parameters;

/// More places around the last dimensions: `torch.nn.ZeroPad2d`, `ConstantPad1d`,
/// `ReflectionPad2d`, `ReplicationPad1d`, `CircularPad2d` and their kin.
#[derive(Clone, Debug, PartialEq)]
pub struct Pad {
    /// How many before and after, for each of the last dimensions: the last entry is for the last.
    pub amounts: Vec<[usize; 2]>,
    /// The values of the padding.
    pub mode: PadMode,
}

impl Pad {
    /// Zeros before and after, for each of the last dimensions.
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
