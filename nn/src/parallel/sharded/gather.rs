//! A parameter of which a rank has a part, put together when it is used.

use std::fmt::Debug;
use std::sync::Arc;

use lowtide_allocator::Category;
use lowtide_tensor::Tensor;

use crate::error::Result;
use crate::optim::part::Part;

/// Collects the parts of parameters from all ranks.
pub trait Gather: Debug + Send + Sync {
    /// Completes `whole`, in which this rank's part is at its place, with the parts of the other
    /// ranks. Parts have `part_len` elements in row-major order and follow each other by rank; the
    /// last ones may be shorter. All ranks call it in the same order.
    ///
    /// # Errors
    /// Errors of the communication.
    fn gather(&self, whole: &mut Tensor, part_len: usize) -> Result<()>;
}

/// The part of a parameter that this rank has.
#[derive(Clone, Debug)]
pub(crate) struct Sharded {
    pub(super) part: Part,
    /// Shape `[n]`.
    pub(crate) own: Tensor,
    pub(super) gather: Arc<dyn Gather>,
}

impl Sharded {
    /// The whole parameter in memory of its own, with the shape and the type of `like`.
    #[track_caller]
    pub(crate) fn whole(&self, like: &Tensor) -> Result<Tensor> {
        let (device, len) = (self.own.device(), like.element_count());
        let mut whole = Tensor::empty_in(device, Category::Parameter, *like.shape(), like.dtype())?;
        self.part.of(&whole)?.copy_(&self.own)?;
        self.gather.gather(&mut whole, self.part.len_of(len))?;
        Ok(whole)
    }
}
