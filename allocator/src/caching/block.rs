//! Address ranges of an allocator, and a block as its owner remembers it.

use crate::arena::state::Request;
use crate::category::Category;
use crate::source::Segment;

/// The address ranges of one allocator.
pub(crate) struct Segments {
    /// The range in which pages are committed.
    pub(crate) memory: Segment,
    /// The range in which pages are mapped a second time, if the source can.
    pub(crate) views: Option<Segment>,
}

/// A block as its owner remembers it.
///
/// The flag and the category are numbers. With a `bool` or an enum, an invalid value of that byte
/// would mark an empty `Option` of a buffer. A buffer that moves would then be copied in parts
/// around the byte, and these copies have to wait for earlier writes. With numbers the mark is the
/// handle, a word of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockRef {
    pub(crate) offset: usize,
    /// Offset in the block's address range: the range of views for a stitched block, else the
    /// memory.
    pub(crate) range_offset: usize,
    is_stitched: u8,
    category: u8,
    pub(crate) slot: u32,
    pub(crate) serial: u64,
}

impl BlockRef {
    /// A block in one piece.
    #[inline(always)]
    pub(crate) fn whole(offset: usize, slot: u32, serial: u64, request: &Request) -> BlockRef {
        let category = request.category as u8;
        BlockRef { offset, range_offset: offset, is_stitched: 0, category, slot, serial }
    }

    /// This block, mapped in one piece at an offset in the range of views.
    pub(crate) fn stitched_at(self, range_offset: usize) -> BlockRef {
        BlockRef { range_offset, is_stitched: 1, ..self }
    }

    pub(crate) fn is_stitched(&self) -> bool {
        self.is_stitched != 0
    }

    pub(crate) fn category(&self) -> Category {
        Category::ALL[usize::from(self.category)]
    }
}
