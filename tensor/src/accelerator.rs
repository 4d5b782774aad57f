//! The services of a device with a driver, beside running kernels.

use std::ops::Range;
use std::sync::Arc;

use lowtide_allocator::{Buffer, PinnedBuffer, PinnedCache};

use crate::dtype::DType;
use crate::error::Result;

/// A device whose driver copies beside kernels and has memory of its own to run short of.
pub(crate) trait Accelerator {
    /// Memory of the host for a ring of buffers that copies read themselves.
    fn ring(&self, size_bytes: usize) -> Result<PinnedCache>;

    /// Begins to copy parts of rings to a block, in place of earlier parts.
    fn copy_ahead(
        &self,
        block: &Arc<Buffer>,
        parts: &[(&PinnedBuffer, Range<usize>)],
    ) -> Result<()>;

    /// Drops the record of what was copied ahead to a block.
    fn forget_ahead(&self, block: &Arc<Buffer>);

    /// Loads the kernels that update parameters of a float type by known formulas.
    fn reserve_updates(&self, dtype: DType) -> Result<()>;

    /// Makes a call of the driver, and makes it again if the driver had no memory for it, once the
    /// allocator has given its cache back. A call that is refused has enqueued nothing.
    ///
    /// # Errors
    /// Out of memory that names the call, where the cache did not help; else that of the call.
    fn retry(&self, call: &mut dyn FnMut() -> Result<()>) -> Result<()>;
}
