//! Segments, the blocks that tile them, and the ordered sets of free blocks.
//!
//! Blocks live in a slab and know their neighbours. The slot of a block that was merged away is
//! reused. The first block of a segment keeps its slot while the segment is held.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use super::block::{AddressRange, BlockState, Pool, StreamId};

/// A slot of the slab.
pub(super) type Slot = u32;

/// Key of a free block: stream, size, address. The best fit is the first key from (stream, wanted
/// bytes, 0) on.
pub(super) type FreeKey = (StreamId, u64, u64);

/// A hash of addresses by multiplication (Knuth, "Sorting and Searching", 6.4). The high half,
/// which is well mixed, is folded into the low half, which a table uses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u64(&mut self, address: u64) {
        self.0 = (self.0 ^ address).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// The origin of a block's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backing {
    /// A segment that was reserved as a whole.
    Segment,
    /// Pages of an expandable segment.
    Pages,
    /// Addresses of an expandable segment without memory. Always free.
    Nothing,
}

#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) address: u64,
    pub(super) size_bytes: u64,
    pub(super) requested_bytes: u64,
    pub(super) stream: StreamId,
    pub(super) pool: Pool,
    pub(super) state: BlockState,
    pub(super) backing: Backing,
    pub(super) prev: Option<Slot>,
    pub(super) next: Option<Slot>,
    /// Other streams that used the block since it was allocated.
    pub(super) uses: Vec<StreamId>,
    /// Number of searches in the block's pool before the block became free.
    pub(super) born: u64,
}

impl Block {
    pub(super) fn end(&self) -> u64 {
        self.address + self.size_bytes
    }

    /// True if the block is a whole segment, not expandable. Such a block can be released.
    pub(super) fn is_whole(&self) -> bool {
        self.prev.is_none() && self.next.is_none() && self.backing == Backing::Segment
    }

    pub(super) fn is_free(&self) -> bool {
        self.state == BlockState::Free
    }

    pub(super) fn key(&self) -> FreeKey {
        (self.stream, self.size_bytes, self.address)
    }
}

