//! Runs one GRU cell along a sequence, with its gradient.
//!
//! Cho et al., "Learning phrase representations using RNN encoder-decoder for statistical machine
//! translation" (2014), in the form of cuDNN and PyTorch. With x and u the thirds of
//! `x W_ihᵀ + b_ih` and of `h W_hhᵀ + b_hh`, at each position: `r = σ(x_r + u_r)`,
//! `z = σ(x_z + u_z)`, `n = tanh(x_n + r · u_n)`, `h = (1 - z) · n + z · h`.
//!
//! Backward keeps the three gates, u_n and h of each position.

use lowtide_autograd::{Needs, Saved, Var};
use lowtide_tensor::Tensor;

use super::stack::{Direction, product_over_positions};
use crate::error::Result;

/// Views of the thirds of `gates: [.., 3H]` along the last dimension.
fn thirds(gates: &Tensor) -> lowtide_tensor::TensorResult<[Tensor; 3]> {
    let axis = gates.shape().len() - 1;
    let len = gates.shape()[axis] / 3;
    let part = |index| gates.narrow(axis, index * len, len);
    Ok([part(0)?, part(1)?, part(2)?])
}

/// The tensors that a forward walk computes.
struct States {
    /// The gates after their activation functions, `[B, T, 3H]`.
    gates: Tensor,
    /// u_n at each position, `[B, T, H]`.
    u: Tensor,
    /// h at each position, `[B, T, H]`.
    y: Tensor,
}

/// Computes the states in place of `gates`, which hold `x W_ihᵀ + b_ih`.
fn forward(
    gates: Tensor,
    [weight, bias, h]: [&Tensor; 3],
    direction: Direction,
) -> lowtide_tensor::TensorResult<States> {
    let (device, dtype) = (gates.device().clone(), gates.dtype());
    let [batch, len, hidden] = [gates.shape()[0], gates.shape()[1], weight.shape()[1]];
    let states = || Tensor::empty(&device, [batch, len, hidden], dtype);
    let (all_u, y) = (states()?, states()?);
    let mut h = h.clone();
    for at in direction.positions(len) {
        let u = h.linear(weight, Some(bias))?;
        let [_, _, u_n] = thirds(&u)?;
        let here = gates.select(1, at)?;
        let [r, z, mut n] = thirds(&here)?;
        let mut rz = here.narrow(1, 0, 2 * hidden)?;
        rz.add_(&u.narrow(1, 0, 2 * hidden)?)?;
        rz.sigmoid_()?;
        all_u.select(1, at)?.copy_(&u_n)?;
        n.add_(&u_n.mul(&r)?)?;
        n.tanh_()?;
        // n + z · (h - n)
        h = h.sub(&n)?;
        h.mul_(&z)?;
        h.add_(&n)?;
        y.select(1, at)?.copy_(&h)?;
    }
    Ok(States { gates, u: all_u, y })
}

/// Overwrites `gates` with the gradients of the gates before their activation functions, and `u`
/// with the gradient of u_n. Returns the gradient of the state before the first position. `dy` is
/// the gradient of h at each position, `dh` the gradient of the last state.
fn backward(
    States { gates, u: all_u, y }: &States,
    [weight, start]: [&Tensor; 2],
    dy: Option<&Tensor>,
    mut dh: Tensor,
    direction: Direction,
) -> lowtide_tensor::TensorResult<Tensor> {
    let (len, hidden) = (gates.shape()[1], weight.shape()[1]);
    let [weight_rz, weight_n] =
        [weight.narrow(0, 0, 2 * hidden)?, weight.narrow(0, 2 * hidden, hidden)?];
    let mut previous = direction.positions(len).rev().skip(1);
    for at in direction.positions(len).rev() {
        let h_before = match previous.next() {
            Some(before) => y.select(1, before)?,
            None => start.clone(),
        };
        if let Some(dy) = dy {
            dh.add_(&dy.select(1, at)?)?;
        }
        let here = gates.select(1, at)?;
        let [mut r, mut z, mut n] = thirds(&here)?;
        let mut u = all_u.select(1, at)?;
        // dz = dh · (h_before - n), dn = dh · (1 - z), dh_before = dh · z
        let mut dz = h_before.sub(&n)?;
        dz.mul_(&dh)?;
        dz.sigmoid_backward_(&z)?;
        let through = dh.mul(&z)?;
        let mut dn = dh;
        dn.sub_(&through)?;
        dn.tanh_backward_(&n)?;
        // dr = dn · u_n, du_n = dn · r
        let mut dr = dn.mul(&u)?;
        dr.sigmoid_backward_(&r)?;
        u.copy_(&dn)?;
        u.mul_(&r)?;
        r.copy_(&dr)?;
        z.copy_(&dz)?;
        n.copy_(&dn)?;
        dh = through;
        dh.matmul_add_(&here.narrow(1, 0, 2 * hidden)?, &weight_rz)?;
        dh.matmul_add_(&u, &weight_n)?;
    }
    Ok(dh)
}

