//! Errors of the allocator, with the numbers that help to act on them.

use std::fmt;
use std::panic::Location;

use thiserror::Error;

use crate::bytes::{Bytes, UNLIMITED_BYTES};
use crate::category::{ByCategory, Category};
use crate::origin::ModulePath;
use crate::source::SourceError;
use crate::statistics::ModuleShare;

/// Reasons why a request failed. Live blocks, charges and the counters of bytes in use are as
/// before the request. Cached memory may have gone back to the source.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum AllocError {
    /// The budget, or the source, has no room for the request.
    #[error(transparent)]
    OutOfMemory(#[from] Box<OutOfMemory>),
    /// A request was made in a section that promised not to allocate.
    #[error("{requested_bytes} bytes asked by {site} while the allocator is sealed")]
    Sealed {
        /// The source line of the request.
        site: &'static Location<'static>,
        /// Bytes that were asked for.
        requested_bytes: usize,
    },
    /// PyTorch's rules reserve and release whole segments, and two segments would share a page of
    /// the source. The page could go back with neither.
    #[error("two segments of PyTorch's rules would share a page of {page_bytes} bytes")]
    PageShared {
        /// Granularity of the source.
        page_bytes: usize,
    },
    /// The source failed for another reason than a lack of memory.
    #[error("the memory source failed: {0}")]
    Source(#[from] SourceError),
}

impl AllocError {
    /// The ledger, if the error is a lack of memory.
    pub fn out_of_memory(&self) -> Option<&OutOfMemory> {
        match self {
            AllocError::OutOfMemory(ledger) => Some(ledger),
            _ => None,
        }
    }
}

/// The rungs that were tried before a request failed, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// Looked for a free block that the request's own stream used last, and for room at the top.
    Search,
    /// Looked at free blocks of other streams, alone and merged. Such a block costs a wait.
    OtherStreams,
    /// Looked for a place of whole free pages that lie apart.
    Stitch,
    /// Gave every free page back to the source. The request did not fit without a cache either.
    Trim,
    /// Asked the registered reclaimers in their order, and searched again after each.
    Reclaim,
}

impl fmt::Display for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Rung::Search => "search",
            Rung::OtherStreams => "other streams",
            Rung::Stitch => "stitch",
            Rung::Trim => "trim",
            Rung::Reclaim => "reclaim",
        })
    }
}

/// The rungs that a request has tried so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tried(u8);

impl Tried {
    /// The rungs in the order in which a request tries them.
    const RUNGS: [Rung; 5] =
        [Rung::Search, Rung::OtherStreams, Rung::Stitch, Rung::Trim, Rung::Reclaim];

    #[must_use]
    pub(crate) fn with(self, rung: Rung) -> Tried {
        Tried(self.0 | 1 << rung as u8)
    }

    #[must_use]
    pub(crate) fn and(self, other: Tried) -> Tried {
        Tried(self.0 | other.0)
    }

    pub(crate) fn to_vec(self) -> Vec<Rung> {
        let is_climbed = |&rung: &Rung| self == self.with(rung);
        Self::RUNGS.into_iter().filter(is_climbed).collect()
    }
}

/// Number of modules that the ledger lists.
const MODULE_ROWS: usize = 5;

/// The counters at the moment of the failure, after all rungs in `tried`.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct OutOfMemory {
    /// Bytes that the caller asked for; 0 if the driver was refused memory for itself.
    pub requested_bytes: usize,
    /// The call outside the allocator for which the driver had no memory; the bytes that it needed
    /// are unknown. `None` if a request to the allocator failed.
    pub refused_call: Option<&'static str>,
    /// Bytes of the device that are neither free nor the allocator's: see
    /// [`MemorySource::outside_bytes`](crate::MemorySource::outside_bytes).
    pub outside_bytes: usize,
    /// Bytes that may be reserved.
    pub capacity_bytes: usize,
    /// `allocated + charged + cached`.
    pub reserved_bytes: usize,
    /// Bytes of live blocks, each rounded up to 512.
    pub allocated_bytes: usize,
    /// Bytes taken outside of the allocator and charged.
    pub charged_bytes: usize,
    /// Bytes committed under no live block that cannot be given back: in holes and in the last
    /// page.
    pub cached_bytes: usize,
    /// Size of a block that could still have been allocated. In rare cases a slightly larger block
    /// could, too.
    pub largest_free_bytes: usize,
    /// Allocated and charged bytes by category.
    pub by_category: ByCategory<usize>,
    /// Category of the request.
    pub category: Category,
    /// The source line of the request.
    pub site: &'static Location<'static>,
    /// Module of the request; `None` outside of every model.
    pub module: Option<ModulePath>,
    /// Live bytes by module, most first.
    pub by_module: Vec<ModuleShare>,
    /// Bytes of capacity that the request lacked. 0 if the failure was injected, or if the source
    /// ran out below its capacity.
    pub missing_bytes: usize,
    /// Number of the request, from 1.
    pub request_index: u64,
    /// The rungs that were tried. An injected failure tries none, a charge needs no place, and a
    /// request smaller than a page is never stitched.
    pub tried: Vec<Rung>,
    /// True if [`inject_fault`](crate::CachingAllocator::inject_fault) made the request fail.
    pub injected: bool,
}

