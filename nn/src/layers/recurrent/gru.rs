//! Gated recurrent units, `torch.nn.GRU` with `batch_first=True`.

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{Device, RandomKey};

use super::gru_walk::gru_walk;
use super::packed::{PackedSequence, projected_runs, walk_packed};
use super::stack::{RecurrentOptions, Stack, start_of};
use crate::error::Result;
use crate::module::Module;
use crate::node::parameters;

/// Number of gates of a cell: reset, update and new.
const GATES: usize = 3;

/// Layers of GRU cells. `weight_ih_l0` holds the rows of the reset gate, the update gate and the
/// new gate, in this order.
#[derive(Clone, Debug)]
pub struct Gru(Stack);

impl Gru {
    /// Layers with uniform values in `±1 / √H`, drawn from `key`.
    ///
    /// # Errors
    /// `Option` without layers or with a dropout outside `[0, 1]`; `OutOfMemory`.
    pub fn new(device: &Device, key: RandomKey, options: RecurrentOptions) -> Result<Self> {
        Ok(Gru(Stack::new(device, key, GATES, None, options)?))
    }

    /// [`Module::forward`] from the states `start: [L · S, B, H]` instead of zeros. Also returns
    /// the last states, ordered by layer, with the forward direction first.
    ///
    /// # Shapes
    /// `input: [B, T, I] → [B, T, S · H], [L · S, B, H]`
    ///
    /// # Errors
    /// `Shape`, also for a sequence without positions; `DType`, `OutOfMemory`.
    pub fn run(&self, pass: &Pass, input: Var, start: Option<Var>) -> Result<(Var, Var)> {
        let hidden = self.0.options.hidden;
        let mut ends = Vec::with_capacity(self.0.len());
        let y = self.0.forward("gru", pass, input, |index, cell, direction, x| {
            let x = cell.projected(pass, x)?;
            let shape = [x.shape()[0], hidden];
            let state = start_of(pass, start.as_ref(), index, &x, shape)?;
            let recurrent = cell.recurrent(pass, &x)?;
            let [y, h] = gru_walk(x, recurrent, state, direction)?;
            ends.push(h);
            Ok(y)
        })?;
        Ok((y, Var::stack(ends, 0)?))
    }

    /// [`Gru::run`] on sequences of several lengths. The last state of a sequence is the state at
    /// its own end, and the backward direction starts at that end.
    ///
    /// # Shapes
    /// `input: [N, I] → [N, S · H]`, and states `[L · S, B, H]` in the order of the batch
    ///
    /// # Errors
    /// `Shape`, `DType`, `OutOfMemory`.
    pub fn run_packed(
        &self,
        pass: &Pass,
        input: &PackedSequence,
        start: Option<Var>,
    ) -> Result<(PackedSequence, Var)> {
        let shape = [input.lengths().len(), self.0.options.hidden];
        let start = start.map(|start| input.sorted("gru", start)).transpose()?;
        let mut ends = Vec::with_capacity(self.0.len());
        let y = self.0.forward_packed("gru", pass, input, |index, cell, direction, x| {
            let x = projected_runs(pass, cell, input, x)?;
            let state = start_of(pass, start.as_ref(), index, &x[0], shape)?;
            let recurrent = cell.recurrent(pass, &x[0])?;
            let (y, [h]) = walk_packed(input, direction, x, [state], |x, [h]| {
                let [y, h] = gru_walk(x, recurrent.clone(), h, direction)?;
                Ok((y, [h]))
            })?;
            ends.push(h);
            Ok(y)
        })?;
        Ok((y, input.restored(Var::stack(ends, 0)?)?))
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
