//! The keys and values that a layer of attention has seen.

use lowtide_nn::NnResult;
use lowtide_tensor::{DType, Device, Tensor};

/// Keys and values of a layer.
#[derive(Debug)]
pub(super) struct LayerCache {
    /// `[B, G, S, D]`. Position `p` is at `p mod S`: attention does not depend on the order of
    /// keys.
    keys: Tensor,
    values: Tensor,
    len: usize,
}

impl LayerCache {
    pub(super) fn new(device: &Device, shape: [usize; 4], dtype: DType) -> NnResult<Self> {
        let [keys, values] = [(); 2].map(|()| Tensor::empty(device, shape, dtype));
        Ok(LayerCache { keys: keys?, values: values?, len: 0 })
    }

    /// True if there are no positions.
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends the keys and values of the next positions, `[B, G, T, D]`.
    pub(super) fn extend(&mut self, keys: &Tensor, values: &Tensor) -> NnResult<()> {
        let (room, len) = (self.keys.shape()[2], keys.shape()[2]);
        // If there are more positions than room, the last positions are kept.
        let mut from = len.saturating_sub(room);
        while from < len {
            let place = (self.len + from) % room;
            let count = (len - from).min(room - place);
            for (own, new) in [(&self.keys, keys), (&self.values, values)] {
                own.narrow(2, place, count)?.copy_(&new.narrow(2, from, count)?)?;
            }
            from += count;
        }
        self.len += len;
        Ok(())
    }

    /// Counts `len` positions as appended, whatever the values are.
    pub(super) fn skip_to(&mut self, len: usize) {
        self.len = len;
    }

    /// The keys and values in the cache, `[B, G, ≤ S, D]`.
    pub(super) fn seen(&self) -> NnResult<[Tensor; 2]> {
        let len = self.len.min(self.keys.shape()[2]);
        Ok([self.keys.narrow(2, 0, len)?, self.values.narrow(2, 0, len)?])
    }
}
