//! The use of memory in a recording, in numbers; [`Display`](std::fmt::Display) gives it in words.
//!
//! Live blocks and charged bytes are *in use*; bytes reserved beyond them are *cached*. Where
//! several moments or items qualify, the earliest or the first in the recording is taken, so that a
//! recording always gives the same explanation.

mod advice;
mod count;
mod holes;
mod modules;
mod page;
mod phases;
mod text;

use lowtide_allocator::Category;

pub use self::advice::Advice;
pub use self::phases::{Phase, PhaseShare};
use super::recording::Site;

/// The result of [`Recording::explain`](super::Recording::explain).
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The policy's name.
    pub policy: String,
    /// The budget; 0 if it is not known.
    pub capacity_bytes: u64,
    /// Granularity of the source; 0 if it is not known.
    pub page_bytes: u64,
    /// Events before the first one that are lost.
    pub lost_events: u64,
    /// Events of the recording.
    pub events: u64,
    /// Time from the first event to the last.
    pub duration_us: u64,
    /// The moment at which the most was in use.
    pub peak: Peak,
    /// The moment at which the most was reserved.
    pub reserved_peak: Moment,
    /// Bytes reserved at that moment.
    pub reserved_peak_bytes: u64,
    /// Blocks that are there from the beginning to the end.
    pub throughout: Group,
    /// These blocks by category, in the order of [`Category::ALL`], the unknown last; none is
    /// empty.
    pub throughout_by_category: Vec<CategoryShare>,
    /// Blocks that were allocated and freed in the recording, by site and category: those with the
    /// largest block first, at most ten.
    pub transients: Vec<Transient>,
    /// Requests that failed, in order.
    pub failures: Vec<Failure>,
    /// Blocks that were allocated in the recording and never freed.
    pub unfreed: Group,
    /// Blocks that were never freed, by site: at most ten, sites that grow first, then by bytes.
    pub unfreed_by_site: Vec<Unfreed>,
    /// Allocations, frees and calls of the source.
    pub churn: Churn,
    /// Blocks that waited for other streams.
    pub waits: Waits,
    /// Advice, most important first.
    pub advice: Vec<Advice>,
}

/// A time between two events.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moment {
    /// Index of the event before it; `None` before the first.
    pub event: Option<u64>,
    /// The share of all events that come before it: 0 to 1.
    pub fraction: f64,
}

/// A number of blocks and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// The number of blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Blocks and bytes of a category.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CategoryShare {
    /// `None` where it is not recorded.
    pub category: Option<Category>,
    /// Number of its live blocks.
    pub blocks: u64,
    /// Bytes of its blocks, and charged bytes where these count.
    pub bytes: u64,
}

/// Blocks and bytes of a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteShare {
    /// `None` if it is not known.
    pub site: Option<Site>,
    /// Number of its live blocks.
    pub blocks: u64,
    /// Bytes of these blocks.
    pub bytes: u64,
}

/// Blocks and bytes of a module of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleBytes {
    /// Path of the module, `(root)` for the model itself; empty for blocks of no module.
    pub module: String,
    /// Number of its live blocks.
    pub blocks: u64,
    /// Bytes of these blocks.
    pub bytes: u64,
}

/// The moment at which the most was in use.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Peak {
    /// The moment of the peak.
    pub moment: Moment,
    /// `live + charged`.
    pub in_use_bytes: u64,
    /// Bytes of live blocks.
    pub live_bytes: u64,
    /// Live blocks.
    pub live_blocks: u64,
    /// Bytes that the owners of live blocks asked for.
    pub requested_bytes: u64,
    /// Bytes taken outside of the allocator and charged.
    pub charged_bytes: u64,
    /// Bytes reserved from the source, charges included.
    pub reserved_bytes: u64,
    /// `reserved - in use`.
    pub cached_bytes: u64,
    /// Live bytes that their owners gave back and other streams still used.
    pub waiting_bytes: u64,
    /// Blocks and charges, in the order of [`Category::ALL`], the unknown last; none is empty.
    pub by_category: Vec<CategoryShare>,
    /// Blocks by the phase of the training step that their sites show, in the order of [`Phase`];
    /// empty where a category was recorded, or no site shows a phase.
    pub by_phase: Vec<PhaseShare>,
    /// Blocks, most bytes first, at most ten.
    pub by_site: Vec<SiteShare>,
    /// Blocks, most bytes first, at most ten; empty where no modules are recorded.
    pub by_module: Vec<ModuleBytes>,
    /// Number of sites that had live blocks.
    pub site_count: u64,
}

impl Peak {
    /// Bytes lost to rounding: `live - requested`.
    pub fn rounding_bytes(&self) -> u64 {
        self.live_bytes.saturating_sub(self.requested_bytes)
    }
}

/// The blocks of a site that came and went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transient {
    /// Category of the blocks.
    pub category: Option<Category>,
    /// The line that asked for it.
    pub site: Option<Site>,
    /// The number of blocks.
    pub blocks: u64,
    /// Bytes of the largest block.
    pub size_bytes: u64,
    /// The event that allocated the first of that size.
    pub allocated_event: u64,
    /// The event that freed it.
    pub freed_event: u64,
}

/// A request that failed, and the counters at that moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Index of the event.
    pub event: u64,
    /// Bytes asked for.
    pub requested_bytes: u64,
    /// Category of the request.
    pub category: Option<Category>,
    /// The line that asked for it.
    pub site: Option<Site>,
    /// Bytes that the device still had.
    pub free_bytes: u64,
    /// Bytes of blocks and charges.
    pub in_use_bytes: u64,
    /// Bytes reserved and not in use.
    pub cached_bytes: u64,
    /// The largest stretch of a segment without a block; `None` if the segments of that moment do
    /// not follow from the recording.
    pub largest_hole_bytes: Option<u64>,
}

impl Failure {
    /// True if free and cached bytes together would have been enough.
    pub fn is_for_fragmentation(&self) -> bool {
        self.free_bytes.saturating_add(self.cached_bytes) >= self.requested_bytes
    }
}

/// Blocks of a site that were allocated in the recording and never freed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfreed {
    /// `None` if it is not known.
    pub site: Option<Site>,
    /// Number of blocks.
    pub blocks: u64,
    /// Bytes of these blocks.
    pub bytes: u64,
    /// Bytes by the quarter of the events in which they were allocated.
    pub bytes_by_quarter: [u64; 4],
}

impl Unfreed {
    /// True if bytes were added in every quarter, as by a leak.
    pub fn is_growing(&self) -> bool {
        self.bytes_by_quarter.iter().all(|&bytes| bytes > 0)
    }
}

/// Allocations, frees and calls of the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Churn {
    /// Blocks that were allocated.
    pub allocations: u64,
    /// Bytes of the blocks that were allocated.
    pub allocated_bytes: u64,
    /// Blocks that were freed.
    pub frees: u64,
    /// Times that the source gave memory or took it back.
    pub source_calls: u64,
    /// Calls of the source by quarters of the events.
    pub source_calls_by_quarter: [u64; 4],
    /// Index of the event with the last call of the source.
    pub last_source_call: Option<u64>,
}

/// Blocks that waited for other streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Streams that own blocks.
    pub streams: u64,
    /// Blocks between whose return and whose reuse other events lie, or the end of the recording.
    pub delayed_frees: u64,
    /// The most that waited at once.
    pub waiting_bytes_max: u64,
}
