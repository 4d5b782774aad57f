//! The seam for mixed precision: the policy that chooses the type of each operation, and the cached
//! casts of leaves that the passes of a step share.

use std::collections::BTreeMap;

use lowtide_allocator::Category;
use lowtide_tensor::{DType, StorageWatch, Tensor};

use crate::attempt::LeafId;
use crate::error::Result;

/// Chooses the type that the inputs of each operation are converted to.
pub trait CastPolicy {
    /// The type that the float inputs of `op` are converted to before `op` runs, or `None` to leave
    /// the inputs alone. `inputs` are the types of all inputs in order. Integers are never
    /// converted.
    fn dtype(&self, op: &str, inputs: &[DType]) -> Option<DType>;
}

/// The converted leaves of a step, each converted once per type. The gradients of all uses are
/// converted back one by one and summed in the type of the leaf.
#[derive(Debug, Default)]
pub(crate) struct Casts {
    kept: BTreeMap<LeafId, Vec<Cast>>,
    /// True if new casts are not kept any more.
    is_closed: bool,
}

struct Cast {
    /// Watches the value that was converted: a leaf may be written between two passes.
    from: StorageWatch,
    to: Tensor,
}

impl std::fmt::Debug for Cast {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.to.fmt(f)
    }
}

impl Casts {
    /// `value` as `dtype`: the kept cast, unless `leaf` has changed since that cast.
    #[track_caller]
    pub(crate) fn get(&mut self, leaf: LeafId, value: &Tensor, dtype: DType) -> Result<Tensor> {
        if self.is_closed {
            return convert(value, dtype);
        }
        let kept = self.kept.entry(leaf).or_default();
        kept.retain(|cast| cast.from.is_of(value) && !cast.from.is_written());
        let same = |cast: &&Cast| cast.to.dtype() == dtype && cast.to.shape() == value.shape();
        if let Some(cast) = kept.iter().find(same) {
            return Ok(cast.to.clone());
        }
        let to = convert(value, dtype)?;
        kept.push(Cast { from: value.watch(), to: to.clone() });
        Ok(to)
    }

    /// Frees the kept casts, and keeps none from now on.
    pub(crate) fn close(&mut self) {
        *self = Casts { is_closed: true, ..Casts::default() };
    }
}

/// A copy of a leaf in another type, in the category of parameters.
#[track_caller]
pub(crate) fn convert(value: &Tensor, dtype: DType) -> Result<Tensor> {
    let _scope = value.device().category(Category::Parameter);
    Ok(value.to_dtype(dtype)?)
}