/// An expandable segment; its blocks are chained from `first`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) size_bytes: u64,
    pub(super) page_bytes: u64,
    pub(super) first: Slot,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Heap {
    blocks: Vec<Block>,
    vacant: Vec<Slot>,
    /// Address of a segment → its first block.
    pub(super) segments: BTreeMap<u64, Slot>,
    /// Address of an expandable segment → the segment.
    pub(super) ranges: BTreeMap<u64, Range>,
    /// Address → a block that is active or pending.
    pub(super) taken: HashMap<u64, Slot, BuildHasherDefault<AddressHasher>>,
    free: [BTreeMap<FreeKey, Slot>; 2],
    /// Blocks without memory, by stream and address.
    unmapped: [BTreeMap<(StreamId, u64), Slot>; 2],
    /// Number of searches in each pool. The age of a free block counts searches.
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

    pub(super) fn unmapped(&self, pool: Pool) -> &BTreeMap<(StreamId, u64), Slot> {
        &self.unmapped[pool as usize]
    }

    pub(super) fn insert(&mut self, block: Block) -> Slot {
        if let Some(slot) = self.vacant.pop() {
            self.blocks[slot as usize] = block;
            return slot;
        }
        self.blocks.push(block);
        Slot::try_from(self.blocks.len() - 1).expect("fewer than 2^32 blocks")
    }

    /// Adds a block that is a whole segment or range, in no set yet.
    pub(super) fn insert_whole(
        &mut self,
        range: AddressRange,
        stream: StreamId,
        pool: Pool,
        backing: Backing,
    ) -> Slot {
        let AddressRange { address, size_bytes } = range;
        let (state, requested_bytes, born) = (BlockState::Free, 0, 0);
        let (prev, next, uses) = (None, None, Vec::new());
        self.insert(Block {
            address,
            size_bytes,
            requested_bytes,
            stream,
            pool,
            state,
            backing,
            prev,
            next,
            uses,
            born,
        })
    }

    /// Adds a segment of one block, in no set yet.
    pub(super) fn add_segment(
        &mut self,
        address: u64,
        size_bytes: u64,
        stream: StreamId,
        pool: Pool,
    ) -> Slot {
        let slot =
            self.insert_whole(AddressRange { address, size_bytes }, stream, pool, Backing::Segment);
        self.segments.insert(address, slot);
        self.reserved_bytes += size_bytes;
        slot
    }

    /// Splits a block that is in no set. Returns the rest, which is in no set either.
    pub(super) fn split(&mut self, slot: Slot, size_bytes: u64) -> Slot {
        let block = self.block(slot);
        let rest = Block {
            address: block.address + size_bytes,
            size_bytes: block.size_bytes - size_bytes,
            prev: Some(slot),
            uses: Vec::new(),
            ..*block
        };
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

    /// Inserts a block that is in no set into the free blocks of its pool.
    pub(super) fn put(&mut self, slot: Slot) {
        let block = &mut self.blocks[slot as usize];
        let pool = block.pool as usize;
        (block.state, block.requested_bytes) = (BlockState::Free, 0);
        block.born = self.searches[pool];
        if block.backing == Backing::Nothing {
            self.unmapped[pool].insert((block.stream, block.address), slot);
        } else {
            self.free[pool].insert(block.key(), slot);
        }
    }

    /// Removes a block from the free blocks.
    pub(super) fn pick(&mut self, slot: Slot) {
        let block = &self.blocks[slot as usize];
        let pool = block.pool as usize;
        let was = if block.backing == Backing::Nothing {
            self.unmapped[pool].remove(&(block.stream, block.address))
        } else {
            self.free[pool].remove(&block.key())
        };
        assert_eq!(was, Some(slot), "the block at {:#x} is among the free", block.address);
    }

    /// Makes a block that is in no set active or pending.
    pub(super) fn take(&mut self, slot: Slot, requested_bytes: u64, state: BlockState) {
        let block = &mut self.blocks[slot as usize];
        (block.state, block.requested_bytes) = (state, requested_bytes);
        self.taken.insert(block.address, slot);
    }

    /// Frees an active or pending block, and merges it with its free neighbours.
    pub(super) fn give(&mut self, slot: Slot) {
        let block = &mut self.blocks[slot as usize];
        block.uses.clear();
        let address = block.address;
        self.taken.remove(&address);
        self.put_merged(slot);
    }

    /// Inserts a block that is in no set into the free blocks, merged with its free neighbours of
    /// the same backing. Returns the merged block.
    pub(super) fn put_merged(&mut self, slot: Slot) -> Slot {
        let Block { backing, prev, next, .. } = *self.block(slot);
        let merges = |heap: &Heap, at: &Slot| {
            let block = heap.block(*at);
            block.is_free() && block.backing == backing
        };
        if let Some(next) = next.filter(|next| merges(self, next)) {
            self.pick(next);
            self.absorb_next(slot);
        }
        let prev = prev.filter(|prev| merges(self, prev));
        if let Some(prev) = prev {
            self.pick(prev);
            self.absorb_next(prev);
        }
        let slot = prev.unwrap_or(slot);
        self.put(slot);
        slot
    }

    /// Appends the next block, which is in no set, to a block.
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

    /// Removes a segment that is one free block. Returns its size.
    pub(super) fn remove_segment(&mut self, slot: Slot) -> u64 {
        let Block { address, size_bytes, .. } = *self.block(slot);
        assert!(self.block(slot).is_whole(), "the segment at {address:#x} is in one piece");
        self.remove_whole(slot);
        self.segments.remove(&address);
        self.reserved_bytes -= size_bytes;
        size_bytes
    }

    /// Removes a free block that has no neighbours.
    pub(super) fn remove_whole(&mut self, slot: Slot) {
        self.pick(slot);
        self.vacant.push(slot);
    }

    /// The blocks of a segment, from its first block on.
    pub(super) fn chain(&self, first: Slot) -> impl Iterator<Item = (Slot, &Block)> {
        let start = Some((first, self.block(first)));
        let next = |(_, block): &(Slot, &Block)| block.next.map(|next| (next, self.block(next)));
        std::iter::successors(start, next)
    }

    /// Number of slots in use: one for every block of every segment.
    pub(super) fn block_count(&self) -> usize {
        self.blocks.len() - self.vacant.len()
    }
}
