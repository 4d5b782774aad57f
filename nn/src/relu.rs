//! `max(x, 0)`.

use lowtide_autograd::{Pass, Var};

use crate::{Module, Parameters, Result};

/// The rectifier, in place where the buffer is free to reuse.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReLU;

impl Parameters for ReLU {}

impl Module for ReLU {
    fn forward(&self, _: &Pass, input: Var) -> Result<Var> {
        Ok(input.relu()?)
    }
}
