//! Ranges of the arena, and how sizes are rounded.

/// Alignment of blocks: each one starts and ends at a multiple.
pub const BLOCK_BYTES: usize = 512;

/// Least length of the guard behind a block in checked mode. The rest of the last 512 bytes belongs
/// to the guard too: it is up to 575 bytes long.
pub(crate) const GUARD_BYTES: usize = 64;

/// Bytes of a block for a request: rounded up, and at least [`BLOCK_BYTES`]. `None` on overflow.
#[inline]
pub fn active_bytes(requested_bytes: usize) -> Option<usize> {
    requested_bytes.max(1).checked_next_multiple_of(BLOCK_BYTES)
}

/// A range of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// Offset of the first byte.
    pub offset: usize,
    /// Length in bytes.
    pub size_bytes: usize,
}

impl Extent {
    pub(crate) fn end(self) -> usize {
        self.offset + self.size_bytes
    }

    /// The pages that hold a byte of the range.
    pub(crate) fn pages_around(self, page_bytes: usize) -> Extent {
        let offset = page_floor(self.offset, page_bytes);
        Extent { offset, size_bytes: page_ceil(self.end(), page_bytes) - offset }
    }

    /// The whole pages inside the range; an empty range at any offset if there are none.
    pub(crate) fn pages_inside(self, page_bytes: usize) -> Extent {
        let offset = page_ceil(self.offset, page_bytes);
        let end = page_floor(self.end(), page_bytes);
        Extent { offset, size_bytes: end.saturating_sub(offset) }
    }
}

/// The end of the last whole page below an offset. Uses a mask: the compiler does not know that a
/// page is a power of two, and a division takes longer than the rest of a request.
#[inline]
pub(crate) fn page_floor(offset: usize, page_bytes: usize) -> usize {
    offset & !(page_bytes - 1)
}

/// The start of the first page at or above an offset. Offsets lie in an address range, which ends
/// long before the type does.
fn page_ceil(offset: usize, page_bytes: usize) -> usize {
    page_floor(offset + (page_bytes - 1), page_bytes)
}
