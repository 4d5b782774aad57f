//! Long short-term memory, `torch.nn.LSTM` with `batch_first=True`.

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{Device, RandomKey};

use super::lstm_walk::lstm_walk;
use super::packed::{PackedSequence, projected_runs, walk_packed};
use super::stack::{Direction, RecurrentOptions, Stack, start_of};
use crate::checks::check_option;
use crate::error::Result;
use crate::module::Module;
use crate::node::parameters;

/// Number of gates of a cell: input, forget, cell and output.
const GATES: usize = 4;

/// Layers of LSTM cells. `weight_ih_l0` holds the rows of the input gate, the forget gate, the cell
/// gate and the output gate, in this order. Backward keeps the input and six numbers for each
/// element of the output; one of the six is the output itself.
#[derive(Clone, Debug)]
pub struct Lstm(Stack);

/// The states of all cells, ordered by layer, with the forward direction first.
#[derive(Clone)]
pub struct LstmState {
    /// The hidden states h, `[L · S, B, H]`.
    pub h: Var,
    /// The cell states c, `[L · S, B, H]`.
    pub c: Var,
}

impl Lstm {
    /// Layers with uniform values in `±1 / √H`, drawn from `key`.
    ///
    /// # Errors
    /// `Option` without layers or with a dropout outside `[0, 1]`; `OutOfMemory`.
    pub fn new(device: &Device, key: RandomKey, options: RecurrentOptions) -> Result<Self> {
        Ok(Lstm(Stack::new(device, key, GATES, None, options)?))
    }

    /// [`Lstm::new`] with hidden states of `projected` numbers, `proj_size`: `weight_hr_l0`
    /// computes a hidden state from the cell's state (Sak, Senior and Beaufays, "Long short-term
    /// memory recurrent neural network architectures for large scale acoustic modeling", 2014). The
    /// shapes of outputs and of h then have P in the place of H. Every operation of a step is
    /// recorded, so backward keeps about twice the numbers that it keeps without a projection.
    ///
    /// # Errors
    /// The errors of [`Lstm::new`]; `Option` also unless `projected` is at least 1 and below the
    /// hidden size.
    pub fn with_projection(
        device: &Device,
        key: RandomKey,
        options: RecurrentOptions,
        projected: usize,
    ) -> Result<Self> {
        check_option("projected", projected as f64, "[1, the hidden size)", |_| {
            (1..options.hidden).contains(&projected)
        })?;
        Ok(Lstm(Stack::new(device, key, GATES, Some(projected), options)?))
    }

    /// [`Module::forward`] from the states `start` instead of zeros. Also returns the last states.
    ///
    /// # Shapes
    /// `input: [B, T, I] → [B, T, S · H]`
    ///
    /// # Errors
    /// `Shape`, also for a sequence without positions; `DType`, `OutOfMemory`.
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
            let state = |at: usize, len| {
                let shape = [x.shape()[0], len];
                start_of(pass, start.as_ref().map(|start| &start[at]), index, &x, shape)
            };
            let state = [state(0, self.0.projected.unwrap_or(hidden))?, state(1, hidden)?];
            let recurrent = cell.recurrent(pass, &x)?;
            let [y, h, c] = match cell.projection(pass, &x)? {
                Some(projection) => projected_walk(x, recurrent, projection, state, direction)?,
                None => lstm_walk(x, recurrent, state, direction)?,
            };
            ends[0].push(h);
            ends[1].push(c);
            Ok(y)
        })?;
        let [h, c] = ends;
        Ok((y, LstmState { h: Var::stack(h, 0)?, c: Var::stack(c, 0)? }))
    }

    /// [`Lstm::run`] on sequences of several lengths, like
    /// [`Gru::run_packed`](crate::Gru::run_packed).
    ///
    /// # Shapes
    /// `input: [N, I] → [N, S · H]`, and states in the order of the batch
    ///
    /// # Errors
    /// `Shape`, `DType`, `OutOfMemory`.
    pub fn run_packed(
        &self,
        pass: &Pass,
        input: &PackedSequence,
        start: Option<LstmState>,
    ) -> Result<(PackedSequence, LstmState)> {
        let (batch, hidden) = (input.lengths().len(), self.0.options.hidden);
        let start = match start {
            Some(LstmState { h, c }) => Some([input.sorted("lstm", h)?, input.sorted("lstm", c)?]),
            None => None,
        };
        let mut ends = [Vec::with_capacity(self.0.len()), Vec::with_capacity(self.0.len())];
        let y = self.0.forward_packed("lstm", pass, input, |index, cell, direction, x| {
            let x = projected_runs(pass, cell, input, x)?;
            let state = |at: usize, len| {
                let start = start.as_ref().map(|start| &start[at]);
                start_of(pass, start, index, &x[0], [batch, len])
            };
            let state = [state(0, self.0.projected.unwrap_or(hidden))?, state(1, hidden)?];
            let (recurrent, projection) =
                (cell.recurrent(pass, &x[0])?, cell.projection(pass, &x[0])?);
            let (y, [h, c]) = walk_packed(input, direction, x, state, |x, state| {
                let recurrent = recurrent.clone();
                let [y, h, c] = match projection.clone() {
                    Some(by) => projected_walk(x, recurrent, by, state, direction)?,
                    None => lstm_walk(x, recurrent, state, direction)?,
                };
                Ok((y, [h, c]))
            })?;
            ends[0].push(h);
            ends[1].push(c);
            Ok(y)
        })?;
        let [h, c] = ends;
        let state = |states| input.restored(Var::stack(states, 0)?);
        Ok((y, LstmState { h: state(h)?, c: state(c)? }))
    }
}

/// Runs a cell with projected states along `projected: [B, T, 4H]`. Returns all states `[B, T, P]`
/// and the last states.
fn projected_walk(
    projected: Var,
    [weight, bias]: [Var; 2],
    projection: Var,
    [mut h, mut c]: [Var; 2],
    direction: Direction,
) -> Result<[Var; 3]> {
    let len = projected.shape()[1];
    let mut states = Vec::with_capacity(len);
    for at in direction.positions(len) {
        let u = h.linear(weight.clone(), Some(bias.clone()))?;
        let gates = projected.clone().select(1, at)?.add(u)?.chunk(1, GATES)?;
        let Ok([i, f, g, o]) = <[Var; GATES]>::try_from(gates) else {
            unreachable!("as many parts as gates");
        };
        let new = i.sigmoid()?.mul(g.tanh()?)?;
        c = f.sigmoid()?.mul(c)?.add(new)?;
        h = o.sigmoid()?.mul(c.clone().tanh()?)?.linear(projection.clone(), None)?;
        states.push(h.clone());
    }
    if direction == Direction::Backward {
        states.reverse();
    }
    Ok([Var::stack(states, 1)?, h, c])
}

parameters!(Lstm { 0 as "" });

impl Module for Lstm {
    /// # Shapes
    /// `input: [B, T, I] → [B, T, S · H]`
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        Ok(self.run(pass, input, None)?.0)
    }
}
