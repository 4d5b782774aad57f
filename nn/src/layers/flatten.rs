//! Flattening of all dimensions but the first.

use lowtide_autograd::{Pass, Var};

use crate::error::Result;
use crate::module::Module;
use crate::node::parameters;

/// `[B, ..] → [B, product of ..]`, without a copy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flatten;

parameters!(Flatten {});

impl Module for Flatten {
    fn forward(&self, _: &Pass, input: Var) -> Result<Var> {
        let rank = input.shape().len();
        Ok(input.flatten(1..rank)?)
    }
}
