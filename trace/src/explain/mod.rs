//! The use of memory in a recording, in numbers; [`Display`](std::fmt::Display) gives it in words.
//!
//! Live blocks and charged bytes are *in use*; bytes reserved beyond them are *cached*. If several
//! moments or items qualify, the earliest or the first in the recording is taken, so that a
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
    /// The budget; 0 if it is unknown.
    pub capacity_bytes: u64,
    /// Granularity of the source; 0 if it is unknown.
    pub page_bytes: u64,
    /// Number of lost events before the first event.
    pub lost_events: u64,
    /// Number of events of the recording.
    pub events: u64,
    /// Time from the first event to the last.
    pub duration_us: u64,
    /// The peak of the bytes in use.
    pub peak: Peak,
    /// The moment of the peak of reserved bytes.
    pub reserved_peak: Moment,
    /// Peak of reserved bytes.
    pub reserved_peak_bytes: u64,
    /// Blocks that are live from the beginning to the end.
    pub throughout: Group,
    /// Blocks that are live throughout, by category, in the order of [`Category::ALL`], the unknown
    /// category last. No category is empty.
    pub throughout_by_category: Vec<CategoryShare>,
    /// Blocks that were allocated and freed in the recording, by site and category. Rows with the
    /// largest blocks come first; at most ten.
    pub transients: Vec<Transient>,
    /// Requests that failed, in order.
    pub failures: Vec<Failure>,
    /// Blocks that were allocated in the recording and never freed.
    pub unfreed: Group,
    /// Blocks that were never freed, by site; at most ten. Sites that grow come first, then the
    /// order is by bytes.
    pub unfreed_by_site: Vec<Unfreed>,
    /// Allocations, frees and calls of the source.
    pub churn: Churn,
    /// Blocks that waited for other streams.
    pub waits: Waits,
    /// Advice, most important first.
    pub advice: Vec<Advice>,
}

/// A point in time between two events.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moment {
    /// Index of the event before the moment; `None` before the first event.
    pub event: Option<u64>,
    /// Share of all events that come before the moment: 0 to 1.
    pub fraction: f64,
}

/// A number of blocks and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// The number of blocks.
    pub blocks: u64,
    /// The bytes of the blocks.
    pub bytes: u64,
}

/// Blocks and bytes of a category.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CategoryShare {
    /// The category; `None` if it was not recorded.
    pub category: Option<Category>,
    /// Number of live blocks of the category.
    pub blocks: u64,
    /// Bytes of the blocks, with charged bytes if these count.
    pub bytes: u64,
}

/// Blocks and bytes of a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteShare {
    /// The site; `None` if it is unknown.
    pub site: Option<Site>,
    /// Number of live blocks of the site.
    pub blocks: u64,
    /// Bytes of the blocks.
    pub bytes: u64,
}

/// Blocks and bytes of a module of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleBytes {
    /// Path of the module, `(root)` for the model itself; empty for blocks of no module.
    pub module: String,
    /// Number of live blocks of the module.
    pub blocks: u64,
    /// Bytes of the blocks.
    pub bytes: u64,
}

/// The peak of the bytes in use.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Peak {
    /// The moment of the peak.
    pub moment: Moment,
    /// `live + charged`.
    pub in_use_bytes: u64,
    /// Bytes of live blocks.
    pub live_bytes: u64,
    /// Number of live blocks.
    pub live_blocks: u64,
    /// Bytes that the owners of live blocks asked for.
    pub requested_bytes: u64,
    /// Bytes taken outside of the allocator and charged.
    pub charged_bytes: u64,
    /// Bytes reserved from the source, charges included.
    pub reserved_bytes: u64,
    /// `reserved - in use`.
    pub cached_bytes: u64,
    /// Live bytes that their owners gave back while other streams still used them.
    pub waiting_bytes: u64,
    /// Blocks and charges, in the order of [`Category::ALL`], the unknown category last. No
    /// category is empty.
    pub by_category: Vec<CategoryShare>,
    /// Blocks by the phase of the training step that their sites show, in the order of [`Phase`].
    /// Empty if a category was recorded, or if no site shows a phase.
    pub by_phase: Vec<PhaseShare>,
    /// Blocks by site, most bytes first; at most ten.
    pub by_site: Vec<SiteShare>,
    /// Blocks by module, most bytes first; at most ten. Empty if no modules are recorded.
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

/// The blocks of a site that were allocated and freed in the recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transient {
    /// Category of the blocks.
    pub category: Option<Category>,
    /// The source line of the request.
    pub site: Option<Site>,
    /// The number of blocks.
    pub blocks: u64,
    /// Bytes of the largest block.
    pub size_bytes: u64,
    /// The event that allocated the first block of the largest size.
    pub allocated_event: u64,
    /// The event that freed that block.
    pub freed_event: u64,
}

/// A failed request, with the counters at that moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Index of the event.
    pub event: u64,
    /// Bytes asked for.
    pub requested_bytes: u64,
    /// Category of the request.
    pub category: Option<Category>,
    /// The source line of the request.
    pub site: Option<Site>,
    /// Free bytes of the device.
    pub free_bytes: u64,
    /// Bytes of blocks and charges.
    pub in_use_bytes: u64,
    /// Reserved bytes that are not in use.
    pub cached_bytes: u64,
    /// Size of the largest stretch of a segment without a block. `None` if the recording does not
    /// determine the segments at that moment.
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
    /// The site; `None` if it is unknown.
    pub site: Option<Site>,
    /// Number of blocks.
    pub blocks: u64,
    /// Bytes of the blocks.
    pub bytes: u64,
    /// Bytes by the quarter of the events in which the blocks were allocated.
    pub bytes_by_quarter: [u64; 4],
}

impl Unfreed {
    /// True if bytes were added in every quarter, as in a leak.
    pub fn is_growing(&self) -> bool {
        self.bytes_by_quarter.iter().all(|&bytes| bytes > 0)
    }
}

/// Allocations, frees and calls of the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Churn {
    /// Number of blocks that were allocated.
    pub allocations: u64,
    /// Bytes of the blocks that were allocated.
    pub allocated_bytes: u64,
    /// Number of blocks that were freed.
    pub frees: u64,
    /// Number of times that the source gave memory or took it back.
    pub source_calls: u64,
    /// Number of source calls by quarter of the events.
    pub source_calls_by_quarter: [u64; 4],
    /// Index of the event with the last call of the source.
    pub last_source_call: Option<u64>,
}

/// Blocks that waited for other streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Number of streams that own blocks.
    pub streams: u64,
    /// Number of blocks that waited: other events, or the end of the recording, come between their
    /// free and their reuse.
    pub delayed_frees: u64,
    /// Largest number of bytes that waited at once.
    pub waiting_bytes_max: u64,
}
