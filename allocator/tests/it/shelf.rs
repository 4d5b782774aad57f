//! Sources for the tests of PyTorch's rules.

use std::collections::BTreeMap;

use lowtide_allocator::torch::{
    AddressRange, Freed, PageSource, SegmentSource, SourceCall, StreamId, TorchError, TorchPolicy,
};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const MAIN: StreamId = StreamId(0);
pub(crate) const SIDE: StreamId = StreamId(1);

/// A policy on a shelf. Every step is followed by a check of both.
pub(crate) struct World<S> {
    pub(crate) policy: TorchPolicy,
    pub(crate) shelf: S,
}

/// A source that knows the bytes that it has given.
pub(crate) trait Held: SegmentSource {
    fn held_bytes(&self) -> u64;
}

impl<S: Held> World<S> {
    pub(crate) fn try_get(&mut self, size_bytes: u64, stream: StreamId) -> Result<u64, TorchError> {
        let placed = self.policy.allocate(size_bytes, stream, &mut self.shelf);
        self.policy.check_invariants();
        assert_eq!(self.shelf.held_bytes(), self.policy.reserved_bytes());
        placed.map(|address| address.expect("a block"))
    }

    #[track_caller]
    pub(crate) fn get(&mut self, size_bytes: u64) -> u64 {
        self.try_get(size_bytes, MAIN).expect("room")
    }

    #[track_caller]
    pub(crate) fn free(&mut self, address: u64) {
        assert_eq!(self.policy.free(address), Ok(Freed::Completed));
        self.policy.check_invariants();
    }
}

/// The lowest gap from `from` on that holds `size_bytes`.
fn lowest_gap(held: &BTreeMap<u64, u64>, from: u64, size_bytes: u64) -> u64 {
    let mut at = from;
    for (&address, &held_bytes) in held {
        if address - at >= size_bytes {
            break;
        }
        at = address + held_bytes;
    }
    at
}

/// A device of limited capacity that gives the lowest address with room.
#[derive(Clone, Debug)]
pub(crate) struct Shelf {
    pub(crate) capacity_bytes: u64,
    pub(crate) held: BTreeMap<u64, u64>,
    pub(crate) releases: Vec<u64>,
}

impl Shelf {
    pub(crate) fn new(capacity_bytes: u64) -> Self {
        Shelf { capacity_bytes, held: BTreeMap::new(), releases: Vec::new() }
    }
}

impl Held for Shelf {
    fn held_bytes(&self) -> u64 {
        self.held.values().sum()
    }
}

impl SegmentSource for Shelf {
    fn reserve(&mut self, size_bytes: u64) -> Option<u64> {
        if self.held.values().sum::<u64>() + size_bytes > self.capacity_bytes {
            return None;
        }
        let at = lowest_gap(&self.held, 1 << 30, size_bytes);
        self.held.insert(at, size_bytes);
        Some(at)
    }

    fn release(&mut self, address: u64, size_bytes: u64) {
        assert_eq!(self.held.remove(&address), Some(size_bytes));
        self.releases.push(size_bytes);
    }
}

/// A device that also maps pages, and records all calls.
#[derive(Clone, Debug)]
pub(crate) struct PagedShelf {
    pub(crate) capacity_bytes: u64,
    /// Length of a range, before it is rounded up to its pages.
    pub(crate) range_bytes: u64,
    pub(crate) segments: BTreeMap<u64, u64>,
    /// Address → length and page.
    pub(crate) ranges: BTreeMap<u64, (u64, u64)>,
    /// Address of each page that has memory → its length.
    pub(crate) pages: BTreeMap<u64, u64>,
    pub(crate) calls: Vec<SourceCall>,
}

impl PagedShelf {
    pub(crate) fn new(capacity_bytes: u64) -> Self {
        PagedShelf {
            capacity_bytes,
            range_bytes: capacity_bytes + capacity_bytes / 8,
            segments: BTreeMap::new(),
            ranges: BTreeMap::new(),
            pages: BTreeMap::new(),
            calls: Vec::new(),
        }
    }

