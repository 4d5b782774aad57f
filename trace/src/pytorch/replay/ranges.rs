//! Address ranges of expandable segments. A snapshot does not contain them.
//!
//! A snapshot has the pages that were mapped and unmapped, and the pages that have memory at the
//! end, but neither the start nor the length of a range. PyTorch maps the lowest addresses first:
//! new pages begin at the end of mapped pages, or at the start of a range. A range is released with
//! its last page.
//!
//! The end of a range is not recorded. PyTorch makes a range longer than the memory of the device,
//! so the range is assumed to reach to the next segment or range. The end matters if a hole among
//! the blocks is larger than the rest of the addresses, or if the addresses are used up.

use std::collections::BTreeMap;

use lowtide_allocator::torch::{AddressRange, Pool, SMALL_BYTES_MAX, StreamId, TorchSettings};

use crate::pytorch::replay::error::{MADE_UP_ADDRESS, ReplayError};
use crate::pytorch::snapshot::{Action, RecordedEvent};

/// Bytes of addresses behind the last page of a range, if they are free: more than the memory of
/// any device.
pub(crate) const TAIL_BYTES: u64 = 1 << 50;

/// A range, from its first page to its last page.
#[derive(Clone, Debug)]
pub(crate) struct Era {
    pub(crate) range: AddressRange,
    pub(crate) page_bytes: u64,
    pub(crate) stream: StreamId,
    pub(crate) pool: Pool,
    /// True if the range was there before the first event; false if it comes with an event.
    pub(crate) is_at_start: bool,
    /// True if the stream and pool had another range when this one came. The addresses of the other
    /// range were too few for a request, which may have failed.
    pub(crate) is_second: bool,
    /// Index of the event that maps the first pages. `died` is the event that unmaps the last
    /// pages.
    pub(crate) born: usize,
    died: usize,
    /// Runs of pages that have memory at the current event: address → end.
    mapped: BTreeMap<u64, u64>,
}

impl Era {
    fn is_open(&self) -> bool {
        !self.mapped.is_empty()
    }

    fn is_of(&self, pages: &Mapped) -> bool {
        self.is_open() && (self.stream, self.pool) == (pages.stream, pages.pool)
    }

    fn map(&mut self, pages: AddressRange) {
        let end = self.range.end().max(pages.end());
        self.range.address = self.range.address.min(pages.address);
        self.range.size_bytes = end - self.range.address;
        self.mapped.insert(pages.address, pages.end());
    }

    fn unmap(&mut self, pages: AddressRange) {
        let before = self.mapped.range(..pages.end()).map(|(&at, &end)| (at, end));
        let hit: Vec<(u64, u64)> = before.filter(|&(_, end)| end > pages.address).collect();
        for (at, end) in hit {
            self.mapped.remove(&at);
            if at < pages.address {
                self.mapped.insert(at, pages.address);
            }
            if end > pages.end() {
                self.mapped.insert(pages.end(), end);
            }
        }
    }
}

/// The pool of each event that maps or unmaps pages, by event index, as far as requests show it.
pub(crate) fn pools(events: &[RecordedEvent], settings: &TorchSettings) -> BTreeMap<usize, Pool> {
    let of_request = |bytes: u64| if bytes <= SMALL_BYTES_MAX { Pool::Small } else { Pool::Large };
    let mut pools = BTreeMap::new();
    // Pages are mapped for the next request of the stream, even if the request fails.
    let mut next_request: BTreeMap<StreamId, Pool> = BTreeMap::new();
    for (index, event) in events.iter().enumerate().rev() {
        match event.action {
            Action::Alloc | Action::Oom => {
                next_request.insert(event.stream, of_request(event.size_bytes));
            }
            Action::SegmentMap => {
                pools.extend(next_request.get(&event.stream).map(|&pool| (index, pool)));
            }
            _ => {}
        }
    }
    // Pools by address so far.
    let mut hints: BTreeMap<u64, Pool> = BTreeMap::new();
    for (index, event) in events.iter().enumerate() {
        match event.action {
            Action::Alloc | Action::FreeCompleted => {
                hints.insert(event.address, of_request(event.size_bytes));
            }
            Action::SegmentMap => {
                hints.extend(pools.get(&index).map(|&pool| (event.address, pool)));
            }
            Action::SegmentUnmap => {
                let end = event.address.saturating_add(event.size_bytes);
                let inside = hints.range(event.address..end).next().map(|(_, &pool)| pool);
                let is_large = event.size_bytes.is_multiple_of(settings.page_bytes(Pool::Large));
                let pool = inside.or((!is_large).then_some(Pool::Small));
                pools.extend(pool.map(|pool| (index, pool)));
                while let Some((&at, _)) = hints.range(event.address..end).next() {
                    hints.remove(&at);
                }
            }
            _ => {}
        }
    }
    pools
}

