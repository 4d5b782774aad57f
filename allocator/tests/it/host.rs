use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use lowtide_allocator::{
    Buffer, CachingAllocator, Category, HostSource, MemorySource, Segment, SimSource, SourceError,
};

#[test]
fn new_memory_is_zero_and_aligned() {
    let memory = CachingAllocator::new(HostSource::with_capacity(1 << 20)).unwrap();
    for category in Category::ALL {
        let mut buffer = memory.allocate_in(category, 70_001).unwrap();
        assert_eq!(buffer.address() % 512, 0);
        assert_eq!(buffer.as_ptr().unwrap().as_ptr() as u64, buffer.address());
        assert_eq!(buffer.as_slice().unwrap().len(), 70_001);
        if category == Category::Parameter || category == Category::Gradient {
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
        // Half of the blocks are freed by another thread.
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

/// An adaptor that takes a range away whenever it is asked for pages.
struct Meddling {
    inner: HostSource,
    page_bytes: usize,
    range_bytes: (usize, usize),
}

impl MemorySource for Meddling {
    fn capacity_bytes(&self) -> usize {
        self.inner.capacity_bytes()
    }

    fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    fn reserve(&self, size_bytes: usize) -> Result<Segment, SourceError> {
        self.inner.reserve(size_bytes)
    }

    fn release(&self, segment: &Segment) {
        self.inner.release(segment);
    }

    fn commit(&self, segment: &Segment, offset_bytes: usize, _: usize) -> Result<(), SourceError> {
        if offset_bytes > 0 {
            self.inner.decommit(segment, self.range_bytes.0, self.range_bytes.1);
        }
        Ok(())
    }

    fn decommit(&self, segment: &Segment, offset_bytes: usize, size_bytes: usize) {
        self.inner.decommit(segment, offset_bytes, size_bytes);
    }
}

#[test]
fn pages_in_use_cannot_be_taken_away() {
    const HOST_PAGE: usize = 64 << 10;
    // A page in use; a range that starts in the middle of one; a range beyond the segment.
    let ranges = [(0, HOST_PAGE), (512, HOST_PAGE), (HOST_PAGE, 1 << 60)];
    for (page_bytes, range_bytes) in [HOST_PAGE, 512, HOST_PAGE].into_iter().zip(ranges) {
        let inner = HostSource::with_capacity(1 << 20);
        let memory = CachingAllocator::new(Meddling { inner, page_bytes, range_bytes }).unwrap();
        let mut first = memory.allocate(page_bytes).unwrap();
        first.as_mut_slice().unwrap().fill(9);
        let second = catch_unwind(AssertUnwindSafe(|| memory.allocate(page_bytes)));
        assert!(second.is_err(), "the host source asserts {range_bytes:?}");
        assert!(first.as_slice().unwrap().iter().all(|&byte| byte == 9));
        memory.check_invariants();
    }
}
