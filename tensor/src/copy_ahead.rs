//! Copies to a device that begin before they are asked for.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use lowtide_allocator::{Buffer, Category, PinnedBuffer};

#[cfg(feature = "cuda")]
use crate::device::Backend;
use crate::device::{COPIES, Device};
use crate::error::Result;

/// Where parts of a block begin.
const ALIGNMENT_BYTES: usize = 256;

/// Memory of a device for bytes that it will be asked to copy next, so that it copies them from the
/// host while it computes: made by [`Device::copy_ahead`].
///
/// [`Tensor::from_page_locked`](crate::Tensor::from_page_locked) of such bytes, or of a part of
/// them, is then a copy within the device. It makes the same tensor either way, and bytes that were
/// written since are never mistaken for those that were copied.
pub struct CopyAhead {
    block: Arc<Buffer>,
    #[cfg(feature = "cuda")]
    device: Device,
}

impl Device {
    /// Takes memory, for input, to copy to ahead; `None` where copies are the host's work. A
    /// simulated device takes it too.
    ///
    /// # Errors
    /// `OutOfMemory`.
    #[track_caller]
    pub fn copy_ahead(&self, size_bytes: usize) -> Result<Option<CopyAhead>> {
        if !self.copies_beside() {
            return Ok(None);
        }
        let block = self.allocator().allocate_on(COPIES, Category::Input, size_bytes)?;
        Ok(Some(CopyAhead {
            block: Arc::new(block),
            #[cfg(feature = "cuda")]
            device: self.clone(),
        }))
    }
}

impl CopyAhead {
    /// Bytes of memory for parts of these sizes.
    pub fn size_for(sizes: impl IntoIterator<Item = usize>) -> usize {
        sizes.into_iter().map(|size| size.next_multiple_of(ALIGNMENT_BYTES)).sum()
    }

    /// Begins to copy these parts of blocks of a [ring](Device::page_locked_ring) of the device, in
    /// place of those before. Of other blocks, and for which there is no room, parts are left out.
    /// A block must not be written before it has been [waited for](PinnedBuffer::wait).
    ///
    /// # Errors
    /// The driver refused.
    ///
    /// # Panics
    /// If a range is not within its block.
    pub fn begin(&mut self, parts: &[(&PinnedBuffer, Range<usize>)]) -> Result<()> {
        #[cfg(feature = "cuda")]
        if let Backend::Cuda(cuda) = self.device.backend() {
            return cuda.copy_ahead(&self.block, parts);
        }
        let _ = parts;
        Ok(())
    }
}

impl Drop for CopyAhead {
    fn drop(&mut self) {
        #[cfg(feature = "cuda")]
        if let Backend::Cuda(cuda) = self.device.backend() {
            cuda.forget_ahead(&self.block);
        }
    }
}

impl fmt::Debug for CopyAhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopyAhead").field("block", &self.block).finish_non_exhaustive()
    }
}
