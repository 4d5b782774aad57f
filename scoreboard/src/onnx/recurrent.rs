//! Recurrent networks. LSTM is lowtide's layer. The others have gates that lowtide's layers lack,
//! and run step by step.

use lowtide_autograd::Var;
use lowtide_nn::{Directions, Lstm, LstmState, Parameters, RecurrentOptions};
use lowtide_tensor::{RandomKey, Tensor};

use super::Family;
use super::node::NodeCall;
use crate::call::{Output, Result, Stop};

pub(super) const OPS: Family = &[
    ("GRU", |node| {
        let layer = Layer::of(node, 3, &["Sigmoid", "Tanh"])?;
        let is_reset_after = node.flag("linear_before_reset")?.unwrap_or(false);
        layer.walk(node, |cell, x, h| {
            let [wx, rh] = [cell.w.clone(), cell.r.clone()];
            let input = x.linear(wx, Some(cell.input_bias.clone()))?;
            let [xz, xr, xh] = parts(input, 1)?;
            let [wz, wr, wh] = parts(rh, 0)?;
            let [bz, br, bh] = parts(cell.state_bias.clone(), 0)?;
            let z = xz.add(h.clone().linear(wz, Some(bz))?)?.sigmoid()?;
            let r = xr.add(h.clone().linear(wr, Some(br))?)?.sigmoid()?;
            let inner = if is_reset_after {
                r.mul(h.clone().linear(wh, Some(bh))?)?
            } else {
                r.mul(h.clone())?.linear(wh, Some(bh))?
            };
            let new = xh.add(inner)?.tanh()?;
            // (1 - z) · new + z · h
            Ok(new.clone().add(h.sub(new)?.mul(z)?)?)
        })
    }),
    ("LSTM", lstm),
    ("RNN", |node| {
        let layer = Layer::of(node, 1, &["Tanh"])?;
        layer.walk(node, |cell, x, h| {
            let x = x.linear(cell.w.clone(), Some(cell.input_bias.clone()))?;
            Ok(x.add(h.linear(cell.r.clone(), Some(cell.state_bias.clone()))?)?.tanh()?)
        })
    }),
];

/// Splits gates into three equal parts.
fn parts(x: Var, axis: usize) -> Result<[Var; 3]> {
    let parts = x.chunk(axis, 3)?;
    <[Var; 3]>::try_from(parts).map_err(|_| Stop::failure("three gates".to_owned()))
}

/// The weights of one direction.
struct Cell {
    /// `[G · H, I]`
    w: Var,
    /// `[G · H, H]`
    r: Var,
    /// `[G · H]`
    input_bias: Var,
    state_bias: Var,
}

/// The inputs and attributes of all recurrent operators.
struct Layer {
    /// `[T, B, I]`
    x: Var,
    cells: Vec<Cell>,
    /// `[D, B, H]`
    start: Option<Var>,
    hidden: usize,
    is_batch_first: bool,
    is_reverse: bool,
}

impl Layer {
    /// Reads the inputs `X, W, R, B, sequence_lens, initial_h` and the attributes, for `gates`
    /// gates.
    fn of(node: &NodeCall<'_>, gates: usize, own: &[&str]) -> Result<Self> {
        let (x, w, r) = (node.var(0)?, node.var(1)?, node.var(2)?);
        // The weights determine the size.
        node.ignore(&["hidden_size"]);
        let (directions, hidden) = (w.shape()[0], r.shape()[2]);
        let is_batch_first = node.flag("layout")?.unwrap_or(false);
        let direction = node.text("direction")?.unwrap_or("forward");
        if let Some(functions) = node.texts("activations")?
            && functions.chunks(own.len()).any(|functions| functions != own)
        {
            return node.no_form("other activations");
        }
        let bias = match node.optional_var(3) {
            Some(bias) => bias,
            None => {
                let shape = [directions, 2 * gates * hidden];
                node.constant(Tensor::zeros(node.device(), shape, x.value().dtype())?)
            }
        };
        let x = if is_batch_first { x.transpose(0, 1)? } else { x };
        if let Some(lens) = node.integers(4)?
            && lens.iter().any(|&len| len != x.shape()[0] as isize)
        {
            return node.no_form("sequences of several lengths");
        }
        let cell = |index: usize| -> Result<Cell> {
            let bias = bias.clone().select(0, index)?;
            Ok(Cell {
                w: w.clone().select(0, index)?,
                r: r.clone().select(0, index)?,
                input_bias: bias.clone().narrow(0, 0, gates * hidden)?,
                state_bias: bias.narrow(0, gates * hidden, gates * hidden)?,
            })
        };
        let cells = (0..directions).map(cell).collect::<Result<_>>()?;
        let is_reverse = direction == "reverse";
        let start = state(node.optional_var(5), is_batch_first)?;
        Ok(Layer { x, cells, start, hidden, is_batch_first, is_reverse })
    }

