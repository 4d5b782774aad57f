//! A model of the structure of PyTorch's CUDA caching allocator, to measure its cost. A check shows
//! that it places every block where `TorchPolicy` does.
//!
//! The model follows `c10/cuda/CUDACachingAllocator.cpp` of PyTorch (BSD-3, early 2026) as
//! published; no code is shared. It has a set of free blocks for each of two pools, ordered by
//! stream, size and address; a block of its own on the heap for every part of a segment, linked to
//! its neighbours; one recursive lock for a device; a hash set of active blocks; a hash map from
//! address to block in 67 shards, each with a lock; five counters, each for both pools and for all,
//! with current, peak and totals.
//!
//! Left out, to the model's advantage: contexts, trace and profiler hooks, events of other streams,
//! private pools, and another hundred counters. Blocks are named by their slot in a table, which
//! costs one more load than a pointer. The ordered set is a B-tree, which is faster than the
//! red-black tree of `std::set`.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::subject::Subject;

const MIB: u64 = 1 << 20;
const GRAIN_BYTES: u64 = 512;
const SMALL_BYTES_MAX: u64 = MIB;
const SHARDS: usize = 67;
const NONE: u32 = u32::MAX;
const SMALL: usize = 0;
const LARGE: usize = 1;

struct Block {
    address: u64,
    size_bytes: u64,
    requested_bytes: u64,
    stream: u64,
    pool: usize,
    is_free: bool,
    previous: u32,
    next: u32,
}

/// One quantity of one pool, or of both pools.
#[derive(Clone, Copy, Default)]
struct Stat {
    current: u64,
    peak: u64,
    added: u64,
    removed: u64,
}

impl Stat {
    fn add(&mut self, amount: u64) {
        self.current += amount;
        self.peak = self.peak.max(self.current);
        self.added += amount;
    }

    fn remove(&mut self, amount: u64) {
        self.current -= amount;
        self.removed += amount;
    }
}

/// Allocations, active blocks, allocated, active and requested bytes, each for the small pool, the
/// large pool, and both.
type Stats = [[Stat; 3]; 5];

/// Stream, size, address, slot. The best fit is the first key from (stream, wanted, 0, 0) on.
type FreeKey = (u64, u64, u64, u32);

struct Device {
    blocks: Vec<Option<Box<Block>>>,
    vacant: Vec<u32>,
    free: [BTreeSet<FreeKey>; 2],
    active: HashSet<u32, Spread>,
    stats: Stats,
    next_address: u64,
}

/// Multiplicative hashing (Knuth, "Sorting and Searching", 6.4).
#[derive(Default)]
struct Golden(u64);

type Spread = BuildHasherDefault<Golden>;

impl Hasher for Golden {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        let product = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }
}

impl Device {
    fn block(&self, slot: u32) -> &Block {
        self.blocks[slot as usize].as_ref().expect("a block in use")
    }

    fn block_mut(&mut self, slot: u32) -> &mut Block {
        self.blocks[slot as usize].as_mut().expect("a block in use")
    }

    fn add(&mut self, block: Block) -> u32 {
        let block = Some(Box::new(block));
        match self.vacant.pop() {
            Some(slot) => {
                self.blocks[slot as usize] = block;
                slot
            }
            None => {
                self.blocks.push(block);
                self.blocks.len() as u32 - 1
            }
        }
    }

    fn take_away(&mut self, slot: u32) -> Box<Block> {
        self.vacant.push(slot);
        self.blocks[slot as usize].take().expect("a block in use")
    }

    fn key(&self, slot: u32) -> FreeKey {
        let Block { stream, size_bytes, address, .. } = *self.block(slot);
        (stream, size_bytes, address, slot)
    }

    fn allocate(&mut self, requested_bytes: u64, stream: u64) -> (u64, u32) {
        let size_bytes = requested_bytes.next_multiple_of(GRAIN_BYTES);
        let pool = if size_bytes <= SMALL_BYTES_MAX { SMALL } else { LARGE };
        let slot = self
            .best_fit(pool, stream, size_bytes)
            .unwrap_or_else(|| self.reserve(pool, stream, size_bytes));
        let rest_bytes = self.block(slot).size_bytes - size_bytes;
        let splits = match pool {
            SMALL => rest_bytes >= GRAIN_BYTES,
            _ => rest_bytes > SMALL_BYTES_MAX,
        };
        if splits {
            self.split(slot, size_bytes);
        }
        let block = self.block_mut(slot);
        block.is_free = false;
        block.requested_bytes = requested_bytes;
        let (address, block_bytes) = (block.address, block.size_bytes);
        self.active.insert(slot);
        for (stat, amount) in
            self.stats.iter_mut().zip([1, 1, block_bytes, block_bytes, requested_bytes])
        {
            stat[pool].add(amount);
            stat[2].add(amount);
        }
        (address, slot)
    }

    fn best_fit(&mut self, pool: usize, stream: u64, size_bytes: u64) -> Option<u32> {
        let key = *self.free[pool].range((stream, size_bytes, 0, 0)..).next()?;
        if key.0 != stream {
            return None;
        }
        self.free[pool].remove(&key);
        Some(key.3)
    }

