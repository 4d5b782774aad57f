//! The rules of attention and of rotary embedding.

use lowtide_tensor::{Attention, AttentionOptions, DType, RotaryPairs, Shape, Tensor, TensorError};

use crate::error::Result;
use crate::rule::Needs;
use crate::rules::reuse;
use crate::saved::Saved;
use crate::var::Var;

impl Var {
    /// Attention `softmax(scale · q kᵀ + mask) v` for each head, with `self = q`; see
    /// [`Tensor::attention`]. No gradient flows through the mask. Backward keeps the operands, y
    /// and one number for each query, never the attention weights.
    #[track_caller]
    pub fn attention(
        self,
        k: Var,
        v: Var,
        mask: Option<&Tensor>,
        options: AttentionOptions,
    ) -> Result<Var> {
        Var::apply("attention", [self, k, v], |[q, k, v], save| {
            let mask = mask.map(|mask| narrowed_like(&q, mask)).transpose()?;
            let mask = mask.as_ref();
            let Attention { y, log_sum_exp } = q.attention(&k, &v, mask, &options)?;
            let saved = [&q, &k, &v, &y, &log_sum_exp].map(|x| save.keep(x));
            let saved_mask = mask.map(|mask| save.keep(mask));
            // With p the weights: ds = p · (dy vᵀ - Σ dy·y), dq = scale · ds k,
            // dk = scale · dsᵀ q, dv = pᵀ dy
            let rule = move |dy: Tensor, _: Needs| {
                let [q, k, v, y, log_sum_exp] = saved.map(Saved::unpack);
                let mask = saved_mask.map(Saved::unpack).transpose()?;
                let found = Attention { y: y?, log_sum_exp: log_sum_exp? };
                let operands = [&q?, &k?, &v?];
                let gradients = dy.attention_backward(operands, mask.as_ref(), &found, &options)?;
                Ok(gradients.map(Some).into())
            };
            Ok((y, rule))
        })
    }

    /// [`Var::attention`] of one tensor that packs `heads` queries, `groups` keys and `groups`
    /// values at each position, as one fused projection produces them. Backward writes one gradient
    /// of the same layout.
    ///
    /// # Shapes
    /// `[B, T, (heads + 2 · groups) · D] → [B, T, heads · D]`
    #[track_caller]
    pub fn self_attention(
        self,
        [heads, groups]: [usize; 2],
        mask: Option<&Tensor>,
        options: AttentionOptions,
    ) -> Result<Var> {
        Var::apply("self_attention", [self], |[packed], save| {
            let packed_shape = *packed.shape();
            let mask = mask.map(|mask| narrowed_like(&packed, mask)).transpose()?;
            let mask = mask.as_ref();
            let [q, k, v] = unpacked(&packed, heads, groups)?;
            let Attention { y, log_sum_exp } = q.attention(&k, &v, mask, &options)?;
            let (positions, width) = ([packed_shape[0], packed_shape[1]], y.shape()[3]);
            let by_heads = [positions[0], positions[1], heads, width];
            // Kept in the layout of the result, so that the next operation can keep the same
            // tensor.
            let y = y.transpose(1, 2)?.reshape([positions[0], positions[1], heads * width])?;
            let saved = [&packed, &y, &log_sum_exp].map(|x| save.keep(x));
            let saved_mask = mask.map(|mask| save.keep(mask));
            // As for attention
            let rule = move |dy: Tensor, _: Needs| {
                let [packed, y, log_sum_exp] = saved.map(Saved::unpack);
                let (packed, y) = (packed?, y?.reshape(by_heads)?.transpose(1, 2)?);
                let found = Attention { y, log_sum_exp: log_sum_exp? };
                let mask = saved_mask.map(Saved::unpack).transpose()?;
                let [q, k, v] = unpacked(&packed, heads, groups)?;
                let dy = dy.reshape(by_heads)?.transpose(1, 2)?;
                let found = dy.attention_backward([&q, &k, &v], mask.as_ref(), &found, &options)?;
                let dx = Tensor::empty(dy.device(), packed_shape, dy.dtype())?;
                for (mut part, gradient) in unpacked(&dx, heads, groups)?.into_iter().zip(found) {
                    part.copy_(&gradient)?;
                }
                Ok(vec![Some(dx)])
            };
            Ok((y, rule))
        })
    }

