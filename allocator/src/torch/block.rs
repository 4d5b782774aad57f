//! The nouns: streams, pools, blocks and the segments they tile.

/// A stream of the device; 0 is the default one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// Which requests a segment serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pool {
    /// Requests of at most 1 MiB, from segments of 2 MiB.
    Small,
    /// All others.
    Large,
}

/// What a block is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// Its owner has it.
    Active,
    /// Its owner gave it back, but another stream may still be reading it.
    Pending,
    /// Cached.
    Free,
}

/// A block as seen from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockLayout {
    /// Where it begins.
    pub address: u64,
    /// Its whole size.
    pub size_bytes: u64,
    /// What was asked for; 0 for a free block.
    pub requested_bytes: u64,
    /// What it is doing.
    pub state: BlockState,
}

/// Addresses in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddressRange {
    /// The first one.
    pub address: u64,
    /// Length in bytes.
    pub size_bytes: u64,
}

impl AddressRange {
    /// The first address behind it.
    pub fn end(&self) -> u64 {
        self.address + self.size_bytes
    }
}

/// A segment, or a part of an expandable one that has memory from end to end, and the blocks that
/// tile it, in address order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentLayout {
    /// Where it begins.
    pub address: u64,
    /// The sum of its blocks.
    pub size_bytes: u64,
    /// The only stream whose requests it serves.
    pub stream: StreamId,
    /// The only requests it serves.
    pub pool: Pool,
    /// Without gaps, from `address` to its end.
    pub blocks: Vec<BlockLayout>,
}

impl SegmentLayout {
    /// What PyTorch's snapshot says of a segment.
    pub fn statistics(&self) -> SegmentStatistics {
        let mut statistics = SegmentStatistics::default();
        for block in &self.blocks {
            match block.state {
                BlockState::Active => statistics.allocated_bytes += block.size_bytes,
                BlockState::Pending => {}
                BlockState::Free => {
                    statistics.largest_free_bytes =
                        statistics.largest_free_bytes.max(block.size_bytes);
                    continue;
                }
            }
            statistics.active_bytes += block.size_bytes;
            statistics.requested_bytes += block.requested_bytes;
        }
        statistics
    }
}

/// Bytes of one segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentStatistics {
    /// Under blocks that have an owner (`allocated_size`).
    pub allocated_bytes: u64,
    /// Under these and the pending ones (`active_size`).
    pub active_bytes: u64,
    /// What was asked for them (`requested_size`).
    pub requested_bytes: u64,
    /// The largest block that is free.
    pub largest_free_bytes: u64,
}

/// A block that is active or pending, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveBlock {
    /// Where it is, and what it is doing.
    pub layout: BlockLayout,
    /// Who allocated it.
    pub stream: StreamId,
    /// Which requests its segment serves.
    pub pool: Pool,
}

/// An expandable segment: addresses of which some have memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeLayout {
    /// All its addresses; a multiple of the page.
    pub range: AddressRange,
    /// It gets memory, and gives it back, in multiples of this.
    pub page_bytes: u64,
    /// The only stream whose requests it serves.
    pub stream: StreamId,
    /// The only requests it serves.
    pub pool: Pool,
    /// The parts that have memory: whole pages, in address order, no two of them in touch.
    pub mapped: Vec<SegmentLayout>,
}
