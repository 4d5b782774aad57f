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

/// A segment and the blocks that tile it, in address order.
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