impl OutOfMemory {
    /// The failure, and the missing bytes if there are any, without the rest of the ledger.
    pub fn headline(&self) -> String {
        let OutOfMemory { category, site, .. } = self;
        let module = self.module.map_or_else(String::new, |module| format!(" in {module}"));
        let injected = if self.injected { " (injected)" } else { "" };
        if let Some(call) = self.refused_call {
            return format!("out of memory: the driver has none for {call}, called by {site}");
        }
        let missing = match self.missing_bytes {
            0 => String::new(),
            bytes => format!(", {} missing", Bytes(bytes)),
        };
        let requested = Bytes(self.requested_bytes);
        format!(
            "out of memory{injected}: {requested} of {category} asked by {site}{module}{missing}"
        )
    }

    /// The capacity; `None` without a limit.
    fn limit_bytes(&self) -> Option<usize> {
        Some(self.capacity_bytes).filter(|&bytes| (bytes as u64) < UNLIMITED_BYTES)
    }

    /// The whole ledger, a line for each item, with exact bytes.
    pub fn ledger(&self) -> String {
        use fmt::Write as _;
        let mut text = format!("{self}\n");
        let rows = [
            ("requested", Some(self.requested_bytes)),
            ("missing", Some(self.missing_bytes)),
            ("largest free", Some(self.largest_free_bytes)),
            ("capacity", self.limit_bytes()),
            ("reserved", Some(self.reserved_bytes)),
            ("  allocated", Some(self.allocated_bytes)),
            ("  charged", Some(self.charged_bytes)),
            ("  cached", Some(self.cached_bytes)),
        ];
        let mut row = |name: &str, bytes: usize| {
            writeln!(text, "  {name:<18}{bytes:>16} B  {:>10}", Bytes(bytes).to_string())
                .expect("a string takes all that is written to it");
        };
        for (name, bytes) in rows.into_iter().filter_map(|(name, bytes)| Some((name, bytes?))) {
            row(name, bytes);
        }
        for (category, &bytes) in self.by_category.iter().filter(|&(_, &bytes)| bytes > 0) {
            row(&format!("    {category}"), bytes);
        }
        if self.outside_bytes > 0 {
            row("outside", self.outside_bytes);
        }
        for share in self.by_module.iter().filter(|share| share.module.is_some()).take(MODULE_ROWS)
        {
            row(&format!("    in {}", share.name()), share.bytes as usize);
        }
        let tried: Vec<_> = self.tried.iter().map(Rung::to_string).collect();
        let injected = if self.injected { ", injected" } else { "" };
        text + &format!(
            "  request {}{injected}, by {}, tried {}\n",
            self.request_index,
            self.site,
            tried.join(", "),
        )
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reserved = Bytes(self.reserved_bytes);
        let reserved = match self.limit_bytes() {
            Some(bytes) => format!("{reserved} of {} reserved", Bytes(bytes)),
            None => format!("{reserved} reserved without a limit"),
        };
        write!(
            f,
            "{}; {reserved} ({} allocated, {} charged, {} cached), largest free {}",
            self.headline(),
            Bytes(self.allocated_bytes),
            Bytes(self.charged_bytes),
            Bytes(self.cached_bytes),
            Bytes(self.largest_free_bytes),
        )?;
        if self.outside_bytes > 0 {
            write!(f, ", {} outside the allocator", Bytes(self.outside_bytes))?;
        }
        let most = self.by_category.iter().max_by_key(|&(_, &bytes)| bytes);
        match most.filter(|&(_, &bytes)| bytes > 0) {
            Some((category, &bytes)) => write!(f, ", most in {category} ({})", Bytes(bytes)),
            None => Ok(()),
        }
    }
}
