//! Elman's recurrence (1990), `torch.nn.RNN` with `batch_first=True`.

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{Device, RandomKey};

use super::packed::{PackedSequence, projected_runs, walk_packed};
use super::stack::{Direction, RecurrentOptions, Stack, start_of};
use crate::error::Result;
use crate::module::Module;
use crate::node::parameters;

/// The activation function of a cell, `nonlinearity`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RnnActivation {
    /// The hyperbolic tangent.
    #[default]
    Tanh,
    /// `max(x, 0)`.
    Relu,
}

/// Layers of Elman's cells: `h = f(x W_ihᵀ + b_ih + h W_hhᵀ + b_hh)`.
#[derive(Clone, Debug)]
pub struct Rnn {
    stack: Stack,
    activation: RnnActivation,
}

impl Rnn {
    /// Layers with uniform values in `±1 / √H`, drawn from `key`.
    ///
    /// # Errors
    /// `Option` without layers or with a dropout outside `[0, 1]`; `OutOfMemory`.
    pub fn new(
        device: &Device,
        key: RandomKey,
        options: RecurrentOptions,
        activation: RnnActivation,
    ) -> Result<Self> {
        Ok(Rnn { stack: Stack::new(device, key, 1, None, options)?, activation })
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
        let hidden = self.stack.options.hidden;
        let mut ends = Vec::with_capacity(self.stack.len());
        let y = self.stack.forward("rnn", pass, input, |index, cell, direction, x| {
            let x = cell.projected(pass, x)?;
            let shape = [x.shape()[0], hidden];
            let h = start_of(pass, start.as_ref(), index, &x, shape)?;
            let recurrent = cell.recurrent(pass, &x)?;
            let [y, h] = rnn_walk(self.activation, recurrent, x, h, direction)?;
            ends.push(h);
            Ok(y)
        })?;
        Ok((y, Var::stack(ends, 0)?))
    }

    /// [`Rnn::run`] on sequences of several lengths, like
    /// [`Gru::run_packed`](crate::Gru::run_packed).
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
        let shape = [input.lengths().len(), self.stack.options.hidden];
        let start = start.map(|start| input.sorted("rnn", start)).transpose()?;
        let mut ends = Vec::with_capacity(self.stack.len());
        let y = self.stack.forward_packed("rnn", pass, input, |index, cell, direction, x| {
            let x = projected_runs(pass, cell, input, x)?;
            let state = start_of(pass, start.as_ref(), index, &x[0], shape)?;
            let recurrent = cell.recurrent(pass, &x[0])?;
            let (y, [h]) = walk_packed(input, direction, x, [state], |x, [h]| {
                let [y, h] = rnn_walk(self.activation, recurrent.clone(), x, h, direction)?;
                Ok((y, [h]))
            })?;
            ends.push(h);
            Ok(y)
        })?;
        Ok((y, input.restored(Var::stack(ends, 0)?)?))
    }
}

/// Runs a cell along `projected: [B, T, H]` from the state `h: [B, H]`. Returns all states and the
/// last state.
pub(super) fn rnn_walk(
    activation: RnnActivation,
    [weight, bias]: [Var; 2],
    projected: Var,
    mut h: Var,
    direction: Direction,
) -> Result<[Var; 2]> {
    let len = projected.shape()[1];
    let mut states = Vec::with_capacity(len);
    for at in direction.positions(len) {
        let u = h.linear(weight.clone(), Some(bias.clone()))?;
        let sum = projected.clone().select(1, at)?.add(u)?;
        h = match activation {
            RnnActivation::Tanh => sum.tanh()?,
            RnnActivation::Relu => sum.relu()?,
        };
        states.push(h.clone());
    }
    if direction == Direction::Backward {
        states.reverse();
    }
    Ok([Var::stack(states, 1)?, h])
}

parameters!(Rnn { stack as "" });

impl Module for Rnn {
    /// # Shapes
    /// `input: [B, T, I] → [B, T, S · H]`
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        Ok(self.run(pass, input, None)?.0)
    }
}
