//! The whole state that decides: blocks, committed pages, charges, counters. No memory, no I/O.

use std::collections::BTreeMap;
use std::panic::Location;

use crate::category::{Arena, ByCategory, Category};
use crate::layout::{Layout, Live, Node, Place};
use crate::statistics::Statistics;

/// A live block, for naming what is left over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockInfo {
    /// Where it lies.
    pub arena: Arena,
    /// Offset in the arena.
    pub offset: usize,
    /// Active bytes: what it takes.
    pub size_bytes: usize,
    /// What was asked for.
    pub requested_bytes: usize,
    /// What it is for.
    pub category: Category,
    /// Who asked.
    pub site: &'static Location<'static>,
}

/// Who asks for what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) category: Category,
    pub(crate) size_bytes: usize,
    pub(crate) site: &'static Location<'static>,
}

/// Bytes that a charge holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChargeEntry {
    pub(crate) category: Category,
    pub(crate) size_bytes: usize,
}

/// Everything that a simulation has to copy to take the same decisions.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    pub(crate) layouts: [Layout; 2],
    /// Whole pages from offset 0, never below the top.
    pub(crate) committed_bytes: [usize; 2],
    /// Ends of the address ranges, multiples of the page.
    pub(crate) limit_bytes: [usize; 2],
    pub(crate) charges: BTreeMap<u64, ChargeEntry>,
    pub(crate) statistics: Statistics,
    pub(crate) request_count: u64,
    next_serial: u64,
}

impl Policy {
    pub(crate) fn new(capacity_bytes: usize, page_bytes: usize, limit_bytes: [usize; 2]) -> Policy {
        Policy {
            layouts: [Layout::new(), Layout::new()],
            committed_bytes: [0; 2],
            limit_bytes: limit_bytes.map(|bytes| bytes / page_bytes * page_bytes),
            charges: BTreeMap::new(),
            statistics: Statistics { capacity_bytes, page_bytes, ..Statistics::default() },
            request_count: 0,
            next_serial: 0,
        }
    }

    pub(crate) fn layout(&self, arena: Arena) -> &Layout {
        &self.layouts[arena.index()]
    }

    /// Rounded up to a page; saturates at a value that no address range reaches.
    pub(crate) fn page_ceil(&self, bytes: usize) -> usize {
        bytes.checked_next_multiple_of(self.statistics.page_bytes).unwrap_or(usize::MAX)
    }

    /// Committed bytes that the live blocks of an arena need.
    pub(crate) fn kept_bytes(&self, arena: Arena) -> usize {
        self.page_ceil(self.layout(arena).top())
    }

    /// What would be reserved with nothing cached, with `arena` reaching up to `end` and
    /// `charge_bytes` more charged: the least that any cache could do with.
    pub(crate) fn needed_bytes(&self, arena: Arena, end: usize, charge_bytes: usize) -> usize {
        let own = self.page_ceil(end.max(self.layout(arena).top()));
        let fixed = self.kept_bytes(arena.other()) + self.statistics.charged.current_bytes;
        own.saturating_add(fixed).saturating_add(charge_bytes)
    }

    /// Whether that much may be reserved. No machine has more than `isize::MAX` bytes: under a
    /// capacity that means "no limit", this keeps sums from overflowing.
    pub(crate) fn fits(&self, needed_bytes: usize) -> bool {
        needed_bytes <= self.statistics.capacity_bytes.min(isize::MAX as usize)
    }

    /// The largest block that a request could still get in an arena, with nothing cached.
    pub(crate) fn largest_free_bytes(&self, arena: Arena) -> usize {
        let Statistics { capacity_bytes, page_bytes, charged, .. } = self.statistics;
        let taken = self.kept_bytes(arena.other()) + charged.current_bytes;
        let pages = capacity_bytes.saturating_sub(taken) / page_bytes * page_bytes;
        let end = pages.min(self.limit_bytes[arena.index()]).max(self.kept_bytes(arena));
        self.layout(arena).largest_hole_bytes().max(end - self.layout(arena).top())
    }

