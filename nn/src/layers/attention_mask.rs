//! Masks of attention: which keys a query attends to, `[.., T, S]`.

use lowtide_tensor::{Causal, DType, Device, Shape, Tensor, TensorError};

use crate::error::Result;

/// The attention mask of padded sequences, for all heads and queries: true where `padding` is
/// false.
///
/// # Shapes
/// `padding: [B, S]` of truth values `→ [B, 1, 1, S]`
///
/// # Errors
/// `Shape`, `OutOfMemory`.
pub fn key_padding_mask(padding: &Tensor) -> Result<Tensor> {
    let &[batch, len] = &**padding.shape() else {
        let (left, right) = (*padding.shape(), Shape::new(&[0, 0]));
        return Err(TensorError::Shape { op: "key_padding_mask", left, right }.into());
    };
    Ok(padding.logical_not()?.reshape([batch, 1, 1, len])?)
}

/// The mask `mask`, also closed where the causal mask is closed.
pub(super) fn with_causal(
    mask: Option<Tensor>,
    device: &Device,
    [queries, keys]: [usize; 2],
    causal: Causal,
) -> Result<Option<Tensor>> {
    let diagonal = match causal {
        Causal::No => return Ok(mask),
        Causal::UpperLeft => 0,
        Causal::LowerRight => keys as isize - queries as isize,
    };
    let open = Tensor::full(device, [queries, keys], DType::Bool, 1.0)?.tril(diagonal)?;
    let Some(mask) = mask else { return Ok(Some(open)) };
    if mask.dtype() == DType::Bool {
        return Ok(Some(mask.logical_and(&open)?));
    }
    let closed = Tensor::full(device, [], mask.dtype(), f64::NEG_INFINITY)?;
    Ok(Some(open.where_cond(&mask, &closed)?))
}

/// A mask of `keys` keys, extended by `added` keys that are open for all queries.
pub(super) fn with_open_keys(mask: &Tensor, keys: usize, added: usize) -> Result<Tensor> {
    let before = mask.shape().split_last().map_or(&[][..], |(_, before)| before);
    let of = |len: usize| [before, &[len]].concat();
    let value = if mask.dtype() == DType::Bool { 1.0 } else { 0.0 };
    let open = Tensor::full(mask.device(), &of(added)[..], mask.dtype(), value)?;
    // A mask that broadcasts over the keys must be expanded: the added keys differ.
    let mask = match mask.shape().last() {
        None | Some(1) => mask.expand(&of(keys)[..])?,
        _ => mask.clone(),
    };
    Ok(Tensor::cat(&[&mask, &open], before.len())?)
}
