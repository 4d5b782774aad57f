//! Where the memory of a recording went, in numbers; [`Display`](std::fmt::Display) says it in
//! words.
//!
//! *In use* are live blocks and charged bytes, *cached* is what was reserved beyond them. Wherever
//! several moments or items qualify, the earliest or the first in the recording is meant, so the
//! same recording always gives the same explanation.

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

/// What [`Recording::explain`](super::Recording::explain) found.
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
    /// From the first event to the last.
    pub duration_us: u64,
    /// The moment at which the most was in use.
    pub peak: Peak,
    /// The moment at which the most was reserved.
    pub reserved_peak: Moment,
    /// What was reserved then.
    pub reserved_peak_bytes: u64,
    /// Blocks that are there from the beginning to the end.
    pub throughout: Group,
    /// The same by category, in the order of [`Category::ALL`], the unknown last; none is empty.
    pub throughout_by_category: Vec<CategoryShare>,
    /// Blocks that were allocated and freed in the recording, by site and category: those with the
    /// largest block first, at most ten.
    pub transients: Vec<Transient>,
    /// Requests that failed, in order.
    pub failures: Vec<Failure>,
    /// Blocks that were allocated in the recording and never freed.
    pub unfreed: Group,
    /// The same by site: at most ten, most bytes first, but all that grow before the others.
    pub unfreed_by_site: Vec<Unfreed>,
    /// How much came and went.
    pub churn: Churn,
    /// What waited for other streams.
    pub waits: Waits,
    /// What the numbers suggest, most important first.
    pub advice: Vec<Advice>,
}

/// A time between two events.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moment {
    /// Index of the event before it; `None` before the first.
    pub event: Option<u64>,
    /// Events before it, of all: 0 to 1.
    pub fraction: f64,
}

/// Some blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// The number of blocks.
    pub blocks: u64,
    /// How much they take.
    pub bytes: u64,
}

/// What a category has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CategoryShare {
    /// `None` where it is not recorded.
    pub category: Option<Category>,
    /// Live blocks of it.
    pub blocks: u64,
    /// Of blocks, and charged where that counts.
    pub bytes: u64,
}

/// What a site has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteShare {
    /// `None` if it is not known.
    pub site: Option<Site>,
    /// Live blocks of it.
    pub blocks: u64,
    /// What they take.
    pub bytes: u64,
}

/// What a module of the model has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleBytes {
    /// Its path, `(root)` for the model itself; empty for what is no module's.
    pub module: String,
    /// Live blocks of it.
    pub blocks: u64,
    /// What they take.
    pub bytes: u64,
}

/// The moment at which the most was in use.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Peak {
    /// The moment of the peak.
    pub moment: Moment,
    /// `live + charged`.
    pub in_use_bytes: u64,
    /// Under live blocks.
    pub live_bytes: u64,
    /// Live blocks.
    pub live_blocks: u64,
    /// What their owners asked for.
    pub requested_bytes: u64,
    /// Taken behind the allocator's back.
    pub charged_bytes: u64,
    /// From the source, charges included.
    pub reserved_bytes: u64,
    /// `reserved - in use`.
    pub cached_bytes: u64,
    /// Of the live ones, those that their owners gave back and other streams still used.
    pub waiting_bytes: u64,
    /// Blocks and charges, in the order of [`Category::ALL`], the unknown last; none is empty.
    pub by_category: Vec<CategoryShare>,
    /// Blocks by what their sites tell of the training step, in the order of [`Phase`]; empty where
    /// a category was recorded, or no site tells anything.
    pub by_phase: Vec<PhaseShare>,
    /// Blocks, most bytes first, at most ten.
    pub by_site: Vec<SiteShare>,
    /// Blocks, most bytes first, at most ten; empty where no modules are recorded.
    pub by_module: Vec<ModuleBytes>,
    /// How many sites had live blocks.
    pub site_count: u64,
}

impl Peak {
    /// What rounding took: `live - requested`.
    pub fn rounding_bytes(&self) -> u64 {
        self.live_bytes.saturating_sub(self.requested_bytes)
    }
}

/// The blocks of a site that came and went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transient {
    /// What they were for.
    pub category: Option<Category>,
    /// The line that asked for it.
    pub site: Option<Site>,
    /// The number of blocks.
    pub blocks: u64,
    /// What the largest of them took.
    pub size_bytes: u64,
    /// The event that allocated the first of that size.
    pub allocated_event: u64,
    /// The event that freed it.
    pub freed_event: u64,
}

/// A request that failed, and the counters at that moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which event.
    pub event: u64,
    /// What was asked for.
    pub requested_bytes: u64,
    /// What the request was for.
    pub category: Option<Category>,
    /// The line that asked for it.
    pub site: Option<Site>,
    /// What the device still had.
    pub free_bytes: u64,
    /// Blocks and charges.
    pub in_use_bytes: u64,
    /// Reserved, and not in use.
    pub cached_bytes: u64,
    /// The largest stretch of a segment without a block; `None` if the segments of that moment do
    /// not follow from the recording.
    pub largest_hole_bytes: Option<u64>,
}

impl Failure {
    /// Whether free and cached bytes together would have been enough.
    pub fn is_for_fragmentation(&self) -> bool {
        self.free_bytes.saturating_add(self.cached_bytes) >= self.requested_bytes
    }
}

/// Blocks of a site that were allocated in the recording and never freed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfreed {
    /// `None` if it is not known.
    pub site: Option<Site>,
    /// How many blocks.
    pub blocks: u64,
    /// What they take.
    pub bytes: u64,
    /// The same, by the quarter of the events in which they were allocated.
    pub bytes_by_quarter: [u64; 4],
}

impl Unfreed {
    /// Whether there are more of them in every quarter: what a leak looks like.
    pub fn is_growing(&self) -> bool {
        self.bytes_by_quarter.iter().all(|&bytes| bytes > 0)
    }
}

/// How much came and went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Churn {
    /// Blocks that were allocated.
    pub allocations: u64,
    /// What they took.
    pub allocated_bytes: u64,
    /// Blocks that were freed.
    pub frees: u64,
    /// How often the source gave memory or took it back.
    pub source_calls: u64,
    /// The same by quarters of the events.
    pub source_calls_by_quarter: [u64; 4],
    /// The last one: index of the event.
    pub last_source_call: Option<u64>,
}

/// What waited for other streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Streams that own blocks.
    pub streams: u64,
    /// Blocks between whose return and whose reuse other events lie, or the end of the recording.
    pub delayed_frees: u64,
    /// The most that waited at once.
    pub waiting_bytes_max: u64,
}
