//! Long short-term memory, `torch.nn.LSTM` with `batch_first=True`.

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{Device, RandomKey};

use super::lstm_walk::lstm_walk;
use super::stack::{RecurrentOptions, Stack, start_of};
use crate::error::Result;
use crate::fields::parameters;
use crate::module::Module;

/// Gates of a cell: input, forget, cell and output.
const GATES: usize = 4;

/// Layers of LSTM cells; `weight_ih_l0` holds the input, forget, cell and output gates one after
/// the other. Six numbers are saved for backward for each element of the output, which is one of
/// them, and the input.
#[derive(Clone, Debug)]
pub struct Lstm(Stack);

/// The states of all cells: layer by layer, and forward before backward.
#[derive(Clone)]
pub struct LstmState {
    /// The hidden states h, `[L · S, B, H]`.
    pub h: Var,
    /// The cell states c, `[L · S, B, H]`.
    pub c: Var,
}

impl Lstm {
    /// Layers initialised from `key`, uniform up to `1 / √H`.
    ///
    /// # Errors
    /// `Option` without layers or with a dropout outside `[0, 1]`; `OutOfMemory`.
    pub fn new(device: &Device, key: RandomKey, options: RecurrentOptions) -> Result<Self> {
        Ok(Lstm(Stack::new(device, key, GATES, options)?))
    }

    /// [`Module::forward`] from the states `start` instead of zeros, and the states at the ends.
    ///
    /// # Shapes
    /// `input: [B, T, I] → [B, T, S · H]`
    ///
    /// # Errors
    /// `Shape`, also without a position; `DType`, `OutOfMemory`.
    pub fn run(
        &self,
        pass: &Pass,
        input: Var,
        start: Option<LstmState>,
    ) -> Result<(Var, LstmState)> {
        let hidden = self.0.options.hidden;
        let start = start.map(|LstmState { h, c }| [h, c]);
        let mut ends = [Vec::with_capacity(self.0.len()), Vec::with_capacity(self.0.len())];
        let y = self.0.forward("lstm", pass, input, |index, cell, direction, x| {
            let x = cell.projected(pass, x)?;
            let state = |at: usize| {
                start_of(pass, start.as_ref().map(|start| &start[at]), index, &x, hidden)
            };
            let (state, recurrent) = ([state(0)?, state(1)?], cell.recurrent(pass, &x)?);
            let [y, h, c] = lstm_walk(x, recurrent, state, direction)?;
            ends[0].push(h);
            ends[1].push(c);
            Ok(y)
        })?;
        let [h, c] = ends;
        Ok((y, LstmState { h: Var::stack(h, 0)?, c: Var::stack(c, 0)? }))
    }
}

parameters!(Lstm { 0 as "" });

impl Module for Lstm {
    /// # Shapes
    /// `input: [B, T, I] → [B, T, S · H]`
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        Ok(self.run(pass, input, None)?.0)
    }
}
