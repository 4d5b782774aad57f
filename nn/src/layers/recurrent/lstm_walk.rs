//! Runs one LSTM cell along a sequence, with its gradient.
//!
//! Hochreiter and Schmidhuber, "Long short-term memory" (1997), with the forget gate of Gers,
//! Schmidhuber and Cummins (2000). With i, f, g and o the quarters of
//! `x W_ihᵀ + b_ih + h W_hhᵀ + b_hh`, in PyTorch's order, at each position:
//! `c = σ(f) · c + σ(i) · tanh(g)`, `h = σ(o) · tanh(c)`.
//!
//! Backward keeps the four gates, c and h of each position; tanh(c) is computed again.

use lowtide_autograd::{Needs, Saved, Var};
use lowtide_tensor::Tensor;

use super::stack::{Direction, product_over_positions};
use crate::error::Result;

/// Views of the quarters of `gates: [.., 4H]` along the last dimension.
fn quarters(gates: &Tensor) -> lowtide_tensor::TensorResult<[Tensor; 4]> {
    let axis = gates.shape().len() - 1;
    let len = gates.shape()[axis] / 4;
    let part = |index| gates.narrow(axis, index * len, len);
    Ok([part(0)?, part(1)?, part(2)?, part(3)?])
}

/// The tensors that a forward walk computes.
struct States {
    /// The gates after their activation functions, `[B, T, 4H]`.
    gates: Tensor,
    /// c at each position, `[T, B, H]`. Position is the first dimension so that the views of two
    /// positions do not interleave: a step reads one view and writes the next.
    c: Tensor,
    /// h at each position, `[B, T, H]`.
    y: Tensor,
}

/// Computes the states in place of `gates`, which hold `x W_ihᵀ + b_ih`.
fn forward(
    mut gates: Tensor,
    [weight, bias, h, c]: [&Tensor; 4],
    direction: Direction,
) -> lowtide_tensor::TensorResult<States> {
    let (device, dtype) = (gates.device().clone(), gates.dtype());
    let [batch, len, hidden] = [gates.shape()[0], gates.shape()[1], weight.shape()[1]];
    let all_c = Tensor::empty(&device, [len, batch, hidden], dtype)?;
    let y = Tensor::empty(&device, [batch, len, hidden], dtype)?;
    gates.add_(bias)?;
    let weight = weight.transpose(0, 1)?;
    let (mut h, mut c) = (h.clone(), c.clone());
    for at in direction.positions(len) {
        let mut here = gates.select(1, at)?;
        here.matmul_add_(&h, &weight)?;
        let [i, f, mut g, mut o] = quarters(&here)?;
        here.narrow(1, 0, 2 * hidden)?.sigmoid_()?;
        g.tanh_()?;
        o.sigmoid_()?;
        let (mut next_c, mut next_h) = (all_c.select(0, at)?, y.select(1, at)?);
        next_c.copy_(&c)?;
        next_c.mul_(&f)?;
        next_c.addcmul_(&i, &g, 1.0)?;
        next_h.copy_(&next_c)?;
        next_h.tanh_()?;
        next_h.mul_(&o)?;
        (h, c) = (next_h, next_c);
    }
    Ok(States { gates, c: all_c, y })
}

