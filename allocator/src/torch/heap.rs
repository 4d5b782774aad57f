//! Segments, the blocks that tile them, and the ordered sets of those that are free.
//!
//! Blocks live in a slab and know their neighbours; a slot is reused after its block was merged
//! away. The first block of a segment keeps its slot for as long as the segment is held.

use std::collections::BTreeMap;

use super::block::{BlockLayout, BlockState, Pool, SegmentLayout, StreamId};
use super::error::LayoutError;

/// A slot of the slab.
pub(super) type Slot = u32;

/// Best fit is the first of these from (stream, wanted bytes, 0) on.
pub(super) type FreeKey = (StreamId, u64, u64);

#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) address: u64,
    pub(super) size_bytes: u64,
    pub(super) requested_bytes: u64,
    pub(super) stream: StreamId,
    pub(super) pool: Pool,
    pub(super) state: BlockState,
    pub(super) prev: Option<Slot>,
    pub(super) next: Option<Slot>,
    /// Other streams that used it since it was allocated.
    pub(super) uses: Vec<StreamId>,
    /// Searches of its pool before it became free.
    pub(super) born: u64,
}

impl Block {
    pub(super) fn end(&self) -> u64 {
        self.address + self.size_bytes
    }

    /// Not split: it is a segment of its own.
    pub(super) fn is_whole(&self) -> bool {
        self.prev.is_none() && self.next.is_none()
    }

