//! Expandable segments: ranges of addresses that get memory page by page.
//!
//! PyTorch's note *Expandable Segments* gives the reason: a segment that grows in place leaves no
//! slivers at the ends of many segments. The arithmetic below decides where the next pages are
//! mapped, and which pages can be unmapped.

use super::block::AddressRange;
use super::error::TorchError;
use super::heap::{Backing, Block, Heap, Slot};
use super::policy::{Request, TorchPolicy};
use super::source::{PageSource, SegmentSource};

impl Heap {
    /// The size that a free block could grow to, for the ranking of candidates.
    pub(super) fn room_bytes(&self, slot: Slot) -> u64 {
        let block = self.block(slot);
        let next = block.next.map(|next| self.block(next));
        let behind = next.filter(|next| next.backing == Backing::Nothing);
        block.size_bytes + behind.map_or(0, |next| next.size_bytes)
    }

    /// The lowest block at which a row of free and unmapped blocks holds the request. The row has
    /// at least one unmapped block.
    fn lowest_room(&self, want: &Request) -> Option<Slot> {
        let of_stream = (want.stream, 0)..=(want.stream, u64::MAX);
        for &slot in self.unmapped(want.pool).range(of_stream).map(|(_, slot)| slot) {
            let prev = self.block(slot).prev.filter(|&prev| self.block(prev).is_free());
            let start = prev.unwrap_or(slot);
            let mut room_bytes = 0;
            for (_, block) in self.chain(start).take_while(|(_, block)| block.is_free()) {
                room_bytes += block.size_bytes;
                if room_bytes >= want.size_bytes {
                    return Some(start);
                }
            }
        }
        None
    }

    /// The addresses of the pages that hold `size_bytes` from the start of a block.
    fn pages_of(&self, slot: Slot, size_bytes: u64) -> AddressRange {
        let address = self.block(slot).address;
        let size_bytes = size_bytes.next_multiple_of(self.range_around(address).1);
        AddressRange { address, size_bytes }
    }

    /// Start and page size of the expandable segment around an address.
    fn range_around(&self, address: u64) -> (u64, u64) {
        let (&at, range) = self.ranges.range(..=address).next_back().expect("a range");
        (at, range.page_bytes)
    }

    /// Gives memory to the first bytes of an unmapped block. The bytes are whole pages. Returns the
    /// free block of these bytes.
    fn fill_pages(&mut self, slot: Slot, size_bytes: u64) -> Slot {
        self.pick(slot);
        if size_bytes < self.block(slot).size_bytes {
            let rest = self.split(slot, size_bytes);
            self.put(rest);
        }
        self.block_mut(slot).backing = Backing::Pages;
        self.reserved_bytes += size_bytes;
        self.put_merged(slot)
    }

    /// The pages that lie wholly in a free block.
    fn whole_pages(&self, slot: Slot) -> Option<AddressRange> {
        let block = self.block(slot);
        let (base, page_bytes) = self.range_around(block.address);
        let address = base + (block.address - base).next_multiple_of(page_bytes);
        let end = base + (block.end() - base) / page_bytes * page_bytes;
        (address < end).then(|| AddressRange { address, size_bytes: end - address })
    }

    /// Takes the memory from pages of a free block. Returns the unmapped block of these pages.
    fn drain_pages(&mut self, mut slot: Slot, pages: AddressRange) -> Slot {
        self.pick(slot);
        let Block { address, .. } = *self.block(slot);
        if pages.address > address {
            let rest = self.split(slot, pages.address - address);
            self.put(slot);
            slot = rest;
        }
        if pages.size_bytes < self.block(slot).size_bytes {
            let rest = self.split(slot, pages.size_bytes);
            self.put(rest);
        }
        self.block_mut(slot).backing = Backing::Nothing;
        self.reserved_bytes -= pages.size_bytes;
        self.put_merged(slot)
    }

    /// Removes an expandable segment that has no memory any more.
    fn remove_empty_range(&mut self, slot: Slot) -> Option<AddressRange> {
        let Block { address, size_bytes, prev, next, backing, .. } = *self.block(slot);
        if (prev, next, backing) != (None, None, Backing::Nothing) {
            return None;
        }
        self.remove_whole(slot);
        self.ranges.remove(&address);
        Some(AddressRange { address, size_bytes })
    }

    /// The block of an expandable segment around an address.
    fn block_around(&self, address: u64) -> Option<Slot> {
        let (_, range) = self.ranges.range(..=address).next_back()?;
        let mut chain = self.chain(range.first);
        chain.find(|(_, block)| address < block.end()).map(|(slot, _)| slot)
    }
}

