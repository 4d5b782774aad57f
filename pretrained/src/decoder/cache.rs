//! Keys and values of earlier positions, so that a new token costs one position.
//!
//! `B` batch, `G` heads of keys and values, `D` features of a head, `S` positions that are kept.

use lowtide_autograd::Pass;
use lowtide_nn::{NnError, NnResult, RotaryTables};
use lowtide_tensor::Tensor;

use super::attention::Seen;
use super::functions::run_in;
use super::layer_cache::LayerCache;
use super::model::Decoder;
use super::shape::Positions;

/// The keys and values of each layer of a [`Decoder`] for the positions of sequences. Layers with a
/// window keep only the last positions.
#[derive(Debug)]
pub struct KeyValueCache {
    layers: Vec<LayerCache>,
    /// The angles of all positions, for each kind of layer.
    tables: Vec<Option<RotaryTables>>,
    len: usize,
    capacity: usize,
}

impl KeyValueCache {
    /// Number of positions in the cache.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no positions.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Maximum number of positions.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Counts all positions but the last as seen, for a rehearsal of the last.
    pub(crate) fn skip_to_last(&mut self) {
        self.len = self.capacity - 1;
        self.layers.iter_mut().for_each(|layer| layer.skip_to(self.capacity - 1));
    }
}

impl Decoder {
    /// Allocates a cache for `batch` sequences of at most `capacity` positions.
    ///
    /// # Errors
    /// `Option` for more positions than the model has learned, `OutOfMemory`.
    pub fn cache(&self, batch: usize, capacity: usize) -> NnResult<KeyValueCache> {
        let (shape, table) = (self.shape(), self.table.table(&Pass::eval())?);
        let positions_max = match shape.positions {
            Positions::Learned => shape.context,
            Positions::Rotary => usize::MAX,
        };
        if capacity > positions_max {
            let (name, value, range) = ("capacity", capacity as f64, "the context of the model");
            return Err(NnError::Option { name, value, range });
        }
        let (device, dtype) = (table.value().device(), table.value().dtype());
        let (groups, head_width) = (shape.attention.groups, shape.attention.head_width);
        let layer = |window: Option<usize>| {
            let room = window.map_or(capacity, |window| window.min(capacity)).max(1);
            LayerCache::new(device, [batch, groups, room, head_width], dtype)
        };
        let tables = self.kinds.iter().map(|(_, rotary)| {
            rotary.map(|rotary| rotary.tables(device, [capacity, head_width], dtype)).transpose()
        });
        Ok(KeyValueCache {
            layers: shape.layers.iter().map(|it| layer(it.window)).collect::<NnResult<_>>()?,
            tables: tables.collect::<NnResult<_>>()?,
            len: 0,
            capacity,
        })
    }

    /// The logits of the token after the last of `tokens`, which follow the positions of `cache`.
    /// No gradient is recorded. After an error the cache must not be used again.
    ///
    /// # Shapes
    /// `tokens: [B, T]` of i64 `→ [B, V]`
    ///
    /// # Errors
    /// `Option` for no tokens and for more tokens than there is room for; the errors of
    /// [`Decoder::logits`].
    pub fn extend(&self, cache: &mut KeyValueCache, tokens: &Tensor) -> NnResult<Tensor> {
        let len = tokens.shape().last().copied().unwrap_or_default();
        let room = cache.capacity - cache.len;
        if len == 0 || len > room {
            let (name, range) = ("tokens", "1 to the positions that the cache has room for");
            return Err(NnError::Option { name, value: len as f64, range });
        }
        if cache.is_empty() {
            return self.extend_at_once(cache, tokens);
        }
        for at in 0..len - 1 {
            self.extend_at_once(cache, &tokens.narrow(1, at, 1)?.contiguous()?)?;
        }
        self.extend_at_once(cache, &tokens.narrow(1, len - 1, 1)?.contiguous()?)
    }

    /// [`Decoder::extend`] by several tokens of an empty cache, or by one token.
    fn extend_at_once(&self, cache: &mut KeyValueCache, tokens: &Tensor) -> NnResult<Tensor> {
        let (pass, names) = (Pass::eval(), self.shape.family.names());
        let (start, len) = (cache.len, tokens.shape()[1]);
        let mut x = self.embedded(&pass, pass.constant(tokens.clone()), start)?;
        let kinds = self.kinds.iter().zip(&cache.tables);
        let seen = kinds.map(|(&(window, _), tables)| {
            let mask = self.mask(x.value().device(), window, None, len)?;
            let tables = tables.as_ref().map(|tables| tables.rows(start, len)).transpose()?;
            Ok(Seen { mask: mask.filter(|_| start == 0), tables })
        });
        let seen: Vec<Seen> = seen.collect::<NnResult<_>>()?;
        for (index, (layer, cache)) in self.layers.iter().zip(&mut cache.layers).enumerate() {
            let layer = layer.block();
            let seen = &seen[layer.seen_index];
            let name = format!("{}{index}", names.layers);
            x = pass.within(&name, || layer.forward_cached(&pass, x, seen, cache))?;
        }
        cache.len += len;
        let last = x.narrow(1, len - 1, 1)?;
        let last = run_in(&pass, names.norm, &self.norm, last)?;
        let logits = self.logits_of(&pass, last)?.into_value();
        let (batch, vocabulary) = (logits.shape()[0], logits.shape()[2]);
        Ok(logits.reshape([batch, vocabulary])?)
    }
}