    fn key(&self) -> FreeKey {
        (self.stream, self.size_bytes, self.address)
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Heap {
    blocks: Vec<Block>,
    vacant: Vec<Slot>,
    /// Address of a segment → its first block.
    pub(super) segments: BTreeMap<u64, Slot>,
    /// Address → a block that is active or pending.
    pub(super) taken: BTreeMap<u64, Slot>,
    free: [BTreeMap<FreeKey, Slot>; 2],
    /// Searches of each pool, which free blocks age by.
    pub(super) searches: [u64; 2],
    pub(super) reserved_bytes: u64,
}

impl Heap {
    pub(super) fn block(&self, slot: Slot) -> &Block {
        &self.blocks[slot as usize]
    }

    pub(super) fn block_mut(&mut self, slot: Slot) -> &mut Block {
        &mut self.blocks[slot as usize]
    }

    pub(super) fn free(&self, pool: Pool) -> &BTreeMap<FreeKey, Slot> {
        &self.free[pool as usize]
    }

    fn insert(&mut self, block: Block) -> Slot {
        if let Some(slot) = self.vacant.pop() {
            self.blocks[slot as usize] = block;
            return slot;
        }
        self.blocks.push(block);
        Slot::try_from(self.blocks.len() - 1).expect("fewer than 2^32 blocks")
    }

    /// Adds a segment that is one block, in no set yet.
    pub(super) fn add_segment(
        &mut self,
        address: u64,
        size_bytes: u64,
        stream: StreamId,
        pool: Pool,
    ) -> Slot {
        let slot = self.insert(Block {
            address,
            size_bytes,
            requested_bytes: 0,
            stream,
            pool,
            state: BlockState::Free,
            prev: None,
            next: None,
            uses: Vec::new(),
            born: 0,
        });
        self.segments.insert(address, slot);
        self.reserved_bytes += size_bytes;
        slot
    }

    /// Adds a segment with the blocks it has.
    pub(super) fn add_layout(&mut self, layout: &SegmentLayout) -> Result<(), LayoutError> {
        let SegmentLayout { address, size_bytes, stream, pool, ref blocks } = *layout;
        let flaw = LayoutError { address };
        let end = address.checked_add(size_bytes).ok_or(flaw)?;
        let before = self.segments.range(..end).next_back();
        if before.is_some_and(|(_, &first)| self.segment_end(first) > address) {
            return Err(flaw);
        }
        let (mut at, mut was_free) = (address, false);
        for block in blocks {
            let is_free = block.state == BlockState::Free;
            if block.address != at || block.size_bytes == 0 || (is_free && was_free) {
                return Err(flaw);
            }
            at = at.checked_add(block.size_bytes).ok_or(flaw)?;
            was_free = is_free;
        }
        if at != end || blocks.is_empty() {
            return Err(flaw);
        }
        let mut slot = self.add_segment(address, size_bytes, stream, pool);
        for (index, block) in blocks.iter().enumerate() {
            let is_last = index + 1 == blocks.len();
            let rest = (!is_last).then(|| self.split(slot, block.size_bytes));
            match block.state {
                BlockState::Free => self.put(slot),
                state => self.take(slot, block.requested_bytes, state),
            }
            slot = rest.unwrap_or(slot);
        }
        Ok(())
    }

    fn segment_end(&self, first: Slot) -> u64 {
        self.chain(first).last().map_or(0, Block::end)
    }

    /// Cuts a block that is in no set; the rest, in no set either.
    pub(super) fn split(&mut self, slot: Slot, size_bytes: u64) -> Slot {
        let mut rest = self.block(slot).clone();
        rest.address += size_bytes;
        rest.size_bytes -= size_bytes;
        rest.prev = Some(slot);
        let next = rest.next;
        let rest = self.insert(rest);
        if let Some(next) = next {
            self.block_mut(next).prev = Some(rest);
        }
        let block = self.block_mut(slot);
        block.size_bytes = size_bytes;
        block.next = Some(rest);
        rest
    }

    /// Puts a block that is in no set among the free ones of its pool.
    pub(super) fn put(&mut self, slot: Slot) {
        let block = &mut self.blocks[slot as usize];
        let pool = block.pool as usize;
        (block.state, block.requested_bytes) = (BlockState::Free, 0);
        block.born = self.searches[pool];
        let key = block.key();
        self.free[pool].insert(key, slot);
    }

    /// Removes a block from the free ones.
    pub(super) fn pick(&mut self, slot: Slot) {
        let block = &self.blocks[slot as usize];
        let was = self.free[block.pool as usize].remove(&block.key());
        assert_eq!(was, Some(slot), "the block at {:#x} is among the free", block.address);
    }

    /// Makes a block that is in no set a taken one.
    pub(super) fn take(&mut self, slot: Slot, requested_bytes: u64, state: BlockState) {
        let block = &mut self.blocks[slot as usize];
        (block.state, block.requested_bytes) = (state, requested_bytes);
        self.taken.insert(block.address, slot);
    }

    /// Frees a taken block, together with its free neighbours.
    pub(super) fn give(&mut self, slot: Slot) {
        let block = &mut self.blocks[slot as usize];
        block.uses.clear();
        let (address, prev, next) = (block.address, block.prev, block.next);
        self.taken.remove(&address);
        let is_free = |heap: &Heap, at: Slot| heap.block(at).state == BlockState::Free;
        if let Some(next) = next.filter(|&next| is_free(self, next)) {
            self.pick(next);
            self.absorb_next(slot);
        }
        match prev.filter(|&prev| is_free(self, prev)) {
            Some(prev) => {
                self.pick(prev);
                self.absorb_next(prev);
                self.put(prev);
            }
            None => self.put(slot),
        }
    }

    /// Appends the next block, which is in no set.
    fn absorb_next(&mut self, slot: Slot) {
        let gone = self.block(slot).next.expect("a next block");
        let Block { size_bytes, next, .. } = *self.block(gone);
        let block = self.block_mut(slot);
        block.size_bytes += size_bytes;
        block.next = next;
        if let Some(next) = next {
            self.block_mut(next).prev = Some(slot);
        }
        self.vacant.push(gone);
    }

    /// Forgets a segment that is one free block; its size.
    pub(super) fn remove_segment(&mut self, slot: Slot) -> u64 {
        self.pick(slot);
        let Block { address, size_bytes, .. } = *self.block(slot);
        assert!(self.block(slot).is_whole(), "the segment at {address:#x} is in one piece");
        self.segments.remove(&address);
        self.vacant.push(slot);
        self.reserved_bytes -= size_bytes;
        size_bytes
    }

    /// The blocks of a segment from its first one on.
    pub(super) fn chain(&self, first: Slot) -> impl Iterator<Item = &Block> {
        let start = Some(self.block(first));
        std::iter::successors(start, |block| block.next.map(|next| self.block(next)))
    }

    pub(super) fn layout(&self) -> Vec<SegmentLayout> {
        let segment = |(&address, &first): (&u64, &Slot)| {
            let blocks: Vec<_> = self.chain(first).map(BlockLayout::from).collect();
            let Block { stream, pool, .. } = *self.block(first);
            let size_bytes = blocks.iter().map(|block| block.size_bytes).sum();
            SegmentLayout { address, size_bytes, stream, pool, blocks }
        };
        self.segments.iter().map(segment).collect()
    }

    /// Slots in use: every block of every segment, and no other.
    pub(super) fn block_count(&self) -> usize {
        self.blocks.len() - self.vacant.len()
    }
}

impl From<&Block> for BlockLayout {
    fn from(block: &Block) -> Self {
        let Block { address, size_bytes, requested_bytes, state, .. } = *block;
        BlockLayout { address, size_bytes, requested_bytes, state }
    }
}
