//! A live block with an owner.
#![allow(unsafe_code, reason = "turns a block's bytes into slices")]

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::panic::Location;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::arena::extent::active_bytes;
use crate::arena::state::Request;
use crate::caching::block::BlockRef;
use crate::caching::locked::State;
use crate::caching::{CachingAllocator, checked};
use crate::category::Category;
use crate::error::AllocError;
use crate::origin::{ModulePath, Origin};
use crate::source::Segment;
use crate::stream::Stream;

/// A block of memory. Dropping it returns the block to the cache. The memory stays valid for as
/// long as the buffer lives, even if no handle of the allocator is left.
pub struct Buffer {
    /// A handle that is not counted, and so never dropped: see
    /// [`LastBuffer`](super::last_buffer::LastBuffer).
    allocator: ManuallyDrop<CachingAllocator>,
    size_bytes: usize,
    block: BlockRef,
}

impl Buffer {
    /// A buffer of a block of `allocator`, whose locked state is `state`.
    #[inline(always)]
    pub(crate) fn new(
        state: &mut State,
        allocator: &CachingAllocator,
        size_bytes: usize,
        block: BlockRef,
    ) -> Buffer {
        state.last_buffer.add(|| allocator.shared().clone());
        // SAFETY: 1. the pointer comes from an `Arc`, which `LastBuffer` holds until this buffer,
        // too, is gone. 2. The copy is not used after that. 3. The copy is never dropped, so the
        // count remains the number of the handles that are dropped.
        let shared = unsafe { Arc::from_raw(Arc::as_ptr(allocator.shared())) };
        let allocator = ManuallyDrop::new(CachingAllocator::of(shared));
        Buffer { allocator, size_bytes, block }
    }

    /// Bytes asked for.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// Offset in the allocator's memory, a multiple of 512; the offset of the first piece if the
    /// block is stitched. A program gets the same offsets everywhere.
    pub fn offset(&self) -> usize {
        self.block.offset
    }

    /// True if the block consists of pieces of memory that lie apart. Its bytes have consecutive
    /// addresses all the same.
    pub fn is_stitched(&self) -> bool {
        self.block.is_stitched()
    }

    /// Category of the block.
    pub fn category(&self) -> Category {
        self.block.category()
    }

    /// The address as the device sees it.
    pub fn address(&self) -> u64 {
        let (segment, offset) = self.place();
        segment.address() + offset as u64
    }

    /// The first byte, where the processor can reach it; `None` on a source with nothing behind
    /// its addresses. Reads of memory that was never written yield whatever was there before.
    pub fn as_ptr(&self) -> Option<NonNull<u8>> {
        let (segment, offset) = self.place();
        let base = segment.host_pointer()?;
        // SAFETY: the block ends inside its segment, so the offset stays in the same mapping.
        Some(unsafe { base.add(offset) })
    }

    /// Ranges of the block in the allocator's memory, in order: one range, or one for each piece.
    pub fn pieces(&self) -> Vec<Range<usize>> {
        if !self.is_stitched() && !self.allocator.core().is_checked {
            let end = self.block.offset + active_bytes(self.size_bytes).unwrap_or(0);
            return std::iter::once(self.block.offset..end).collect();
        }
        let locked = self.allocator.core().lock();
        let pieces = locked.state.arena.layout.pieces(self.block.slot);
        pieces.map(|piece| piece.offset..piece.end()).collect()
    }

    /// The number of the block: no other block or charge of its allocator ever has it.
    pub fn serial(&self) -> u64 {
        self.block.serial
    }

    /// The module and the site that the block counts for.
    pub fn origin(&self) -> Origin {
        self.allocator.core().lock().origin(self.block.slot)
    }

    /// Assigns the block to `module`. For the memory of a model: its modules have no names before
    /// the model is whole.
    pub fn set_module(&self, module: ModulePath) {
        self.allocator.core().lock().set_module(self.block.slot, module);
    }

    /// Notes that work enqueued on `stream` uses the block: the next owner of the memory waits for
    /// that work too. The block's own stream needs no note.
    pub fn record_use(&self, stream: Stream) {
        self.allocator.core().lock().record_use(self.block.slot, stream);
    }

    /// Makes `to` wait for the block's own stream and for all streams that
    /// [`record_use`](Self::record_use) named. From then on `to` owns the block, and the next owner
    /// of the memory waits for `to` alone.
    ///
    /// # Errors
    /// A failure of the source; the streams of the block are as before.
    #[track_caller]
    pub fn transfer_to(&self, to: Stream) -> Result<(), AllocError> {
        let block = self.block;
        let request = Request::new(block.category(), 0, to, Location::caller());
        self.allocator.core().lock().transfer_to(block.slot, &request)
    }

    /// The address range that the block lies in, and its offset there.
    fn place(&self) -> (&Segment, usize) {
        let segments = &self.allocator.core().segments;
        let range = match &segments.views {
            Some(views) if self.block.is_stitched() => views,
            _ => &segments.memory,
        };
        (range, self.block.range_offset)
    }

    /// The bytes, where the processor can reach them.
    pub fn as_slice(&self) -> Option<&[u8]> {
        let pointer = self.as_ptr()?;
        // SAFETY: 1. all bytes of a memory segment with a host pointer are initialised and readable
        // (`Segment::with_host_pointer`). So are those of a view once `VirtualMemory::map` returned
        // `Ok`, and the view of a stitched block stays mapped while the block is live. 2. Live
        // blocks are disjoint (`Layout`), so whatever address they are reached by, the only way to
        // write these bytes is `&mut self`. 3. `self.allocator` keeps the segment.
        Some(unsafe { std::slice::from_raw_parts(pointer.as_ptr(), self.size_bytes) })
    }

    /// The bytes, to be written, where the processor can reach them.
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        let pointer = self.as_ptr()?;
        // SAFETY: as in `as_slice`, and `&mut self` excludes every other slice of this block.
        Some(unsafe { std::slice::from_raw_parts_mut(pointer.as_ptr(), self.size_bytes) })
    }

    /// The allocator of the block.
    pub fn allocator(&self) -> &CachingAllocator {
        &self.allocator
    }

    /// Calls `work` with the whole block, including the bytes beyond the request; `None` where the
    /// processor cannot reach the block. `block_bytes` is the length of the block.
    pub(crate) fn with_block<R>(
        &mut self,
        block_bytes: usize,
        work: impl FnOnce(&mut [u8]) -> R,
    ) -> Option<R> {
        let requested_bytes = std::mem::replace(&mut self.size_bytes, block_bytes);
        let result = self.as_mut_slice().map(work);
        self.size_bytes = requested_bytes;
        result
    }

    pub(crate) fn block(&self) -> BlockRef {
        self.block
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.allocator.core().is_checked {
            return checked::take_back(self);
        }
        let last = {
            let mut locked = self.allocator.core().lock();
            locked.free(self.block.slot);
            locked.state.last_buffer.remove()
        };
        // Another thread may have dropped the last buffer, and the allocator with it, from here on.
        drop(last);
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("category", &self.block.category())
            .field("offset", &self.block.offset)
            .field("size_bytes", &self.size_bytes)
            .finish_non_exhaustive()
    }
}
