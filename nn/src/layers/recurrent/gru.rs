//! Gated recurrent units, `torch.nn.GRU` with `batch_first=True`.

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{Device, RandomKey};

use super::gru_walk::gru_walk;
use super::stack::{RecurrentOptions, Stack, start_of};
use crate::error::Result;
use crate::fields::parameters;
use crate::module::Module;

/// Gates of a cell: reset, update and new.
const GATES: usize = 3;

/// Layers of GRU cells; `weight_ih_l0` holds the reset, update and new gates one after the other.
#[derive(Clone, Debug)]
pub struct Gru(Stack);

impl Gru {
    /// Layers initialised from `key`, uniform up to `1 / √H`.
    ///
    /// # Errors
    /// `Option` without layers or with a dropout outside `[0, 1]`; `OutOfMemory`.
    pub fn new(device: &Device, key: RandomKey, options: RecurrentOptions) -> Result<Self> {
        Ok(Gru(Stack::new(device, key, (GATES, None), options)?))
    }

    /// [`Module::forward`] from the states `start: [L · S, B, H]` instead of zeros, and the states
    /// at the ends: layer by layer, and forward before backward.
    ///
    /// # Shapes
    /// `input: [B, T, I] → [B, T, S · H], [L · S, B, H]`
    ///
    /// # Errors
    /// `Shape`, also without a position; `DType`, `OutOfMemory`.
    pub fn run(&self, pass: &Pass, input: Var, start: Option<Var>) -> Result<(Var, Var)> {
        let hidden = self.0.options.hidden;
        let mut ends = Vec::with_capacity(self.0.len());
        let y = self.0.forward("gru", pass, input, |index, cell, direction, x| {
            let x = cell.projected(pass, x)?;
            let state = start_of(pass, start.as_ref(), index, &x, hidden)?;
            let recurrent = cell.recurrent(pass, &x)?;
            let [y, h] = gru_walk(x, recurrent, state, direction)?;
            ends.push(h);
            Ok(y)
        })?;
        Ok((y, Var::stack(ends, 0)?))
    }
}

parameters!(Gru { 0 as "" });

impl Module for Gru {
    /// # Shapes
    /// `input: [B, T, I] → [B, T, S · H]`
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        Ok(self.run(pass, input, None)?.0)
    }
}
