//! Copies to a device that begin before a program asks for them.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use lowtide_allocator::{Buffer, Category, PinnedBuffer};

use crate::copy_stream::{COPIES, room_bytes};
use crate::device::Device;
use crate::error::Result;

/// Memory of a device for bytes that it will be asked to copy next, so that it copies them from the
/// host while it computes: made by [`Device::copy_ahead`].
///
/// [`Tensor::from_page_locked`](crate::Tensor::from_page_locked) of such bytes, or of a part of
/// them, is then a copy within the device. It makes the same tensor either way, and bytes that were
/// written since are never mistaken for those that were copied.
pub struct CopyAhead {
    block: Arc<Buffer>,
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
        Ok(Some(CopyAhead { block: Arc::new(block), device: self.clone() }))
    }
}

impl CopyAhead {
    /// Bytes of memory for parts of these sizes.
    pub fn size_for(sizes: impl IntoIterator<Item = usize>) -> usize {
        sizes.into_iter().map(room_bytes).sum()
    }

    /// Begins to copy these parts of blocks of a [ring](Device::page_locked_ring) of the device, in
    /// place of earlier parts. Parts of other blocks, and parts that there is no room for, are left
    /// out. A block must not be written before it has been [waited for](PinnedBuffer::wait).
    ///
    /// # Errors
    /// The driver refused.
    ///
    /// # Panics
    /// If a range is not within its block.
    pub fn begin(&mut self, parts: &[(&PinnedBuffer, Range<usize>)]) -> Result<()> {
        match self.device.accelerator() {
            Some(accelerator) => accelerator.copy_ahead(&self.block, parts),
            None => Ok(()),
        }
    }
}

impl Drop for CopyAhead {
    fn drop(&mut self) {
        if let Some(accelerator) = self.device.accelerator() {
            accelerator.forget_ahead(&self.block);
        }
    }
}

impl fmt::Debug for CopyAhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopyAhead").field("block", &self.block).finish_non_exhaustive()
    }
}
