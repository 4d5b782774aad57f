//! The services of a device with a driver, beside running kernels.

use std::ops::Range;
use std::sync::Arc;

use lowtide_allocator::{Buffer, PinnedBuffer, PinnedCache};

use crate::dtype::DType;
use crate::error::Result;

/// A device whose driver copies while kernels run, and may run out of memory of its own.
pub(crate) trait Accelerator {
    /// Page-locked memory of the host for a ring of buffers. Copies read the buffers directly.
    fn ring(&self, size_bytes: usize) -> Result<PinnedCache>;

    /// Starts copies of parts of rings to a block, over the parts that were copied before.
    fn copy_ahead(
        &self,
        block: &Arc<Buffer>,
        parts: &[(&PinnedBuffer, Range<usize>)],
    ) -> Result<()>;

    /// Drops the record of the bytes that were copied ahead to a block.
    fn forget_ahead(&self, block: &Arc<Buffer>);

    /// Loads the kernels that update parameters of a float type by known formulas.
    fn reserve_updates(&self, dtype: DType) -> Result<()>;

    /// Makes a call of the driver. If the driver lacks memory, the allocator gives its cache back
    /// and the call is made again. A refused call has enqueued nothing.
    ///
    /// # Errors
    /// `OutOfMemory` with the name of the call if the second try fails too; else the error of the
    /// call.
    fn retry(&self, call: &mut dyn FnMut() -> Result<()>) -> Result<()>;
}