/// The gradients of W_hh and b_hh. The rows of r and z use the gradients in `gates`, the rows of n
/// use the gradient of u_n.
fn of_recurrence(
    States { gates, u, y }: &States,
    h: &Tensor,
    direction: Direction,
    needs: Needs,
) -> lowtide_tensor::TensorResult<[Option<Tensor>; 2]> {
    let hidden = u.shape()[2];
    let rz = gates.narrow(2, 0, 2 * hidden)?;
    let mut gradients = [None, None];
    if needs.input(1) {
        let before = direction.states_before(y, h)?;
        let parts = [product_over_positions(&rz, &before)?, product_over_positions(u, &before)?];
        gradients[0] = Some(Tensor::cat(&[&parts[0], &parts[1]], 0)?);
    }
    if needs.input(2) {
        gradients[1] = Some(Tensor::cat(&[&rz.sum(&[0, 1])?, &u.sum(&[0, 1])?], 0)?);
    }
    Ok(gradients)
}

/// Runs the cell over all positions, from the state `h`. The product with the input weight is done
/// already: `projected = x W_ihᵀ + b_ih`.
///
/// # Shapes
/// `projected: [B, T, 3H]`, `weight: [3H, H]`, `bias: [3H]`, `h: [B, H]` → the states of all
/// positions `[B, T, H]` and the last state `[B, H]`
#[track_caller]
pub(super) fn gru_walk(
    projected: Var,
    [weight, bias]: [Var; 2],
    h: Var,
    direction: Direction,
) -> Result<[Var; 2]> {
    let inputs = vec![projected, weight, bias, h];
    let outputs = Var::apply_many("gru", inputs, |values, save| {
        let [projected, weight, bias, h] =
            <[Tensor; 4]>::try_from(values).expect("as many values as inputs");
        let gates = if projected.is_reusable() { projected } else { projected.copied()? };
        let states = forward(gates, [&weight, &bias, &h], direction)?;
        let last = states.y.select(1, direction.last(states.y.shape()[1]))?.copied()?;
        let outputs = vec![states.y.clone(), last];
        let saved = [&states.gates, &states.u, &states.y, &weight, &h].map(|x| save.keep(x));
        drop(states);
        let rule = move |dys: Vec<Option<Tensor>>, needs: Needs| {
            let [gates, u, y, weight, h] = saved.map(Saved::unpack);
            let (gates, u, y, weight, h) = (gates?, u?, y?, weight?, h?);
            let [dy, dh] = <[Option<Tensor>; 2]>::try_from(dys).expect("two outputs");
            let own = |x: Tensor| if x.is_reusable() { Ok(x) } else { x.copied() };
            let states = States { gates: own(gates)?, u: own(u)?, y };
            let dh = match dh {
                Some(dh) => dh.copied()?,
                None => Tensor::zeros(h.device(), *h.shape(), h.dtype())?,
            };
            let dh = backward(&states, [&weight, &h], dy.as_ref(), dh, direction)?;
            let [dweight, dbias] = of_recurrence(&states, &h, direction, needs)?;
            Ok(vec![Some(states.gates), dweight, dbias, Some(dh)])
        };
        Ok((outputs, rule))
    })?;
    Ok(<[Var; 2]>::try_from(outputs).unwrap_or_else(|_| unreachable!("two outputs")))
}