    /// Rotary embedding: pairs of elements rotated by the angles of their positions, in place if
    /// the input's buffer is free; see [`Tensor::rotary`]. No gradient flows to the tables.
    /// Backward keeps only the tables.
    #[track_caller]
    pub fn rotary(self, cos: &Tensor, sin: &Tensor, pairs: RotaryPairs) -> Result<Var> {
        Var::apply("rotary", [self], |[x], save| {
            let (cos, sin) = (&narrowed_like(&x, cos)?, &narrowed_like(&x, sin)?);
            let saved = [cos, sin].map(|table| save.keep(table));
            // dx = dy rotated back
            let rule = move |dy: Tensor, _: Needs| {
                let [cos, sin] = saved.map(Saved::unpack);
                let (cos, sin) = (cos?, sin?);
                let in_place = |dy: &mut Tensor| dy.rotary_backward_(&cos, &sin, pairs);
                let dx = reuse(dy, in_place, |dy| dy.rotary_backward(&cos, &sin, pairs))?;
                Ok(vec![Some(dx)])
            };
            let y = reuse(x, |x| x.rotary_(cos, sin, pairs), |x| x.rotary(cos, sin, pairs))?;
            Ok((y, rule))
        })
    }

    /// [`Var::rotary`] for the first `rotated` of the `heads` heads that one tensor packs at each
    /// position. Use this to rotate queries and keys, but not values. Runs in place if the input's
    /// buffer is free. Backward keeps only the tables.
    ///
    /// # Shapes
    /// `[B, T, heads · D] → [B, T, heads · D]`; the tables as for [`Var::rotary`]
    #[track_caller]
    pub fn rotary_heads(
        self,
        cos: &Tensor,
        sin: &Tensor,
        pairs: RotaryPairs,
        [rotated, heads]: [usize; 2],
    ) -> Result<Var> {
        Var::apply("rotary_heads", [self], |[x], save| {
            let (cos, sin) = (&narrowed_like(&x, cos)?, &narrowed_like(&x, sin)?);
            let saved = [cos, sin].map(|table| save.keep(table));
            // dx = dy rotated back in these heads
            let rule = move |dy: Tensor, _: Needs| {
                let [cos, sin] = saved.map(Saved::unpack);
                let (cos, sin) = (cos?, sin?);
                let dx = owned(dy)?;
                first_heads(&dx, [rotated, heads])?.rotary_backward_(&cos, &sin, pairs)?;
                Ok(vec![Some(dx)])
            };
            let y = owned(x)?;
            first_heads(&y, [rotated, heads])?.rotary_(cos, sin, pairs)?;
            Ok((y, rule))
        })
    }
}

/// `table` converted to the type of `x`, if a cast policy has narrowed only `x`.
fn narrowed_like(x: &Tensor, table: &Tensor) -> Result<Tensor> {
    let is_half = matches!(x.dtype(), DType::F16 | DType::BF16);
    if is_half && table.dtype() == DType::F32 {
        return Ok(table.to_dtype(x.dtype())?);
    }
    Ok(table.clone())
}

/// `x` itself if nothing else holds it, else a copy.
fn owned(x: Tensor) -> Result<Tensor> {
    reuse(x, |_| Ok(()), Tensor::copied)
}

/// The view `[B, rotated, T, D]` of the first `rotated` of `heads` heads at each position.
fn first_heads(x: &Tensor, [rotated, heads]: [usize; 2]) -> Result<Tensor> {
    let left = *x.shape();
    let right = Shape::new(&[rotated, heads]);
    let mismatch = TensorError::Shape { op: "rotary_heads", left, right };
    let &[batch, len, width] = &*left else { return Err(mismatch.into()) };
    if rotated > heads || heads == 0 || !width.is_multiple_of(heads) {
        return Err(mismatch.into());
    }
    let all = x.reshape([batch, len, heads, width / heads])?.transpose(1, 2)?;
    Ok(all.narrow(1, 0, rotated)?)
}

/// The views `[B, H, T, D]` of queries, keys and values.
fn unpacked(packed: &Tensor, heads: usize, groups: usize) -> Result<[Tensor; 3]> {
    let op = "self_attention";
    let left = *packed.shape();
    let parts = heads + 2 * groups;
    let mismatch = TensorError::Shape { op, left, right: Shape::new(&[heads, groups]) };
    let &[batch, len, width] = &*left else { return Err(mismatch.into()) };
    if parts == 0 || !width.is_multiple_of(parts) {
        return Err(mismatch.into());
    }
    let all = packed.reshape([batch, len, parts, width / parts])?.transpose(1, 2)?;
    Ok([
        all.narrow(1, 0, heads)?,
        all.narrow(1, heads, groups)?,
        all.narrow(1, heads + groups, groups)?,
    ])
}
