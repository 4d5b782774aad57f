//! Heap bytes of the allocator itself. The tests have a binary of their own, because its global
//! allocator counts.

#[expect(dead_code, reason = "some of what the tests of readers need")]
mod counting;

use lowtide_allocator::{
    CachingAllocator, Category, HISTORY_BYTES, ModulePath, Origin, PinnedCache, Record, SimSource,
    SimStreams, Stream,
};

use crate::counting::live_bytes;

const PAGE_BYTES: usize = 4096;

/// A step of a training, with all guards open that a step has.
fn step(memory: &CachingAllocator, pinned: &PinnedCache) {
    let stream = Stream::new(1).unwrap();
    let watch = memory.watch("step");
    let own = memory.own_blocks();
    let origin = Origin { module: Some(ModulePath::new("blocks.3")), site: None }.enter();
    let scope = memory.category(Category::Activation);
    let asked = memory.on_shortage(0, |_: usize| 0);
    let mut charge = memory.charge(Category::Workspace, PAGE_BYTES).unwrap();
    charge.raise_to(2 * PAGE_BYTES).unwrap();
    let row = [(); 4].map(|()| {
        [2 * PAGE_BYTES - 512, 512].map(|size_bytes| memory.allocate(size_bytes).unwrap())
    });
    let walls = row.map(|[_, wall]| wall);
    let stitched = memory.allocate(2 * PAGE_BYTES).unwrap();
    stitched.record_use(stream);
    assert!(stitched.is_stitched());
    assert!(memory.allocate(1 << 40).is_err(), "reclaimers are asked");
    drop(pinned.allocate(stream, PAGE_BYTES).unwrap());
    drop((memory.simulate(), memory.capture(), memory.seal()));
    assert_eq!(own.live().len(), 5);
    drop((walls, stitched, charge, asked, scope, origin, own));
    assert!(watch.finish().left_over.is_empty());
}

#[test]
fn steps_that_repeat_take_no_more_of_the_heap() {
    let streams = SimStreams::new();
    let source = || SimSource::with_capacity(64 * PAGE_BYTES).page_bytes(PAGE_BYTES);
    let memory = CachingAllocator::new(source().streams(&streams)).unwrap();
    let pinned = PinnedCache::new(source().without_virtual_memory(), streams).unwrap();
    // The ring of the history no longer grows once it is full.
    let record_count = (HISTORY_BYTES / size_of::<Record>()) as u64;
    for memory in [&memory, pinned.allocator()] {
        while memory.event_count() < record_count {
            drop(memory.allocate(512).unwrap());
        }
    }
    let run = |count: usize| {
        (0..count).for_each(|_| step(&memory, &pinned));
        live_bytes()
    };
    // Vectors grow until they hold a step, and the moments of the history.
    let after_few = run(200);
    assert_eq!(run(200), after_few, "bytes of the heap after 200 steps and after 400");
}
