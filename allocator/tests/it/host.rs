use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use lowtide_allocator::{
    Buffer, CachingAllocator, Category, HostSource, MemorySource, PageRange, Segment, SimSource,
    SourceError,
};

use crate::common::in_a_process_of_its_own;

#[test]
fn new_memory_is_zero_and_aligned() {
    let memory = CachingAllocator::new(HostSource::with_capacity(1 << 20)).unwrap();
    for category in Category::ALL {
        let mut buffer = memory.allocate_in(category, 70_001).unwrap();
        assert_eq!(buffer.address() % 512, 0);
        assert_eq!(buffer.as_ptr().unwrap().as_ptr() as u64, buffer.address());
        assert_eq!(buffer.as_slice().unwrap().len(), 70_001);
        if category == Category::Parameter {
            assert!(buffer.as_slice().unwrap().iter().all(|&byte| byte == 0));
        }
        buffer.as_mut_slice().unwrap().fill(category as u8 + 1);
    }
}

#[test]
fn reused_memory_keeps_what_it_held() {
    let memory = CachingAllocator::new(HostSource::with_capacity(1 << 20)).unwrap();
    let mut buffer = memory.allocate(1000).unwrap();
    buffer.as_mut_slice().unwrap().fill(7);
    drop(buffer);
    assert_eq!(memory.allocate(1000).unwrap().as_slice().unwrap(), [7; 1000]);
}

#[test]
fn simulated_memory_has_addresses_and_no_bytes() {
    let memory = CachingAllocator::new(SimSource::with_capacity(1 << 20)).unwrap();
    let mut low = memory.allocate(1).unwrap();
    let high = memory.allocate(1).unwrap();
    let weights = memory.allocate_in(Category::Parameter, 1).unwrap();
    assert_eq!(high.address(), low.address() + 512);
    assert_ne!(weights.address(), low.address());
    assert!(low.as_slice().is_none() && low.as_mut_slice().is_none());
}

#[test]
fn buffers_outlive_every_handle() {
    let mut buffer = {
        let memory = CachingAllocator::new(HostSource::with_capacity(1 << 20)).unwrap();
        memory.allocate(100_000).unwrap()
    };
    buffer.as_mut_slice().unwrap().fill(3);
    assert!(buffer.as_slice().unwrap().iter().all(|&byte| byte == 3));
    buffer.allocator().check_invariants();
}

#[test]
fn system_has_the_memory_of_the_machine() {
    let source = HostSource::system();
    assert!(source.capacity_bytes() >= 64 << 20, "{source:?}");
    let memory = CachingAllocator::new(source).unwrap();
    assert_eq!(memory.capacity_bytes(), source.capacity_bytes());
    assert_eq!(memory.statistics().page_bytes, 64 << 10);
}

#[test]
fn capacity_of_the_host_may_rise() {
    let memory = CachingAllocator::new(HostSource::with_capacity(64 << 10)).unwrap();
    assert!(memory.allocate(1 << 20).is_err());
    memory.set_capacity(1 << 20);
    let mut buffer = memory.allocate(1 << 20).unwrap();
    buffer.as_mut_slice().unwrap().fill(1);
}

#[test]
fn capacity_beyond_all_addresses_is_no_obstacle() {
    if cfg!(lowtide_thread_sanitizer) {
        println!("skipped: capacity beyond all addresses: the thread sanitizer leaves few of them");
        return;
    }
    let memory = CachingAllocator::new(HostSource::with_capacity(usize::MAX)).unwrap();
    assert!(memory.allocate(1 << 50).unwrap_err().out_of_memory().is_some());
    memory.allocate(1).unwrap();
}

