//! Attention of one sequence to another, on tensors in the layout of linear layers.

use lowtide_autograd::{Needs, Saved, Var};
use lowtide_tensor::{Attention, AttentionOptions, Shape, Tensor, TensorError};

use crate::error::Result;

/// Attention of the queries `q` to the keys and values of `memory`. Each position of `memory` holds
/// its keys, then its values. Backward keeps the operands, y and one number for each query.
///
/// # Shapes
/// `q: [B, T, heads · D]`, `memory: [B, S, 2 · groups · D] → [B, T, heads · D]`
#[track_caller]
pub(crate) fn cross_attention(
    q: Var,
    memory: Var,
    [heads, groups]: [usize; 2],
    mask: Option<&Tensor>,
    options: AttentionOptions,
) -> Result<Var> {
    Ok(Var::apply("cross_attention", [q, memory], |[q, memory], save| {
        let [k, v] = keys_and_values(&memory, groups)?;
        let Attention { y, log_sum_exp } =
            by_heads(&q, heads)?.attention(&k, &v, mask, &options)?;
        let y = y.transpose(1, 2)?.reshape(*q.shape())?;
        let saved = [&q, &memory, &y, &log_sum_exp].map(|x| save.keep(x));
        let saved_mask = mask.map(|mask| save.keep(mask));
        // With p the weights: ds = p · (dy vᵀ - Σ dy·y), dq = scale · ds k,
        // dk = scale · dsᵀ q, dv = pᵀ dy
        let rule = move |dy: Tensor, _: Needs| {
            let [q, memory, y, log_sum_exp] = saved.map(Saved::unpack);
            let (q, memory) = (q?, memory?);
            let mask = saved_mask.map(Saved::unpack).transpose()?;
            let found = Attention { y: by_heads(&y?, heads)?, log_sum_exp: log_sum_exp? };
            let [k, v] = keys_and_values(&memory, groups)?;
            let operands = [&by_heads(&q, heads)?, &k, &v];
            let dy = by_heads(&dy, heads)?;
            let [dq, dk, dv] = dy.attention_backward(operands, mask.as_ref(), &found, &options)?;
            let dq = dq.transpose(1, 2)?.reshape(*q.shape())?;
            let dmemory = Tensor::empty(dy.device(), *memory.shape(), dy.dtype())?;
            for (mut part, gradient) in keys_and_values(&dmemory, groups)?.into_iter().zip([dk, dv])
            {
                part.copy_(&gradient)?;
            }
            Ok(vec![Some(dq), Some(dmemory)])
        };
        Ok((y, rule))
    })?)
}

/// `x: [B, T, H · D]` as a view `[B, H, T, D]`.
fn by_heads(x: &Tensor, heads: usize) -> lowtide_tensor::TensorResult<Tensor> {
    let left = *x.shape();
    let mismatch = TensorError::Shape { op: "cross_attention", left, right: Shape::new(&[heads]) };
    let &[batch, len, width] = &*left else { return Err(mismatch) };
    if heads == 0 || !width.is_multiple_of(heads) {
        return Err(mismatch);
    }
    x.reshape([batch, len, heads, width / heads])?.transpose(1, 2)
}

/// The keys and the values of `memory` as views `[B, G, S, D]`.
fn keys_and_values(memory: &Tensor, groups: usize) -> lowtide_tensor::TensorResult<[Tensor; 2]> {
    let all = by_heads(memory, 2 * groups)?;
    Ok([all.narrow(1, 0, groups)?, all.narrow(1, groups, groups)?])
}