/// Pages that have memory before the first event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapped {
    pub(crate) pages: AddressRange,
    pub(crate) stream: StreamId,
    pub(crate) pool: Pool,
}

/// The ranges, in the order of their first pages. `others` are the addresses of ordinary segments.
pub(crate) fn eras(
    start: &[Mapped],
    events: &[RecordedEvent],
    pools: &BTreeMap<usize, Pool>,
    others: &[u64],
    settings: &TorchSettings,
) -> Result<Vec<Era>, ReplayError> {
    let new = |mapped: &Mapped, born: usize| Era {
        range: AddressRange { size_bytes: 0, ..mapped.pages },
        page_bytes: settings.page_bytes(mapped.pool),
        stream: mapped.stream,
        pool: mapped.pool,
        is_at_start: false,
        is_second: false,
        born,
        died: events.len(),
        mapped: BTreeMap::new(),
    };
    let mut eras: Vec<Era> = Vec::new();
    for pages in start {
        if eras.last().is_none_or(|last| !last.is_of(pages)) {
            eras.push(Era { is_at_start: true, ..new(pages, 0) });
        }
        eras.iter_mut().rev().take(1).for_each(|era| era.map(pages.pages));
    }
    for (index, event) in events.iter().enumerate() {
        let Some(&pool) = pools.get(&index) else { continue };
        let RecordedEvent { address, size_bytes, stream, action, .. } = *event;
        let mapped = Mapped { pages: AddressRange { address, size_bytes }, stream, pool };
        if action == Action::SegmentMap {
            let at = era_of(&mapped, &eras).unwrap_or_else(|| {
                let is_second = eras.iter().any(|era| era.is_of(&mapped));
                eras.push(Era { is_second, ..new(&mapped, index) });
                eras.len() - 1
            });
            eras[at].map(mapped.pages);
        } else {
            for era in eras.iter_mut().filter(|era| era.is_open()) {
                era.unmap(mapped.pages);
                if !era.is_open() {
                    era.died = index;
                }
            }
        }
    }
    let ends: Vec<u64> = eras.iter().map(|era| end_of(era, &eras, others)).collect();
    for (era, end) in eras.iter_mut().zip(ends) {
        let AddressRange { address, size_bytes } = era.range;
        era.range.size_bytes = (end - address) / era.page_bytes * era.page_bytes;
        if era.range.size_bytes < size_bytes || size_bytes == 0 {
            return Err(ReplayError::Impossible { address });
        }
    }
    Ok(eras)
}

/// The existing range that gets these pages: they begin where its pages end, or where the range
/// begins. The first pages of a range that was there at the start may have no memory.
fn era_of(pages: &Mapped, eras: &[Era]) -> Option<usize> {
    let address = pages.pages.address;
    let of_key = || eras.iter().enumerate().filter(|(_, era)| era.is_of(pages));
    let touches = |era: &Era| {
        let below = era.mapped.range(..address).next_back();
        era.range.address == address || below.is_some_and(|(_, &end)| end == address)
    };
    if let Some((at, _)) = of_key().find(|(_, era)| touches(era)) {
        return Some(at);
    }
    let open = eras.iter().enumerate().filter(|(_, era)| era.is_open());
    let above = open.filter(|(_, era)| era.range.address > address);
    let (at, next) = above.min_by_key(|(_, era)| era.range.address)?;
    (next.is_at_start && next.is_of(pages)).then_some(at)
}

/// The address of the next range or segment behind the pages of a range.
fn end_of(era: &Era, eras: &[Era], others: &[u64]) -> u64 {
    let end = era.range.end();
    let at_that_time = |other: &&Era| other.born <= era.died && era.born <= other.died;
    let ranges = eras.iter().filter(at_that_time).map(|other| other.range.address);
    let behind = ranges.chain(others.iter().copied()).filter(|&address| address >= end).min();
    let tail = end.saturating_add(TAIL_BYTES).min(MADE_UP_ADDRESS);
    behind.unwrap_or(tail).min(tail).max(end)
}