    /// True if a direction runs from the last step to the first.
    fn goes_back(&self, direction: usize) -> bool {
        self.is_reverse || direction == 1
    }

    /// Runs all steps. The function maps an input and a state to the next state.
    fn walk(
        self,
        node: &NodeCall<'_>,
        step: impl Fn(&Cell, Var, Var) -> Result<Var>,
    ) -> Result<Vec<Output>> {
        let (len, samples) = (self.x.shape()[0], self.x.shape()[1]);
        let (mut ys, mut ends) = (Vec::new(), Vec::new());
        for (direction, cell) in self.cells.iter().enumerate() {
            let mut h = match &self.start {
                Some(start) => start.clone().select(0, direction)?,
                None => {
                    let (shape, dtype) = ([samples, self.hidden], self.x.value().dtype());
                    node.constant(Tensor::zeros(node.device(), shape, dtype)?)
                }
            };
            let mut states = Vec::new();
            for index in 0..len {
                let place = if self.goes_back(direction) { len - 1 - index } else { index };
                h = step(cell, self.x.clone().select(0, place)?, h)?;
                states.push(h.clone());
            }
            if self.goes_back(direction) {
                states.reverse();
            }
            ys.push(Var::stack(states, 0)?);
            ends.push(h);
        }
        // [T, D, B, H] and [D, B, H]
        let (y, h) = (Var::stack(ys, 1)?, Var::stack(ends, 0)?);
        Ok(vec![laid_out(y, self.is_batch_first)?.into(), state_out(h, self.is_batch_first)?])
    }
}

/// `[B, D, H]` as `[D, B, H]` if batches come first, else unchanged.
fn state(x: Option<Var>, is_batch_first: bool) -> Result<Option<Var>> {
    Ok(match x {
        Some(x) if is_batch_first => Some(x.transpose(0, 1)?),
        x => x,
    })
}

fn state_out(h: Var, is_batch_first: bool) -> Result<Output> {
    Ok(if is_batch_first { h.transpose(0, 1)? } else { h }.into())
}

/// `[T, D, B, H]`, or `[B, T, D, H]`.
fn laid_out(y: Var, is_batch_first: bool) -> Result<Var> {
    Ok(if is_batch_first { y.permute(&[2, 0, 1, 3])? } else { y })
}

fn lstm(node: &NodeCall<'_>) -> Result<Vec<Output>> {
    let layer = Layer::of(node, 4, &["Sigmoid", "Tanh", "Tanh"])?;
    let cell_start = state(node.optional_var(6), layer.is_batch_first)?;
    if node.optional_var(7).is_some() {
        return node.no_form("gates that see the cell state");
    }
    let (directions, hidden) = (layer.cells.len(), layer.hidden);
    let both = if directions == 2 { Directions::Both } else { Directions::Forward };
    let options =
        RecurrentOptions { directions: both, ..RecurrentOptions::new(layer.x.shape()[2], hidden) };
    let mut own = Lstm::new(node.device(), RandomKey::new(0), options)?;
    let mut weights = Vec::new();
    for cell in &layer.cells {
        for x in [&cell.w, &cell.r, &cell.input_bias, &cell.state_bias] {
            weights.push(in_own_order(x)?);
        }
    }
    // For each direction: weights of the input and of the state, then their biases.
    let mut weights = weights.into_iter();
    own.visit(&mut |_, parameter| {
        if let Some(value) = weights.next() {
            *parameter.value_mut() = value;
        }
    });
    let x = layer.x.clone().transpose(0, 1)?;
    let x = if layer.is_reverse { x.flip(&[1])? } else { x };
    let start = match (layer.start.clone(), cell_start) {
        (None, None) => None,
        (h, c) => {
            let shape = [directions, x.shape()[0], hidden];
            let zeros = Tensor::zeros(node.device(), shape, x.value().dtype())?;
            let zeros = node.constant(zeros);
            Some(LstmState { h: h.unwrap_or(zeros.clone()), c: c.unwrap_or(zeros) })
        }
    };
    let (samples, len) = (x.shape()[0], x.shape()[1]);
    let (y, LstmState { h, c }) = own.run(node.pass(), x, start)?;
    let y = if layer.is_reverse { y.flip(&[1])? } else { y };
    let y = y.reshape([samples, len, directions, hidden])?;
    let y = if layer.is_batch_first { y } else { y.permute(&[1, 2, 0, 3])? };
    let is_batch_first = layer.is_batch_first;
    Ok(vec![y.into(), state_out(h, is_batch_first)?, state_out(c, is_batch_first)?])
}

/// Reorders the gates: input, output, forget, cell in ONNX; input, forget, cell, output in lowtide.
fn in_own_order(x: &Var) -> Result<Tensor> {
    let gates = x.clone().chunk(0, 4)?;
    let order = [0, 2, 3, 1].into_iter().filter_map(|index: usize| gates.get(index).cloned());
    Ok(Var::cat(order.collect(), 0)?.into_value())
}