    fn has_room(&self, size_bytes: u64) -> bool {
        self.held_bytes() + size_bytes <= self.capacity_bytes
    }

    /// The pages that make up `range`: start and length of each.
    fn pages_in(&self, range: AddressRange) -> Vec<(u64, u64)> {
        let (&start, &(size, page)) = self.ranges.range(..=range.address).next_back().unwrap();
        assert!(range.end() <= start + size && range.size_bytes > 0, "{range:x?} is in a range");
        assert!((range.address - start).is_multiple_of(page), "{range:x?} begins with a page");
        assert!(range.size_bytes.is_multiple_of(page), "{range:x?} ends with a page");
        let count = range.size_bytes / page;
        (0..count).map(|index| (range.address + index * page, page)).collect()
    }

    /// Takes the calls since the last time.
    pub(crate) fn take_calls(&mut self) -> Vec<SourceCall> {
        std::mem::take(&mut self.calls)
    }
}

impl Held for PagedShelf {
    fn held_bytes(&self) -> u64 {
        self.segments.values().sum::<u64>() + self.pages.values().sum::<u64>()
    }
}

impl SegmentSource for PagedShelf {
    fn reserve(&mut self, size_bytes: u64) -> Option<u64> {
        if !self.has_room(size_bytes) {
            self.calls.push(SourceCall::Refuse { size_bytes });
            return None;
        }
        let address = lowest_gap(&self.segments, 1 << 30, size_bytes);
        self.segments.insert(address, size_bytes);
        self.calls.push(SourceCall::Reserve(AddressRange { address, size_bytes }));
        Some(address)
    }

    fn release(&mut self, address: u64, size_bytes: u64) {
        assert_eq!(self.segments.remove(&address), Some(size_bytes));
        self.calls.push(SourceCall::Release(AddressRange { address, size_bytes }));
    }

    fn synchronize(&mut self) {
        self.calls.push(SourceCall::Synchronize);
    }

    fn pages(&mut self) -> Option<&mut dyn PageSource> {
        Some(self)
    }
}

impl PageSource for PagedShelf {
    fn reserve_range(&mut self, page_bytes: u64, _stream: StreamId) -> Option<AddressRange> {
        let size_bytes = self.range_bytes.next_multiple_of(page_bytes);
        let held = self.ranges.iter().map(|(&at, &(size, _))| (at, size)).collect();
        // The range does not start at a multiple of the page, which the driver's ranges need not
        // either.
        let address = lowest_gap(&held, (1 << 44) + 2 * MIB, size_bytes);
        self.ranges.insert(address, (size_bytes, page_bytes));
        let range = AddressRange { address, size_bytes };
        self.calls.push(SourceCall::ReserveRange(range));
        Some(range)
    }

    fn release_range(&mut self, range: AddressRange) {
        assert_eq!(
            self.ranges.remove(&range.address).map(|(size, _)| size),
            Some(range.size_bytes)
        );
        let left = self.pages.range(range.address..range.end()).next();
        assert_eq!(left, None, "no page of {range:x?} has memory");
        self.calls.push(SourceCall::ReleaseRange(range));
    }

    /// Maps page by page. If a page cannot be mapped, the earlier pages of the call are unmapped.
    fn map(&mut self, pages: AddressRange) -> bool {
        let wanted = self.pages_in(pages);
        for (index, &(address, size_bytes)) in wanted.iter().enumerate() {
            if !self.has_room(size_bytes) {
                for (address, _) in &wanted[..index] {
                    self.pages.remove(address);
                }
                self.calls.push(SourceCall::Refuse { size_bytes: pages.size_bytes });
                return false;
            }
            assert_eq!(self.pages.insert(address, size_bytes), None, "a page is mapped once");
        }
        self.calls.push(SourceCall::Map(pages));
        true
    }

    fn unmap(&mut self, pages: AddressRange) {
        for (address, size_bytes) in self.pages_in(pages) {
            assert_eq!(self.pages.remove(&address), Some(size_bytes), "a mapped page");
        }
        self.calls.push(SourceCall::Unmap(pages));
    }
}
