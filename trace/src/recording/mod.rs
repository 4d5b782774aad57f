//! A period of an allocator's life in one form, recorded by this crate or by PyTorch.
//!
//! A recording holds the live blocks before the first event, every event, and the segments after
//! the last one. Drawings, exports, explanations and replays start from it.

mod captured;
mod json;
pub(crate) mod spans;
pub(crate) mod validate;

use std::collections::{BTreeMap, BTreeSet};

use lowtide_allocator::Category;
use lowtide_allocator::torch::{Pool, StreamId};

/// The recorded life of one device's memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recording {
    /// The policy that placed the blocks, by name: `pages` or `torch`.
    pub policy: String,
    /// The budget; 0 if unknown.
    pub capacity_bytes: u64,
    /// Granularity of the source; 0 if unknown.
    pub page_bytes: u64,
    /// Number of lost events before the first event.
    pub lost_events: u64,
    /// Origins of requests. Events and blocks have an index into this list.
    pub sites: Vec<Site>,
    /// Blocks that are live before the first event, by address.
    pub start: Vec<RecordedBlock>,
    /// Ids of blocks at the start that their owners have given back already. Only a `Free` of each
    /// follows.
    pub start_pending: BTreeSet<u64>,
    /// Charged bytes before the first event, with their category.
    pub start_charges: Vec<(Category, u64)>,
    /// Reserved bytes before the first event, charges included.
    pub start_reserved_bytes: u64,
    /// Events in order of time.
    pub events: Vec<TraceEvent>,
    /// Segments after the last event, by address. Free room between blocks is not listed.
    pub end: Vec<RecordedRange>,
    /// Blocks that lie in several places of the segments: block id → its pieces, in order. Every
    /// other block lies at its address.
    pub pieces: BTreeMap<u64, Vec<Piece>>,
    /// Address of a segment in [`Recording::end`] → its other properties in PyTorch's snapshot. A
    /// segment without an entry has the defaults.
    pub segment_kinds: BTreeMap<u64, SegmentKind>,
}

/// Properties of a segment in PyTorch's snapshot, apart from its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentKind {
    /// The kind of requests that the segment serves.
    pub pool: Pool,
    /// The private pool of a graph capture; (0, 0) for the default pool.
    pub pool_id: (i64, i64),
    /// True if the segment grows and shrinks in place.
    pub is_expandable: bool,
}

impl Default for SegmentKind {
    fn default() -> Self {
        SegmentKind { pool: Pool::Large, pool_id: (0, 0), is_expandable: false }
    }
}

/// A line of source code, and the module of a model for which the line ran. The same line in two
/// modules is two sites.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Site {
    /// The file, as the compiler or the interpreter names it.
    pub file: String,
    /// The line, from 1; 0 if unknown.
    pub line: u32,
    /// The function, if it is known.
    pub function: String,
    /// The module of the model that ran, `(root)` for the model itself; empty if none is recorded.
    pub module: String,
}

/// A live block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedBlock {
    /// Number of the block, unique in the recording. Its free has the same number.
    pub id: u64,
    /// Address on the device.
    pub address: u64,
    /// Bytes that the block takes.
    pub size_bytes: u64,
    /// Bytes that were requested.
    pub requested_bytes: u64,
    /// Stream that owns the block.
    pub stream: StreamId,
    /// Category; `None` if it was not recorded.
    pub category: Option<Category>,
    /// Index into [`Recording::sites`]; `None` if the site is unknown.
    pub site: Option<u32>,
}

/// A part of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First address.
    pub address: u64,
    /// Length in bytes.
    pub size_bytes: u64,
}

/// A segment, with its live blocks or pieces of live blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedRange {
    /// First address.
    pub address: u64,
    /// Length in bytes.
    pub size_bytes: u64,
    /// The stream that the segment belongs to, or the default stream.
    pub stream: StreamId,
    /// Blocks by address. A block in several pieces has an entry for each piece in this segment,
    /// with the piece's address and size.
    pub blocks: Vec<RecordedBlock>,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// Microseconds since 1970 (UTC). Between two events with a recorded time, the time is
    /// interpolated.
    pub time_us: u64,
    /// The kind of event.
    pub kind: EventKind,
    /// Bytes of the event: the block for `Allocate` and `Free`, whole pages for `Reserve` and
    /// `Release`, the growth for charges, the request for `OutOfMemory`.
    pub size_bytes: u64,
    /// Bytes that the caller asked for.
    pub requested_bytes: u64,
    /// Address of the block or of the range; 0 for charges and failed requests.
    pub address: u64,
    /// The stream of the block or of the request.
    pub stream: StreamId,
    /// Category; `None` if it was not recorded.
    pub category: Option<Category>,
    /// Index into [`Recording::sites`]; `None` if the site is unknown.
    pub site: Option<u32>,
}

/// The kinds of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A block with this id became live.
    Allocate {
        /// See [`RecordedBlock::id`].
        id: u64,
    },
    /// The owner of a block gave the block back, but other streams still use it.
    FreeRequested {
        /// See [`RecordedBlock::id`].
        id: u64,
    },
    /// A block may be reused.
    Free {
        /// See [`RecordedBlock::id`].
        id: u64,
    },
    /// The source gave memory.
    Reserve,
    /// The source took memory back.
    Release,
    /// Bytes taken elsewhere are charged from now on.
    Charge,
    /// Charged bytes no longer count.
    Discharge,
    /// A request failed.
    OutOfMemory {
        /// Free bytes: the capacity minus the reserved bytes.
        free_bytes: u64,
    },
}
