//! Nested scopes that report their allocations, and the blocks that they left over.
//!
//! Requests count nothing for open watches. The peak of a watch is the largest of the peaks between
//! the moments at which any watch opened or closed. So a request costs the same with and without
//! watches.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;

use crate::arena::block_info::BlockInfo;
use crate::caching::CachingAllocator;
use crate::caching::locked::State;
use crate::category::{ByCategory, Category};
use crate::statistics::Statistics;

/// An open scope; see [`CachingAllocator::watch`].
#[must_use = "the report comes from `finish`"]
#[derive(Debug)]
pub struct Watch {
    allocator: CachingAllocator,
    name: String,
    id: u64,
    start: Statistics,
    /// The last serial before the scope. Blocks of the scope have larger serials.
    serial: u64,
}

/// Events between the start and the end of a [`Watch`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchReport {
    /// Name of the watch.
    pub name: String,
    /// Number of allocations that succeeded.
    pub allocations: u64,
    /// Active bytes of these allocations.
    pub allocated_bytes: usize,
    /// Active bytes of blocks that were freed, blocks from before included.
    pub freed_bytes: usize,
    /// Peak of the bytes of live blocks, blocks from before included.
    pub allocated_bytes_peak: usize,
    /// Peak of the reserved bytes.
    pub reserved_bytes_peak: usize,
    /// Growth of allocated and charged bytes since the start.
    pub net_bytes: ByCategory<isize>,
    /// Blocks that were allocated inside and are still live, in address order.
    pub left_over: Vec<BlockInfo>,
}

impl CachingAllocator {
    /// Watches all allocations of all threads until [`finish`](Watch::finish).
    ///
    /// Watches nest, and may even overlap. Each watch has its own peaks, and the peaks of
    /// [`statistics`](Self::statistics) do not depend on watches.
    /// [`reset_peaks`](Self::reset_peaks) does not touch open watches. On a simulation a watch
    /// reports the values that it will report on the device.
    ///
    /// # Examples
    /// ```
    /// use lowtide_allocator::{CachingAllocator, SimSource};
    ///
    /// let memory = CachingAllocator::new(SimSource::with_capacity(1 << 30))?;
    /// let watch = memory.watch("step");
    /// let forgotten = memory.allocate(1 << 20)?;
    /// drop(memory.allocate(3 << 20)?);
    /// let report = watch.finish();
    /// assert_eq!(report.allocated_bytes_peak, 4 << 20);
    /// assert_eq!(report.left_over[0].serial, forgotten.serial());
    /// println!("{report}");
    /// # Ok::<(), lowtide_allocator::AllocError>(())
    /// ```
    pub fn watch(&self, name: impl Into<String>) -> Watch {
        let mut locked = self.core().lock();
        let State { arena, watches, .. } = &mut *locked.state;
        let start = arena.statistics;
        let id = watches.open(&mut arena.statistics);
        let serial = arena.last_serial();
        drop(locked);
        Watch { allocator: self.clone(), name: name.into(), id, start, serial }
    }
}

impl Watch {
    /// Ends the scope and reports on it, in time linear in the live blocks.
    pub fn finish(mut self) -> WatchReport {
        let name = std::mem::take(&mut self.name);
        let mut locked = self.allocator.core().lock();
        let mut left_over = locked.state.live_blocks();
        left_over.retain(|block| block.serial > self.serial);
        let State { arena, watches, .. } = &mut *locked.state;
        watches.fold(&mut arena.statistics);
        let peaks = watches.of(self.id);
        let (start, end) = (&self.start, &arena.statistics);
        let allocated_bytes = end.allocated.total_bytes - start.allocated.total_bytes;
        // Both totals are at most the memory of a machine, so their difference fits a signed
        // number.
        let net = |category: Category| {
            let current = |statistics: &Statistics| statistics.by_category[category].current_bytes;
            current(end) as isize - current(start) as isize
        };
        WatchReport {
            name,
            allocations: end.allocations - start.allocations,
            allocated_bytes,
            freed_bytes: start.allocated.current_bytes + allocated_bytes
                - end.allocated.current_bytes,
            allocated_bytes_peak: peaks.allocated_bytes,
            reserved_bytes_peak: peaks.reserved_bytes,
            net_bytes: ByCategory::from_fn(net),
            left_over,
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut locked = self.allocator.core().lock();
        let State { arena, watches, .. } = &mut *locked.state;
        watches.close(self.id, &mut arena.statistics);
    }
}

impl WatchReport {
    /// Left-over bytes and number of left-over blocks by source line, most bytes first.
    pub fn by_site(&self) -> Vec<(&'static Location<'static>, usize, usize)> {
        let mut sites: BTreeMap<&'static Location<'static>, (usize, usize)> = BTreeMap::new();
        for block in &self.left_over {
            let (bytes, count) = sites.entry(block.site).or_default();
            *bytes += block.size_bytes;
            *count += 1;
        }
        let mut rows: Vec<_> =
            sites.into_iter().map(|(site, (bytes, count))| (site, bytes, count)).collect();
        // A stable sort: rows with equal bytes stay in the order of the source.
        rows.sort_by_key(|&(_, bytes, _)| std::cmp::Reverse(bytes));
        rows
    }
}

impl fmt::Display for WatchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WatchReport { name, allocations, allocated_bytes, freed_bytes, .. } = self;
        writeln!(
            f,
            "{name}: {allocations} allocations of {allocated_bytes} B, {freed_bytes} B freed"
        )?;
        writeln!(
            f,
            "  peak {} B allocated, {} B reserved",
            self.allocated_bytes_peak, self.reserved_bytes_peak
        )?;
        for (category, &bytes) in self.net_bytes.iter().filter(|&(_, &bytes)| bytes != 0) {
            writeln!(f, "  {category:<16}{bytes:>+16} B")?;
        }
        for (site, bytes, count) in self.by_site() {
            writeln!(f, "  left over {bytes} B in {count} of {site}")?;
        }
        Ok(())
    }
}