/// Overwrites `gates` with the gradients of the gates before their activation functions. Returns
/// the gradients of the states before the first position. `dy` is the gradient of h at each
/// position; `dh` and `dc` are the gradients of the last states.
fn backward(
    [gates, all_c]: [&Tensor; 2],
    [weight, start]: [&Tensor; 2],
    dy: Option<&Tensor>,
    [mut dh, mut dc]: [Tensor; 2],
    direction: Direction,
) -> lowtide_tensor::TensorResult<[Tensor; 2]> {
    let len = gates.shape()[1];
    let mut previous = direction.positions(len).rev().skip(1);
    for at in direction.positions(len).rev() {
        let c_before = match previous.next() {
            Some(before) => all_c.select(0, before)?,
            None => start.clone(),
        };
        if let Some(dy) = dy {
            dh.add_(&dy.select(1, at)?)?;
        }
        let here = gates.select(1, at)?;
        let [mut i, mut f, mut g, mut o] = quarters(&here)?;
        let tanh = all_c.select(0, at)?.tanh()?;
        // do = dh · tanh c, dc += dh · o · (1 - tanh² c)
        let mut through = dh.mul(&o)?;
        through.tanh_backward_(&tanh)?;
        dc.add_(&through)?;
        dh.mul_(&tanh)?;
        dh.sigmoid_backward_(&o)?;
        o.copy_(&dh)?;
        // di = dc · g, dg = dc · i, df = dc · c_before, dc_before = dc · f
        let (mut di, mut dg, mut df) = (dc.mul(&g)?, dc.mul(&i)?, dc.mul(&c_before)?);
        dc.mul_(&f)?;
        di.sigmoid_backward_(&i)?;
        dg.tanh_backward_(&g)?;
        df.sigmoid_backward_(&f)?;
        i.copy_(&di)?;
        f.copy_(&df)?;
        g.copy_(&dg)?;
        dh = here.matmul(weight)?;
    }
    Ok([dh, dc])
}

/// Runs the cell along `projected = x W_ihᵀ + b_ih` from the states `h` and `c`.
///
/// # Shapes
/// `projected: [B, T, 4H]`, `weight: [4H, H]`, `bias: [4H]`, `h, c: [B, H]` → h of all positions
/// `[B, T, H]`, and the last h and c `[B, H]`
#[track_caller]
pub(super) fn lstm_walk(
    projected: Var,
    [weight, bias]: [Var; 2],
    [h, c]: [Var; 2],
    direction: Direction,
) -> Result<[Var; 3]> {
    let inputs = vec![projected, weight, bias, h, c];
    let outputs = Var::apply_many("lstm", inputs, |values, save| {
        let [projected, weight, bias, h, c] =
            <[Tensor; 5]>::try_from(values).expect("as many values as inputs");
        let gates = if projected.is_reusable() { projected } else { projected.copied()? };
        let states = forward(gates, [&weight, &bias, &h, &c], direction)?;
        let last = direction.last(states.y.shape()[1]);
        let last_h = states.y.select(1, last)?.copied()?;
        let outputs = vec![states.y.clone(), last_h, states.c.select(0, last)?.copied()?];
        let saved = [&states.gates, &states.c, &weight, &h, &c].map(|x| save.keep(x));
        // Holds the state before each position but the first. A single position has none.
        let saved_y = (states.y.shape()[1] > 1).then(|| save.keep(&states.y));
        drop(states);
        let rule = move |dys: Vec<Option<Tensor>>, needs: Needs| {
            let [gates, all_c, weight, h, c] = saved.map(Saved::unpack);
            let (gates, all_c, weight, h, c) = (gates?, all_c?, weight?, h?, c?);
            let y = saved_y.map(Saved::unpack).transpose()?;
            let [dy, dh, dc] = <[Option<Tensor>; 3]>::try_from(dys).expect("three outputs");
            let gates = if gates.is_reusable() { gates } else { gates.copied()? };
            let or_zeros = |dx: Option<Tensor>, like: &Tensor| match dx {
                Some(dx) => dx.copied(),
                None => Tensor::zeros(like.device(), *like.shape(), like.dtype()),
            };
            let after = [or_zeros(dh, &h)?, or_zeros(dc, &c)?];
            let [dh, dc] =
                backward([&gates, &all_c], [&weight, &c], dy.as_ref(), after, direction)?;
            drop(all_c);
            // dW_hh = Σ dgatesᵀ · h_before
            let dweight = if needs.input(1) {
                let before = match &y {
                    Some(y) => direction.states_before(y, &h)?,
                    None => h.unsqueeze(1)?,
                };
                Some(product_over_positions(&gates, &before)?)
            } else {
                None
            };
            let dbias = needs.input(2).then(|| gates.sum(&[0, 1])).transpose()?;
            Ok(vec![Some(gates), dweight, dbias, Some(dh), Some(dc)])
        };
        Ok((outputs, rule))
    })?;
    Ok(<[Var; 3]>::try_from(outputs).unwrap_or_else(|_| unreachable!("three outputs")))
}