#[test]
fn concurrent_threads_keep_the_invariants() {
    const THREADS: u8 = 4;
    const ROUNDS: usize = 2_000;
    let memory = CachingAllocator::new(HostSource::with_capacity(1 << 30)).unwrap();
    let work = |tag: u8| {
        let mut held: Vec<Buffer> = Vec::new();
        for round in 0..ROUNDS {
            let category = Category::ALL[(round * 5 + usize::from(tag)) % 7];
            let size_bytes = (round * 7919 + usize::from(tag) * 104_729) % 5_000;
            let mut buffer = memory.allocate_in(category, size_bytes).unwrap();
            buffer.as_mut_slice().unwrap().fill(tag);
            held.push(buffer);
            if round % 3 != 0 {
                let buffer = held.swap_remove(round * 31 % held.len());
                assert!(buffer.as_slice().unwrap().iter().all(|&byte| byte == tag));
            }
        }
        // Another thread frees half of the blocks.
        held.split_off(held.len() / 2)
    };
    let rest: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> =
            (1..=THREADS).map(|tag| scope.spawn(move || (tag, work(tag)))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    memory.check_invariants();
    for (tag, buffers) in rest {
        for buffer in buffers {
            assert!(buffer.as_slice().unwrap().iter().all(|&byte| byte == tag));
        }
    }
    memory.check_invariants();
    let statistics = memory.statistics();
    assert_eq!(statistics.allocated.current_bytes, 0);
    assert_eq!(statistics.allocations, u64::from(THREADS) * ROUNDS as u64);
}

/// An adaptor that returns the segment of another allocator.
struct Crossed {
    inner: HostSource,
    other: Segment,
}

impl MemorySource for Crossed {
    fn capacity_bytes(&self) -> usize {
        self.inner.capacity_bytes()
    }

    fn page_bytes(&self) -> usize {
        self.inner.page_bytes()
    }

    fn reserve(&self, size_bytes: usize) -> Result<Segment, SourceError> {
        self.inner.reserve(size_bytes)
    }

    fn release(&self, segment: &Segment) {
        self.inner.release(segment);
    }

    fn commit(&self, segment: &Segment, pages: &PageRange) -> Result<(), SourceError> {
        self.inner.commit(segment, pages)
    }

    fn decommit(&self, _: &Segment, pages: &PageRange) {
        self.inner.decommit(&self.other, pages);
    }
}

#[test]
fn pages_of_another_segment_cannot_be_taken_away() {
    let inner = HostSource::with_capacity(1 << 20);
    let other = inner.reserve(1 << 20).unwrap();
    let memory = CachingAllocator::new(Crossed { inner, other }).unwrap();
    drop(memory.allocate(1).unwrap());
    assert!(
        catch_unwind(AssertUnwindSafe(|| memory.trim())).is_err(),
        "the host source asserts it"
    );
    memory.check_invariants();
}

const HOST_PAGE_BYTES: usize = 64 << 10;

/// Allocates pages, and frees every other one.
fn with_holes(memory: &CachingAllocator, page_count: usize) -> Vec<Buffer> {
    let page = |_| memory.allocate(HOST_PAGE_BYTES).unwrap();
    let pages: Vec<Buffer> = (0..page_count).map(page).collect();
    pages.into_iter().skip(1).step_by(2).collect()
}

#[cfg(target_os = "linux")]
#[test]
fn mappings_of_four_and_of_eight_allocators_leave_some_for_threads() {
    let name = "host::mappings_of_four_and_of_eight_allocators_leave_some_for_threads";
    in_a_process_of_its_own(name, || {
        let mut memories = Vec::new();
        let mut kept = Vec::new();
        for _ in 0..2 {
            for _ in 0..4 {
                let memory = CachingAllocator::new(HostSource::with_capacity(1 << 30)).unwrap();
                kept.extend(many_views(&memory));
                memories.push(memory);
            }
            let mapping_count = std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
            println!("{mapping_count} mappings of {} allocators", memories.len());
            let threads: Vec<_> = (0..64)
                .map(|_| thread::Builder::new().spawn(thread::park).expect("a thread"))
                .collect();
            for thread in threads {
                thread.thread().unpark();
                thread.join().unwrap();
            }
        }
    });
}

#[cfg(target_os = "linux")]
#[test]
fn source_without_virtual_memory_stitches_nothing_and_takes_no_mappings() {
    let name = "host::source_without_virtual_memory_stitches_nothing_and_takes_no_mappings";
    in_a_process_of_its_own(name, || {
        let make = || HostSource::with_capacity(1 << 30);
        let plain: Vec<CachingAllocator> = (0..100)
            .map(|_| CachingAllocator::new(make().without_virtual_memory()).unwrap())
            .collect();
        let _kept = with_holes(&plain[0], 8);
        assert!(!plain[0].allocate(2 * HOST_PAGE_BYTES).unwrap().is_stitched());
        assert!(plain.iter().all(|memory| memory.mappings_max() == 0));
        assert!(CachingAllocator::new(make()).unwrap().mappings_max() > 0);
    });
}

/// Stitches blocks whose views exceed the mappings of an allocator.
fn many_views(memory: &CachingAllocator) -> Vec<Buffer> {
    let mut kept = with_holes(memory, 260);
    // Each round has other holes, so that no view is found again.
    for _ in 0..3 {
        for page_count in 2..126 {
            drop(memory.allocate(page_count * HOST_PAGE_BYTES).unwrap());
        }
        kept.push(memory.allocate(HOST_PAGE_BYTES).unwrap());
    }
    assert!(memory.statistics().stitches > 0);
    kept
}

#[test]
fn simulation_knows_how_many_mappings_its_allocator_has() {
    let name = "host::simulation_knows_how_many_mappings_its_allocator_has";
    in_a_process_of_its_own(name, || {
        // Later allocators have few mappings, the last ones perhaps none.
        let mut stitches = Vec::new();
        let mut memories = Vec::new();
        for index in 0..48 {
            let memory = CachingAllocator::new(HostSource::with_capacity(1 << 30)).unwrap();
            memories.push(memory.clone());
            if index % 8 != 1 && index != 47 {
                continue;
            }
            let _kept = with_holes(&memory, 1202);
            let simulation = memory.simulate();
            let places = [&memory, simulation.allocator()].map(|memory| {
                let blocks: Vec<Buffer> =
                    (0..6).map(|_| memory.allocate(100 * HOST_PAGE_BYTES).unwrap()).collect();
                let place = |block: &Buffer| (block.offset(), block.is_stitched());
                blocks.iter().map(place).collect::<Vec<_>>()
            });
            assert_eq!(places[0], places[1], "allocator {index}");
            stitches.push(places[0].iter().filter(|place| place.1).count());
        }
        println!("stitched blocks of six: {stitches:?}");
    });
}

#[test]
fn simulation_of_another_allocator_stitches_with_as_few_mappings() {
    // Few mappings, as for the second host allocator of a process, which has a small share.
    const COUNT: usize = 64;
    let memory =
        CachingAllocator::new(SimSource::with_capacity(1 << 30).mappings_max(COUNT)).unwrap();
    assert_eq!(memory.mappings_max(), COUNT);
    assert_eq!(memory.simulate().allocator().mappings_max(), COUNT);
}
