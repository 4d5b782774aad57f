//! Conversions between the heap and plain data.

use super::block::{
    AddressRange, BlockLayout, BlockState, Pool, RangeLayout, SegmentLayout, StreamId,
};
use super::error::LayoutError;
use super::heap::{Backing, Block, Heap, Range, Slot};

impl From<&Block> for BlockLayout {
    fn from(block: &Block) -> Self {
        let Block { address, size_bytes, requested_bytes, state, .. } = *block;
        BlockLayout { address, size_bytes, requested_bytes, state }
    }
}

/// Checks that the blocks tile their segment, and that no two free blocks touch.
fn check_tiles(layout: &SegmentLayout) -> Result<(), LayoutError> {
    let flaw = LayoutError { address: layout.address };
    let (mut at, mut was_free) = (layout.address, false);
    for block in &layout.blocks {
        let is_free = block.state == BlockState::Free;
        if block.address != at || block.size_bytes == 0 || (is_free && was_free) {
            return Err(flaw);
        }
        at = at.checked_add(block.size_bytes).ok_or(flaw)?;
        was_free = is_free;
    }
    let end = layout.address.checked_add(layout.size_bytes);
    if end == Some(at) && !layout.blocks.is_empty() { Ok(()) } else { Err(flaw) }
}

/// Checks that the parts are whole pages in order with gaps between them, and have the stream and
/// the pool of the range.
fn check_pages(layout: &RangeLayout) -> Result<(), LayoutError> {
    let RangeLayout { range, page_bytes, stream, pool, ref mapped } = *layout;
    let flaw = LayoutError { address: range.address };
    let is_whole = |bytes: u64| bytes.checked_rem(page_bytes) == Some(0);
    let end = range.address.checked_add(range.size_bytes).ok_or(flaw)?;
    if range.size_bytes == 0 || !is_whole(range.size_bytes) {
        return Err(flaw);
    }
    let mut free_from = Some(range.address);
    for part in mapped {
        check_tiles(part)?;
        let begins = free_from.is_some_and(|from| part.address >= from);
        let is_paged =
            begins && is_whole(part.address - range.address) && is_whole(part.size_bytes);
        let part_end = part.address + part.size_bytes;
        if !is_paged || part_end > end || (part.stream, part.pool) != (stream, pool) {
            return Err(LayoutError { address: part.address });
        }
        free_from = part_end.checked_add(1);
    }
    Ok(())
}

impl Heap {
    /// True if no segment lies between two addresses.
    pub(super) fn is_vacant(&self, address: u64, end: u64) -> bool {
        let segment = self.segments.range(..end).next_back();
        let segment_end =
            segment.map(|(_, &first)| self.chain(first).last().map_or(0, |(_, block)| block.end()));
        let range = self.ranges.range(..end).next_back();
        let range_end = range.map(|(at, range)| at + range.size_bytes);
        segment_end.max(range_end).is_none_or(|end| end <= address)
    }

    /// Adds a segment with its blocks.
    pub(super) fn add_layout(&mut self, layout: &SegmentLayout) -> Result<(), LayoutError> {
        check_tiles(layout)?;
        let SegmentLayout { address, size_bytes, stream, pool, .. } = *layout;
        if !self.is_vacant(address, address + size_bytes) {
            return Err(LayoutError { address });
        }
        let slot = self.add_segment(address, size_bytes, stream, pool);
        self.fill(slot, &layout.blocks);
        Ok(())
    }

    /// Splits a block that is in no set into `blocks`, each in its set.
    fn fill(&mut self, mut slot: Slot, blocks: &[BlockLayout]) {
        for (index, block) in blocks.iter().enumerate() {
            let is_last = index + 1 == blocks.len();
            let rest = (!is_last).then(|| self.split(slot, block.size_bytes));
            match block.state {
                BlockState::Free => self.put(slot),
                state => self.take(slot, block.requested_bytes, state),
            }
            slot = rest.unwrap_or(slot);
        }
    }

    /// Adds an expandable segment without memory: one block, in no set yet.
    pub(super) fn add_range(
        &mut self,
        range: AddressRange,
        page_bytes: u64,
        stream: StreamId,
        pool: Pool,
    ) -> Slot {
        let first = self.insert_whole(range, stream, pool, Backing::Nothing);
        let AddressRange { address, size_bytes } = range;
        self.ranges.insert(address, Range { size_bytes, page_bytes, first });
        first
    }

    /// Adds an expandable segment with its memory and blocks.
    pub(super) fn add_range_layout(&mut self, layout: &RangeLayout) -> Result<(), LayoutError> {
        check_pages(layout)?;
        let RangeLayout { range, page_bytes, stream, pool, ref mapped } = *layout;
        if !self.is_vacant(range.address, range.end()) {
            return Err(LayoutError { address: range.address });
        }
        let mut slot = Some(self.add_range(range, page_bytes, stream, pool));
        let mut at = range.address;
        for part in mapped {
            let mut here = slot.expect("addresses are left for the part");
            if part.address > at {
                let rest = self.split(here, part.address - at);
                self.put(here);
                here = rest;
            }
            at = part.address + part.size_bytes;
            slot = (at < range.end()).then(|| self.split(here, part.size_bytes));
            self.block_mut(here).backing = Backing::Pages;
            self.fill(here, &part.blocks);
            self.reserved_bytes += part.size_bytes;
        }
        if let Some(rest) = slot {
            self.put(rest);
        }
        Ok(())
    }

    /// Segments, and the parts of expandable segments that have memory, by address.
    pub(super) fn layout(&self) -> Vec<SegmentLayout> {
        let segments = self.segments.values().flat_map(|&first| self.parts(first));
        let ranges = self.ranges.values().flat_map(|range| self.parts(range.first));
        let mut layout: Vec<_> = segments.chain(ranges).collect();
        layout.sort_unstable_by_key(|segment| segment.address);
        layout
    }

    pub(super) fn range_layout(&self) -> Vec<RangeLayout> {
        let layout = |(&address, range): (&u64, &Range)| {
            let Range { size_bytes, page_bytes, first } = *range;
            let Block { stream, pool, .. } = *self.block(first);
            let mapped = self.parts(first);
            let range = AddressRange { address, size_bytes };
            RangeLayout { range, page_bytes, stream, pool, mapped }
        };
        self.ranges.iter().map(layout).collect()
    }

    /// The parts of a segment that have memory.
    fn parts(&self, first: Slot) -> Vec<SegmentLayout> {
        let mut parts: Vec<SegmentLayout> = Vec::new();
        let mut is_open = false;
        for (_, block) in self.chain(first) {
            let Block { address, size_bytes, stream, pool, .. } = *block;
            let has_memory = block.backing != Backing::Nothing;
            if has_memory && !is_open {
                parts.push(SegmentLayout {
                    address,
                    size_bytes: 0,
                    stream,
                    pool,
                    blocks: Vec::new(),
                });
            }
            if let Some(part) = parts.last_mut().filter(|_| has_memory) {
                part.size_bytes += size_bytes;
                part.blocks.push(block.into());
            }
            is_open = has_memory;
        }
        parts
    }
}
