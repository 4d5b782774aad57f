use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lowtide_allocator::{
    Adaptor, Buffer, CachingAllocator, HostSource, MemorySource, PageRange, Segment, SimSource,
    SourceCall, SourceError, Upstream, VirtualMemory,
};

use crate::common::in_a_process_of_its_own;

const PAGE_BYTES: usize = 64 << 10;

/// Allocates four pages and frees two that lie apart, so that a block of two pages is stitched.
fn apart(memory: &CachingAllocator) -> Vec<Buffer> {
    let mut pages: Vec<Buffer> = (0..4).map(|_| memory.allocate(PAGE_BYTES).unwrap()).collect();
    pages.remove(2);
    pages.remove(0);
    pages
}

/// An adaptor that omits the calls that map pages, but reports success.
struct Silent(HostSource);

impl Adaptor for Silent {
    type Inner = HostSource;

    fn inner(&self) -> &HostSource {
        &self.0
    }

    fn attempt(&self, call: SourceCall, upstream: &mut Upstream<'_>) -> Result<(), SourceError> {
        if matches!(call, SourceCall::Map { .. }) { Ok(()) } else { upstream() }
    }
}

#[test]
fn adaptor_that_maps_nothing_gives_no_block() {
    in_a_process_of_its_own("trust::adaptor_that_maps_nothing_gives_no_block", || {
        let source = Silent(HostSource::with_capacity(4 * PAGE_BYTES));
        let memory = CachingAllocator::new(source).unwrap();
        let _kept = apart(&memory);
        let block = catch_unwind(AssertUnwindSafe(|| memory.allocate(2 * PAGE_BYTES).unwrap()));
        if let Ok(block) = block {
            panic!("the block reads {}", block.as_slice().unwrap()[0]);
        }
        memory.check_invariants();
    });
}

#[test]
fn call_that_succeeded_is_not_made_again() {
    struct Twice(SimSource);
    impl Adaptor for Twice {
        type Inner = SimSource;

        fn inner(&self) -> &SimSource {
            &self.0
        }

        fn attempt(&self, _: SourceCall, upstream: &mut Upstream<'_>) -> Result<(), SourceError> {
            upstream()?;
            upstream()
        }
    }
    let source = Twice(SimSource::with_capacity(4 * PAGE_BYTES));
    assert!(catch_unwind(AssertUnwindSafe(|| source.reserve(PAGE_BYTES))).is_err());
}

/// A hand-written source over the host's, with one lie.
struct Liar {
    inner: HostSource,
    other: SimSource,
    lie: Lie,
    was_asked: AtomicBool,
}

#[derive(Clone, Copy, PartialEq)]
enum Lie {
    /// The memory is a range of views.
    ViewsAreMemory,
    /// Once the views are reserved, another source has to map.
    OtherMaps,
    /// The pages are smaller than the host's.
    SmallPages,
}

impl Liar {
    fn new(lie: Lie) -> Arc<Liar> {
        let inner = HostSource::with_capacity(4 * PAGE_BYTES);
        let other = SimSource::with_capacity(4 * PAGE_BYTES);
        Arc::new(Liar { inner, other, lie, was_asked: AtomicBool::new(false) })
    }
}

impl MemorySource for Liar {
    fn capacity_bytes(&self) -> usize {
        self.inner.capacity_bytes()
    }

    fn page_bytes(&self) -> usize {
        if self.lie == Lie::SmallPages { 512 } else { self.inner.page_bytes() }
    }

    fn reserve(&self, size_bytes: usize) -> Result<Segment, SourceError> {
        match self.inner.virtual_memory() {
            Some(pages) if self.lie == Lie::ViewsAreMemory => pages.reserve_views(size_bytes),
            _ => self.inner.reserve(size_bytes),
        }
    }

    fn release(&self, _: &Segment) {}

    fn commit(&self, _: &Segment, _: &PageRange) -> Result<(), SourceError> {
        Ok(())
    }

    fn decommit(&self, segment: &Segment, pages: &PageRange) {
        self.inner.decommit(segment, pages);
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        match self.lie {
            Lie::ViewsAreMemory => None,
            Lie::OtherMaps if self.was_asked.load(Ordering::Relaxed) => Some(&self.other),
            _ => self.inner.virtual_memory(),
        }
    }
}

#[test]
fn range_of_views_is_no_memory() {
    in_a_process_of_its_own("trust::range_of_views_is_no_memory", || {
        if HostSource::with_capacity(PAGE_BYTES).virtual_memory().is_none() {
            return println!("skipped: a range of views as memory: the host maps no page twice");
        }
        let made = catch_unwind(|| CachingAllocator::new(Liar::new(Lie::ViewsAreMemory)).unwrap());
        if let Ok(memory) = made {
            panic!("it reads {}", memory.allocate(1).unwrap().as_slice().unwrap()[0]);
        }
    });
}

#[test]
fn source_maps_only_into_a_range_that_it_can_map_into() {
    in_a_process_of_its_own("trust::source_maps_only_into_a_range_that_it_can_map_into", || {
        let source = Liar::new(Lie::OtherMaps);
        let memory = CachingAllocator::new(Arc::clone(&source)).unwrap();
        let _kept = apart(&memory);
        source.was_asked.store(true, Ordering::Relaxed);
        let block = catch_unwind(AssertUnwindSafe(|| memory.allocate(2 * PAGE_BYTES).unwrap()));
        if let Ok(block) = block {
            panic!("the block reads {}", block.as_slice().unwrap()[0]);
        }
        memory.check_invariants();
    });
}

#[test]
fn parts_of_pages_are_not_taken_away() {
    let memory = CachingAllocator::new(Liar::new(Lie::SmallPages)).unwrap();
    let _low = memory.allocate(4096).unwrap();
    let part = memory.allocate(512).unwrap();
    let mut rest = memory.allocate(4096 - 512).unwrap();
    rest.as_mut_slice().unwrap().fill(7);
    drop(part);
    assert!(catch_unwind(AssertUnwindSafe(|| memory.trim())).is_err(), "the host asserts it");
    assert!(rest.as_slice().unwrap().iter().all(|&byte| byte == 7), "another block's bytes");
}

/// A source whose segments have the address of another segment.
struct Forger {
    inner: HostSource,
    other: Segment,
}

impl MemorySource for Forger {
    fn capacity_bytes(&self) -> usize {
        self.inner.capacity_bytes()
    }

    fn page_bytes(&self) -> usize {
        self.inner.page_bytes()
    }

    fn reserve(&self, size_bytes: usize) -> Result<Segment, SourceError> {
        Ok(Segment::opaque(self.other.address(), size_bytes))
    }

    fn release(&self, _: &Segment) {}

    fn commit(&self, _: &Segment, _: &PageRange) -> Result<(), SourceError> {
        Ok(())
    }

    fn decommit(&self, _: &Segment, pages: &PageRange) {
        self.inner.decommit(&self.other, pages);
    }
}

#[test]
fn segment_with_the_address_of_another_is_another() {
    let inner = HostSource::with_capacity(1 << 20);
    let other = inner.reserve(1 << 20).unwrap();
    let memory = CachingAllocator::new(Forger { inner, other }).unwrap();
    drop(memory.allocate(1).unwrap());
    assert!(catch_unwind(AssertUnwindSafe(|| memory.trim())).is_err(), "the host asserts it");
}