    /// Makes a place a live block. Returns its slot and serial.
    pub(crate) fn insert(&mut self, place: Place, request: &Request) -> (u32, u64) {
        let Request { category, size_bytes: requested_bytes, site } = *request;
        let serial = self.take_serial();
        let live = Live { requested_bytes, category, site, serial };
        let slot = self.layouts[category.arena().index()].insert(place, live);
        self.statistics.requested.add(requested_bytes);
        self.statistics.allocated.add(place.size_bytes);
        self.statistics.by_category[category].add(place.size_bytes);
        self.statistics.allocations += 1;
        (slot, serial)
    }

    /// Frees a block; its pages stay committed.
    pub(crate) fn remove(&mut self, arena: Arena, slot: u32) -> (Node, Live) {
        let node = self.layouts[arena.index()].remove(slot);
        let live = node.live.expect("the layout freed a live block");
        self.statistics.requested.subtract(live.requested_bytes);
        self.statistics.allocated.subtract(node.size_bytes);
        self.statistics.by_category[live.category].subtract(node.size_bytes);
        (node, live)
    }

    pub(crate) fn set_committed(&mut self, arena: Arena, bytes: usize) {
        let before = std::mem::replace(&mut self.committed_bytes[arena.index()], bytes);
        if bytes >= before {
            self.statistics.reserved.add(bytes - before);
        } else {
            self.statistics.reserved.subtract(before - bytes);
        }
    }

    /// A charge of nothing, to be raised.
    pub(crate) fn open_charge(&mut self, category: Category) -> u64 {
        let serial = self.take_serial();
        self.charges.insert(serial, ChargeEntry { category, size_bytes: 0 });
        serial
    }

    pub(crate) fn raise_charge(&mut self, serial: u64, growth_bytes: usize) {
        let entry = self.charges.get_mut(&serial).expect("a charge lives until it is closed");
        entry.size_bytes += growth_bytes;
        self.statistics.charged.add(growth_bytes);
        self.statistics.reserved.add(growth_bytes);
        self.statistics.by_category[entry.category].add(growth_bytes);
    }

    pub(crate) fn close_charge(&mut self, serial: u64) -> ChargeEntry {
        let entry = self.charges.remove(&serial).expect("a charge is closed once");
        self.statistics.charged.subtract(entry.size_bytes);
        self.statistics.reserved.subtract(entry.size_bytes);
        self.statistics.by_category[entry.category].subtract(entry.size_bytes);
        entry
    }

    pub(crate) fn by_category_bytes(&self) -> ByCategory<usize> {
        ByCategory::from_fn(|category| self.statistics.by_category[category].current_bytes)
    }

    pub(crate) fn live_blocks(&self) -> Vec<BlockInfo> {
        let blocks = |arena| {
            self.layout(arena).live().map(move |(node, live)| BlockInfo {
                arena,
                offset: node.offset,
                size_bytes: node.size_bytes,
                requested_bytes: live.requested_bytes,
                category: live.category,
                site: live.site,
            })
        };
        Arena::ALL.into_iter().flat_map(blocks).collect()
    }

    /// 64-bit FNV-1a (Fowler, Noll, Vo; RFC 9923) over arena, offset, size and category of
    /// every live block in address order.
    pub(crate) fn layout_hash(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut absorb = |bytes: &[u8]| {
            for &byte in bytes {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
        };
        for arena in Arena::ALL {
            for (node, live) in self.layout(arena).live() {
                absorb(&[arena as u8, live.category as u8]);
                absorb(&(node.offset as u64).to_le_bytes());
                absorb(&(node.size_bytes as u64).to_le_bytes());
            }
        }
        hash
    }

    fn take_serial(&mut self) -> u64 {
        self.next_serial += 1;
        self.next_serial
    }
}
