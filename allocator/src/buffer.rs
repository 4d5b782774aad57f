//! A live block with an owner.
#![allow(unsafe_code, reason = "turns a block's bytes into slices")]

use std::fmt;
use std::ptr::NonNull;

use crate::caching::CachingAllocator;
use crate::category::{Arena, Category};
use crate::engine::Granted;

/// A block of memory. Dropping it returns the block to the cache; the memory stays valid for as
/// long as the buffer lives, even if it is the last that is left of its allocator.
pub struct Buffer {
    allocator: CachingAllocator,
    category: Category,
    size_bytes: usize,
    offset: usize,
    slot: u32,
    serial: u64,
}

impl Buffer {
    pub(crate) fn new(
        allocator: CachingAllocator,
        category: Category,
        size_bytes: usize,
        granted: Granted,
    ) -> Buffer {
        let Granted { offset, slot, serial } = granted;
        Buffer { allocator, category, size_bytes, offset, slot, serial }
    }

    /// Bytes asked for.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// Offset in the arena, a multiple of 512.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Where the block lies.
    pub fn arena(&self) -> Arena {
        self.category.arena()
    }

    /// What the block is for.
    pub fn category(&self) -> Category {
        self.category
    }

    /// The address as the device sees it.
    pub fn address(&self) -> u64 {
        self.allocator.core().segments[self.arena().index()].address() + self.offset as u64
    }

    /// The first byte, where the processor can reach it; `None` on a source with nothing behind
    /// its addresses. Reads of memory that was never written yield whatever was there before.
    pub fn as_ptr(&self) -> Option<NonNull<u8>> {
        let base = self.allocator.core().segments[self.arena().index()].host_pointer()?;
        // SAFETY: the block ends inside its segment, so the offset stays in the same mapping.
        Some(unsafe { base.add(self.offset) })
    }

    /// The bytes, where the processor can reach them.
    pub fn as_slice(&self) -> Option<&[u8]> {
        let pointer = self.as_ptr()?;
        // SAFETY: 1. a segment with a host pointer promises that committed bytes are initialised
        // and readable, and the block is committed while it is live. 2. Live blocks are disjoint
        // (`Layout`), so the only way to write these bytes is `&mut self`. 3. `self.allocator`
        // keeps the segment.
        Some(unsafe { std::slice::from_raw_parts(pointer.as_ptr(), self.size_bytes) })
    }

    /// The bytes, to be written, where the processor can reach them.
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        let pointer = self.as_ptr()?;
        // SAFETY: as in `as_slice`, and `&mut self` excludes every other slice of this block.
        Some(unsafe { std::slice::from_raw_parts_mut(pointer.as_ptr(), self.size_bytes) })
    }

    /// Where the block comes from.
    pub fn allocator(&self) -> &CachingAllocator {
        &self.allocator
    }

    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.allocator.core().lock().free(self.arena(), self.slot);
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("category", &self.category)
            .field("offset", &self.offset)
            .field("size_bytes", &self.size_bytes)
            .finish_non_exhaustive()
    }
}
