//! Copies to a device that begin before a program asks for them.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use lowtide_allocator::{Buffer, Category, PinnedBuffer};

use crate::copy_stream::{COPIES, room_bytes};
use crate::device::Device;
use crate::error::Result;

/// Memory of a device for the bytes of coming copies. The device fetches these bytes from the host
/// while it computes. [`Device::copy_ahead`] allocates the memory.
///
/// [`Tensor::from_page_locked`](crate::Tensor::from_page_locked) of such bytes, or of a part of
/// such bytes, is then a copy within the device. The tensor is the same either way. Bytes that the
/// host has written since are copied anew.
pub struct CopyAhead {
    block: Arc<Buffer>,
    device: Device,
}

impl Device {
    /// Allocates memory for copies ahead, in the category of input; `None` on devices whose copies
    /// are the host's work. A simulated device allocates the same memory.
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

    /// Starts copies of these parts of blocks of a [ring](Device::page_locked_ring) of the device,
    /// over the parts that were copied before. Parts of other blocks, and parts that do not fit,
    /// are left out. A block must not be written before the host has [waited for the
    /// block](PinnedBuffer::wait).
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
