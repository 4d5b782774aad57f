//! Models of threads that share an allocator, run by `cargo xtask test allocator --deep`.
//!
//! A lock that is taken twice or in two orders shows as a deadlock, a block that two threads have
//! as a failed assertion.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::caching::CachingAllocator;
use crate::caching::buffer::Buffer;
use crate::category::Category;
use crate::lock::sync::{Mutex, thread};
use crate::source::sim::SimSource;
use crate::source::sim_streams::SimStreams;
use crate::source::{MemorySource, PageRange, Segment, SourceError, VirtualMemory};
use crate::stream::Stream;

const PAGE_BYTES: usize = 4096;

/// A simulated source that counts the segments that came back. The counter is not loom's, so that
/// threads do not switch there.
struct Counted {
    inner: SimSource,
    released: Arc<AtomicUsize>,
}

impl MemorySource for Counted {
    fn capacity_bytes(&self) -> usize {
        self.inner.capacity_bytes()
    }

    fn page_bytes(&self) -> usize {
        MemorySource::page_bytes(&self.inner)
    }

    fn reserve(&self, size_bytes: usize) -> Result<Segment, SourceError> {
        self.inner.reserve(size_bytes)
    }

    fn release(&self, _: &Segment) {
        self.released.fetch_add(1, Ordering::Relaxed);
    }

    fn commit(&self, segment: &Segment, pages: &PageRange) -> Result<(), SourceError> {
        self.inner.commit(segment, pages)
    }

    fn decommit(&self, segment: &Segment, pages: &PageRange) {
        self.inner.decommit(segment, pages);
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.inner.virtual_memory()
    }
}

fn source(page_count: usize) -> SimSource {
    SimSource::with_capacity(page_count * PAGE_BYTES).page_bytes(PAGE_BYTES)
}

fn allocator(page_count: usize) -> CachingAllocator {
    CachingAllocator::new(source(page_count)).expect("address ranges")
}

#[test]
fn last_handle_of_any_thread_releases_the_source() {
    loom::model(|| {
        let released = Arc::<AtomicUsize>::default();
        let source = Counted { inner: source(4), released: Arc::clone(&released) };
        let memory = CachingAllocator::new(source).expect("address ranges");
        let other = memory.clone();
        let one = thread::spawn(move || {
            let block = other.allocate(100).expect("room for both");
            drop(other);
            block.offset()
        });
        let block = memory.allocate(100).expect("room for both");
        drop(memory);
        drop(block);
        let offset = one.join().expect("the other thread ends");
        assert!(offset == 0 || offset == 512);
        assert_eq!(released.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn blocks_of_two_threads_are_disjoint() {
    loom::model(|| {
        let memory = allocator(4);
        let other = memory.clone();
        let one = thread::spawn(move || other.allocate(512).expect("room for both"));
        let block = memory.allocate(512).expect("room for both");
        let theirs = one.join().expect("the other thread ends");
        assert_eq!(block.offset() + theirs.offset(), 512);
        memory.check_invariants();
    });
}

#[test]
fn block_may_be_freed_while_another_thread_allocates() {
    loom::model(|| {
        let memory = allocator(1);
        let block = memory.allocate(PAGE_BYTES).expect("room for it");
        let one = thread::spawn(move || drop(block));
        // Memory may be short or not: the order of the threads decides.
        let offset = memory.allocate(PAGE_BYTES).ok().map(|block| block.offset());
        assert!(matches!(offset, None | Some(0)));
        one.join().expect("the other thread ends");
        memory.check_invariants();
        assert_eq!(memory.statistics().allocated.current_bytes, 0);
        memory.allocate(PAGE_BYTES).expect("all is free");
    });
}

#[test]
fn reclaimer_may_come_and_go_while_memory_is_short() {
    loom::model(|| {
        let memory = allocator(1);
        let hoard = Mutex::new(memory.allocate(PAGE_BYTES).ok());
        let other = memory.clone();
        let one = thread::spawn(move || {
            let give = move |_: usize| {
                let block: Option<Buffer> = hoard.lock().expect("nobody panics").take();
                block.map_or(0, |block| block.size_bytes())
            };
            drop(other.on_shortage(0, give));
        });
        // Either the reclaimer is asked in time, or its hoard goes with the registration.
        drop(memory.allocate(PAGE_BYTES));
        one.join().expect("the other thread ends");
        memory.allocate(PAGE_BYTES).expect("the hoard is gone");
        memory.check_invariants();
    });
}

#[test]
fn threads_that_are_short_at_once_ask_each_for_itself() {
    loom::model(|| {
        let memory = allocator(1);
        let asked = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&asked);
        let registration = memory.on_shortage(0, move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            0
        });
        let other = memory.clone();
        let one = thread::spawn(move || other.allocate(2 * PAGE_BYTES).is_err());
        assert!(memory.allocate(2 * PAGE_BYTES).is_err());
        assert!(one.join().expect("the other thread ends"));
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        drop(registration);
    });
}

#[test]
fn launch_and_allocation_both_end() {
    loom::model(|| {
        let streams = SimStreams::new();
        let source = source(8).streams(&streams);
        let memory = CachingAllocator::new(source).expect("address ranges");
        let low = memory.allocate(PAGE_BYTES).expect("room for all");
        let used = memory.allocate(512).expect("room for all");
        used.record_use(Stream::new(1).expect("a stream"));
        let wall = memory.allocate(512).expect("room for all");
        drop((low, used));
        let stitched = memory.allocate(2 * PAGE_BYTES).expect("room for all");
        assert!(stitched.is_stitched());
        let other = streams.clone();
        let one = thread::spawn(move || other.launch(Stream::DEFAULT, &[&stitched]));
        let stream = Stream::new(2).expect("a stream");
        let block = memory.allocate_on(stream, Category::Other, 512).expect("room for all");
        one.join().expect("the other thread ends").expect("the block was never used before");
        drop((wall, block));
    });
}
