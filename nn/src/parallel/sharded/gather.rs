//! Divided parameters, which are gathered from all ranks when they are used.

use std::fmt::Debug;
use std::sync::Arc;

use lowtide_allocator::Category;
use lowtide_tensor::Tensor;

use crate::error::Result;
use crate::optim::part::Part;

/// An all-gather of the parts of a parameter.
pub trait Gather: Debug + Send + Sync {
    /// Fills `whole` with the parts of the other ranks; the part of this rank is already in its
    /// place. Parts have `part_len` elements in row-major order and are ordered by rank. The last
    /// parts may be shorter. All ranks call this in the same order.
    ///
    /// # Errors
    /// Errors of the communication.
    fn gather(&self, whole: &mut Tensor, part_len: usize) -> Result<()>;
}

/// The part of a parameter on this rank.
#[derive(Clone, Debug)]
pub(crate) struct Sharded {
    pub(super) part: Part,
    /// The elements of the part, `[n]`.
    pub(crate) own: Tensor,
    pub(super) gather: Arc<dyn Gather>,
}

impl Sharded {
    /// The whole parameter as a new tensor, with the shape and the type of `like`.
    #[track_caller]
    pub(crate) fn whole(&self, like: &Tensor) -> Result<Tensor> {
        let (device, len) = (self.own.device(), like.element_count());
        let mut whole = Tensor::empty_in(device, Category::Parameter, *like.shape(), like.dtype())?;
        self.part.of(&whole)?.copy_(&self.own)?;
        self.gather.gather(&mut whole, self.part.len_of(len))?;
        Ok(whole)
    }
}