    fn reserve(&mut self, pool: usize, stream: u64, size_bytes: u64) -> u32 {
        let segment_bytes = match pool {
            SMALL => 2 * MIB,
            _ if size_bytes < 10 * MIB => 20 * MIB,
            _ => size_bytes.next_multiple_of(2 * MIB),
        };
        let address = self.next_address;
        self.next_address += segment_bytes;
        self.add(Block {
            address,
            size_bytes: segment_bytes,
            requested_bytes: 0,
            stream,
            pool,
            is_free: true,
            previous: NONE,
            next: NONE,
        })
    }

    /// Splits a block: the bytes behind the first `size_bytes` become a free block.
    fn split(&mut self, slot: u32, size_bytes: u64) {
        let Block { address, size_bytes: whole_bytes, stream, pool, next, .. } = *self.block(slot);
        let rest = self.add(Block {
            address: address + size_bytes,
            size_bytes: whole_bytes - size_bytes,
            requested_bytes: 0,
            stream,
            pool,
            is_free: true,
            previous: slot,
            next,
        });
        if next != NONE {
            self.block_mut(next).previous = rest;
        }
        let block = self.block_mut(slot);
        block.size_bytes = size_bytes;
        block.next = rest;
        let key = self.key(rest);
        self.free[pool].insert(key);
    }

    fn free(&mut self, slot: u32) {
        self.active.remove(&slot);
        let Block { size_bytes, requested_bytes, pool, previous, next, .. } = *self.block(slot);
        for (stat, amount) in
            self.stats.iter_mut().zip([1, 1, size_bytes, size_bytes, requested_bytes])
        {
            stat[pool].remove(amount);
            stat[2].remove(amount);
        }
        if previous != NONE && self.block(previous).is_free {
            let key = self.key(previous);
            self.free[pool].remove(&key);
            let before = self.take_away(previous);
            let block = self.block_mut(slot);
            block.address = before.address;
            block.size_bytes += before.size_bytes;
            block.previous = before.previous;
            if before.previous != NONE {
                self.block_mut(before.previous).next = slot;
            }
        }
        if next != NONE && self.block(next).is_free {
            let key = self.key(next);
            self.free[pool].remove(&key);
            let after = self.take_away(next);
            let block = self.block_mut(slot);
            block.size_bytes += after.size_bytes;
            block.next = after.next;
            if after.next != NONE {
                self.block_mut(after.next).previous = slot;
            }
        }
        self.block_mut(slot).is_free = true;
        let key = self.key(slot);
        self.free[pool].insert(key);
    }

    /// Releases every segment that is one free block.
    fn trim(&mut self) {
        for pool in [SMALL, LARGE] {
            let free = std::mem::take(&mut self.free[pool]);
            let (whole, parts): (BTreeSet<_>, BTreeSet<_>) = free.into_iter().partition(|key| {
                let block = self.block(key.3);
                block.previous == NONE && block.next == NONE
            });
            self.free[pool] = parts;
            whole.into_iter().for_each(|key| drop(self.take_away(key.3)));
        }
    }
}

/// A recursive lock. It pays for the check of its owner, although nothing here locks twice.
struct Reentrant<T> {
    owner: AtomicU64,
    value: Mutex<T>,
}

impl<T> Reentrant<T> {
    fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        let own = thread_number();
        assert_ne!(self.owner.load(Ordering::Relaxed), own, "the lock is taken once");
        let mut value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        self.owner.store(own, Ordering::Relaxed);
        let result = work(&mut value);
        self.owner.store(0, Ordering::Relaxed);
        result
    }
}

fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local!(static OWN: u64 = NEXT.fetch_add(1, Ordering::Relaxed));
    OWN.with(|own| *own)
}

type Shard = Mutex<HashMap<u64, u32, Spread>>;

struct Shared {
    device: Reentrant<Device>,
    shards: [Shard; SHARDS],
}

#[derive(Clone)]
pub(crate) struct ModelOfPyTorch(Arc<Shared>);

impl ModelOfPyTorch {
    pub(crate) fn new() -> ModelOfPyTorch {
        let device = Device {
            blocks: Vec::new(),
            vacant: Vec::new(),
            free: [BTreeSet::new(), BTreeSet::new()],
            active: HashSet::default(),
            stats: Stats::default(),
            next_address: 1 << 40,
        };
        let device = Reentrant { owner: AtomicU64::new(0), value: Mutex::new(device) };
        let shards = std::array::from_fn(|_| Shard::default());
        ModelOfPyTorch(Arc::new(Shared { device, shards }))
    }

    fn shard(&self, address: u64) -> &Shard {
        let mut spread = Golden::default();
        spread.write_u64(address);
        &self.0.shards[spread.finish() as usize % SHARDS]
    }
}

impl Subject for ModelOfPyTorch {
    type Block = u64;

    fn allocate(&mut self, size_bytes: u64, stream: u8) -> u64 {
        let stream = u64::from(stream);
        let (address, slot) = self.0.device.with(|device| device.allocate(size_bytes, stream));
        let shard = self.shard(address).lock();
        shard.unwrap_or_else(PoisonError::into_inner).insert(address, slot);
        address
    }

    fn free(&mut self, block: u64) {
        let shard = self.shard(block).lock();
        let slot = shard.unwrap_or_else(PoisonError::into_inner).remove(&block);
        let slot = slot.expect("the block is live");
        self.0.device.with(|device| device.free(slot));
    }

    fn trim(&mut self) {
        self.0.device.with(Device::trim);
    }

    fn address(block: &u64) -> u64 {
        *block
    }
}
