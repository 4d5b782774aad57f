//! The seam for mixed precision: which type an operation runs in, and the casts of leaves that the
//! passes of a step share.

use std::collections::BTreeMap;

use lowtide_allocator::Category;
use lowtide_tensor::{DType, StorageWatch, Tensor};

use crate::attempt::LeafId;
use crate::error::Result;

/// Decides, operation by operation, what type its inputs are converted to.
pub trait CastPolicy {
    /// The type that the float inputs of `op` are converted to before it runs, or `None` to leave
    /// them alone. `inputs` are their types in order; those that are no floats stay as they are.
    fn dtype(&self, op: &str, inputs: &[DType]) -> Option<DType>;
}

/// The leaves of a step in the types that operations wanted them in, each converted once. The
/// gradients of all uses are converted back one by one and added up in the leaf's type.
#[derive(Debug, Default)]
pub(crate) struct Casts {
    kept: BTreeMap<LeafId, Vec<Cast>>,
    /// Whether new ones are not kept.
    is_closed: bool,
}

struct Cast {
    /// What was converted: a leaf may be written between two passes.
    from: StorageWatch,
    to: Tensor,
}

impl std::fmt::Debug for Cast {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.to.fmt(f)
    }
}

impl Casts {
    /// `value` as `dtype`: the one of before, if `leaf` still has the value that it was made of.
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

    /// Frees what only this holds, and keeps nothing from now on.
    pub(crate) fn close(&mut self) {
        *self = Casts { is_closed: true, ..Casts::default() };
    }
}

/// A copy of a leaf, which counts as the parameter does.
#[track_caller]
pub(crate) fn convert(value: &Tensor, dtype: DType) -> Result<Tensor> {
    let _scope = value.device().category(Category::Parameter);
    Ok(value.to_dtype(dtype)?)
}
