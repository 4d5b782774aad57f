//! Nouns of PyTorch's rules: streams, pools, blocks and the segments that they tile.

/// A stream of the device; 0 is the default one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// The requests that a segment serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pool {
    /// Requests of at most 1 MiB, from segments of 2 MiB.
    Small,
    /// Larger requests.
    Large,
}

/// States of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// An owner has the block.
    Active,
    /// The owner gave the block back, but another stream may still be reading it.
    Pending,
    /// The block is cached.
    Free,
}

/// A block as seen from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockLayout {
    /// First address.
    pub address: u64,
    /// Size, including bytes beyond the request.
    pub size_bytes: u64,
    /// Bytes asked for; 0 for a free block.
    pub requested_bytes: u64,
    /// State of the block.
    pub state: BlockState,
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddressRange {
    /// First address.
    pub address: u64,
    /// Length in bytes.
    pub size_bytes: u64,
}

impl AddressRange {
    /// The first address behind the range.
    pub fn end(&self) -> u64 {
        self.address + self.size_bytes
    }
}

/// A segment, or a part of an expandable segment that has memory from end to end, with its blocks
/// in address order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentLayout {
    /// First address.
    pub address: u64,
    /// Size: the sum of the sizes of its blocks.
    pub size_bytes: u64,
    /// The only stream whose requests the segment serves.
    pub stream: StreamId,
    /// The only kind of requests that the segment serves.
    pub pool: Pool,
    /// Blocks without gaps, from `address` to the end.
    pub blocks: Vec<BlockLayout>,
}

impl SegmentLayout {
    /// The sums that PyTorch's snapshot has for a segment.
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
    /// Bytes of blocks that have an owner (`allocated_size`).
    pub allocated_bytes: u64,
    /// Bytes of active and pending blocks (`active_size`).
    pub active_bytes: u64,
    /// Bytes requested for active and pending blocks (`requested_size`).
    pub requested_bytes: u64,
    /// Bytes of the largest free block.
    pub largest_free_bytes: u64,
}

/// A block that is active or pending, with its stream and pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveBlock {
    /// Address, sizes and state.
    pub layout: BlockLayout,
    /// Stream that allocated the block.
    pub stream: StreamId,
    /// The kind of requests that the block's segment serves.
    pub pool: Pool,
}

/// An expandable segment: a range of addresses, only some of them with memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeLayout {
    /// Addresses of the segment; a multiple of the page.
    pub range: AddressRange,
    /// Granularity in which the segment gets and gives back memory.
    pub page_bytes: u64,
    /// The only stream whose requests the segment serves.
    pub stream: StreamId,
    /// The only kind of requests that the segment serves.
    pub pool: Pool,
    /// The parts that have memory: whole pages, in address order. No two parts touch.
    pub mapped: Vec<SegmentLayout>,
}