impl TorchPolicy {
    /// Maps pages until there is a free block for the request, as low as possible. Reserves a new
    /// range if there are no addresses left. Pages that were mapped before a refusal stay, and are
    /// free.
    pub(super) fn expand(
        &mut self,
        want: &Request,
        source: &mut (impl SegmentSource + ?Sized),
    ) -> Option<Slot> {
        let pages = source.pages()?;
        let mut slot = match self.heap.lowest_room(want) {
            Some(slot) => slot,
            None => self.reserve_range(want, pages)?,
        };
        if self.heap.block(slot).backing == Backing::Nothing {
            slot = self.map(slot, want.size_bytes, pages)?;
        }
        while self.heap.block(slot).size_bytes < want.size_bytes {
            let Block { size_bytes, next, .. } = *self.heap.block(slot);
            let next = next.expect("there is room behind a block that is too small");
            slot = self.map(next, want.size_bytes - size_bytes, pages)?;
        }
        self.heap.pick(slot);
        Some(slot)
    }

    fn reserve_range(&mut self, want: &Request, pages: &mut dyn PageSource) -> Option<Slot> {
        let page_bytes = self.settings.page_bytes(want.pool);
        let range = pages.reserve_range(page_bytes, want.stream)?;
        let is_paged = range.size_bytes > 0 && range.size_bytes.is_multiple_of(page_bytes);
        assert!(is_paged, "a range of {} bytes for pages of {page_bytes}", range.size_bytes);
        if range.size_bytes < want.size_bytes {
            pages.release_range(range);
            return None;
        }
        let slot = self.heap.add_range(range, page_bytes, want.stream, want.pool);
        self.heap.put(slot);
        Some(slot)
    }

    /// Maps the first pages of an unmapped block, up to `size_bytes`.
    fn map(&mut self, slot: Slot, size_bytes: u64, pages: &mut dyn PageSource) -> Option<Slot> {
        let size_bytes = size_bytes.min(self.heap.block(slot).size_bytes);
        let range = self.heap.pages_of(slot, size_bytes);
        self.counters.map_calls += 1;
        pages.map(range).then(|| self.heap.fill_pages(slot, range.size_bytes))
    }

    /// Unmaps the whole pages of a free block. Releases the range of the block if these were its
    /// last pages. Returns the unmapped bytes.
    pub(super) fn unmap(&mut self, slot: Slot, source: &mut (impl SegmentSource + ?Sized)) -> u64 {
        let Some(range) = self.heap.whole_pages(slot) else { return 0 };
        let pages = source.pages().expect("the source of mapped pages takes them back");
        self.counters.unmap_calls += 1;
        let slot = self.heap.drain_pages(slot, range);
        pages.unmap(range);
        if let Some(empty) = self.heap.remove_empty_range(slot) {
            pages.release_range(empty);
        }
        range.size_bytes
    }

    /// Notes that the pages of `range` have memory, without a source.
    ///
    /// # Errors
    /// `NotThere`, unless an unmapped block begins at the start of `range` and has these pages.
    pub fn map_pages(&mut self, range: AddressRange) -> Result<(), TorchError> {
        let address = range.address;
        let slot = self.heap.block_around(address).filter(|&slot| {
            let block = self.heap.block(slot);
            let is_there = block.backing == Backing::Nothing && block.address == address;
            is_there
                && range.size_bytes <= block.size_bytes
                && self.heap.pages_of(slot, range.size_bytes) == range
        });
        let slot = slot.ok_or(TorchError::NotThere { address, verb: "mapped" })?;
        self.counters.map_calls += 1;
        self.heap.fill_pages(slot, range.size_bytes);
        Ok(())
    }

    /// Notes that the pages of `range` lost their memory, without a source. Returns the addresses
    /// of the expandable segment if these were its last pages.
    ///
    /// # Errors
    /// `NotThere`, unless these are all the whole pages of a free block.
    pub fn unmap_pages(&mut self, range: AddressRange) -> Result<Option<AddressRange>, TorchError> {
        let address = range.address;
        let slot = self.heap.block_around(address).filter(|&slot| {
            let block = self.heap.block(slot);
            let is_mapped = block.is_free() && block.backing == Backing::Pages;
            is_mapped && self.heap.whole_pages(slot) == Some(range)
        });
        let slot = slot.ok_or(TorchError::NotThere { address, verb: "unmapped" })?;
        self.counters.unmap_calls += 1;
        let slot = self.heap.drain_pages(slot, range);
        Ok(self.heap.remove_empty_range(slot))
    }
}
