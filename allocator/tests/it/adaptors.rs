use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::thread;

use lowtide_allocator::{
    Adaptor, AllocError, Arenas, Buffer, CachingAllocator, Category, CoTenantSource, Fault,
    FaultSource, HostSource, LimitSource, MemorySource, OnFailure, RecordingSource, Repeat,
    RetrySource, SimSource, SimStreams, SourceCall, SourceError, Stream, Tenancy,
};

use crate::common::{Op, PAGE_BYTES, PLENTY, World, fixed_program};

fn sim() -> SimSource {
    SimSource::with_capacity(PLENTY).page_bytes(PAGE_BYTES)
}

/// An adaptor that adds nothing.
struct Plain<S>(S);

impl<S: MemorySource> Adaptor for Plain<S> {
    type Inner = S;

    fn inner(&self) -> &S {
        &self.0
    }
}

/// Checks every law that holds for every source. `make` makes sources with `PLENTY` of memory over
/// a device with these streams.
fn check_source<S: MemorySource + Clone + 'static>(make: impl Fn(&SimStreams) -> S) {
    check_same_program_same_offsets(&make);
    check_every_byte_comes_back(&make);
    check_streams_are_kept_in_order(&make);
    check_holes_are_stitched(&make);
    check_any_call_may_fail(&make);
}

fn check_same_program_same_offsets<S: MemorySource + 'static>(make: &impl Fn(&SimStreams) -> S) {
    let source = make(&SimStreams::new());
    let mut plain = SimSource::with_capacity(PLENTY).page_bytes(source.page_bytes());
    if source.virtual_memory().is_none() {
        plain = plain.without_virtual_memory();
    }
    let mut plain = World::new(plain);
    let mut world = World::new(source);
    let program: Vec<Op> = (0..4).flat_map(|_| fixed_program()).collect();
    assert_eq!(world.run(&program).unwrap(), plain.run(&program).unwrap());
    let [ours, plains] = [&world, &plain].map(|world| world.memory.statistics());
    assert_eq!((ours.allocated, ours.reserved), (plains.allocated, plains.reserved));
}

/// Checks the calls that reach the device: commits and decommits match, and segments are released
/// once.
fn check_every_byte_comes_back<S: MemorySource + Clone + 'static>(
    make: &impl Fn(&SimStreams) -> S,
) {
    let log = RecordingSource::new(make(&SimStreams::new()));
    let mut world = World::new(log.clone());
    world.run(&fixed_program()).unwrap();
    let live_bytes = world.memory.statistics().reserved.current_bytes;
    drop(world);
    let (mut committed, mut reserved) = (0_usize, 0_i32);
    for record in log.take() {
        assert_eq!(record.outcome, Ok(()));
        match record.call {
            SourceCall::Commit { size_bytes, .. } => committed += size_bytes,
            SourceCall::Decommit { size_bytes, .. } => committed -= size_bytes,
            SourceCall::Reserve { .. } | SourceCall::ReserveViews { .. } => reserved += 1,
            SourceCall::Release { .. } => reserved -= 1,
            _ => {}
        }
    }
    assert_eq!(reserved, 0, "segments");
    assert!(committed > 0 && committed <= live_bytes, "{committed} of {live_bytes}");

    let memory = CachingAllocator::new(log.clone()).unwrap();
    drop(memory.allocate(100 * PAGE_BYTES).unwrap());
    let reserved_bytes = memory.statistics().reserved.current_bytes;
    assert_eq!(memory.trim(), reserved_bytes);
    assert_eq!(memory.statistics().reserved.current_bytes, 0);
}

/// Checks that reuse across streams waits. The simulated device proves it, if it has streams.
fn check_streams_are_kept_in_order<S: MemorySource + 'static>(make: &impl Fn(&SimStreams) -> S) {
    let streams = SimStreams::new();
    let source = make(&streams);
    let has_fence = source.fence().is_some();
    let memory = CachingAllocator::new(source).unwrap();
    let (one, two) = (Stream::new(1).unwrap(), Stream::new(2).unwrap());
    let first = memory.allocate_on(one, Category::Other, 1000).unwrap();
    let _above = memory.allocate(1).unwrap();
    streams.launch(one, &[&first]).unwrap();
    let offset = first.offset();
    drop(first);
    let second = memory.allocate_on(two, Category::Other, 1000).unwrap();
    assert_eq!(second.offset(), offset);
    assert_eq!(memory.statistics().waits, u64::from(has_fence));
    assert_eq!(streams.launch(two, &[&second]).is_ok(), has_fence);
}

fn check_holes_are_stitched<S: MemorySource + 'static>(make: &impl Fn(&SimStreams) -> S) {
    let source = make(&SimStreams::new());
    let (page_bytes, maps) = (source.page_bytes(), source.virtual_memory().is_some());
    let memory = CachingAllocator::new(source).unwrap();
    let mut blocks: Vec<Buffer> = (0..8).map(|_| memory.allocate(page_bytes).unwrap()).collect();
    blocks.truncate(7);
    let reserved_bytes = memory.statistics().reserved.current_bytes;
    let mut index = 0;
    blocks.retain(|_| {
        index += 1;
        index % 2 == 1
    });
    let mut large = memory.allocate(3 * page_bytes).unwrap();
    assert_eq!(large.is_stitched(), maps);
    if let Some(bytes) = large.as_mut_slice() {
        bytes.fill(9);
    }
    let still_bytes = memory.statistics().reserved.current_bytes;
    assert_eq!(still_bytes, reserved_bytes, "free pages pay for it, where they are or elsewhere");
    drop((blocks, large));
    memory.trim();
    memory.check_invariants();
}

/// Makes each call below the source fail once: the request may fail, nothing else may.
fn check_any_call_may_fail<S: MemorySource + Clone + 'static>(make: &impl Fn(&SimStreams) -> S) {
    let clean = FaultSource::new(make(&SimStreams::new()));
    World::new(clean.clone()).run(&fixed_program()).unwrap();
    assert!(clean.call_count() > 2, "more than the reservations");
    for nth in 1..=clean.call_count() {
        let faulty = FaultSource::new(make(&SimStreams::new()));
        faulty.inject(Fault { nth, repeat: Repeat::Once });
        let Ok(memory) = CachingAllocator::new(faulty.clone()) else {
            assert!(nth <= 2, "only reservations fail it, not call {nth}");
            continue;
        };
        let mut world = World::of(memory);
        for op in fixed_program() {
            let _ = world.step(op);
            world.memory.check_invariants();
        }
        world.memory.allocate(1 << 20).unwrap();
    }
}

#[test]
fn every_source_and_every_adaptor_keeps_the_laws() {
    check_source(|_| Arc::new(sim()));
    check_source(|streams| Arc::new(sim().streams(streams)));
    check_source(|_| Arc::new(sim().without_virtual_memory()));
    check_source(|_| HostSource::with_capacity(1 << 30));
    check_source(|streams| Arc::new(sim().streams(streams)) as Arc<dyn MemorySource>);
    check_source(|streams| Arc::new(Plain(sim().streams(streams))));
    check_source(|streams| FaultSource::new(sim().streams(streams)));
    check_source(|streams| LimitSource::new(sim().streams(streams), PLENTY));
    check_source(|streams| RecordingSource::new(sim().streams(streams)));
    check_source(|streams| {
        Arc::new(RetrySource::new(sim().streams(streams), 3, |_| OnFailure::Retry))
    });
    check_source(|streams| Arc::new(CoTenantSource::new(sim().streams(streams), [])));
    check_source(|streams| {
        let limited = LimitSource::new(Plain(sim().streams(streams)), PLENTY);
        RecordingSource::new(FaultSource::new(CoTenantSource::new(limited, [])))
    });
}

#[test]
fn limit_is_the_capacity_and_the_smaller_one_counts() {
    let source = LimitSource::new(sim(), 10 * PAGE_BYTES);
    assert_eq!(source.capacity_bytes(), 10 * PAGE_BYTES);
    assert_eq!(LimitSource::new(sim(), usize::MAX).capacity_bytes(), PLENTY);
    let memory = CachingAllocator::new(source.clone()).unwrap();
    let block = memory.allocate(10 * PAGE_BYTES).unwrap();
    assert_eq!((source.used_bytes(), source.left_bytes()), (10 * PAGE_BYTES, 0));
    assert_eq!(memory.allocate(1).unwrap_err().out_of_memory().unwrap().missing_bytes, PAGE_BYTES);
    drop(block);
    memory.trim();
    assert_eq!(source.used_bytes(), 0);
}

#[test]
fn released_segments_give_their_budget_back() {
    let source = LimitSource::new(sim(), 10 * PAGE_BYTES);
    let memory = CachingAllocator::new(source.clone()).unwrap();
    drop(memory.allocate(4 * PAGE_BYTES).unwrap());
    assert_eq!(source.used_bytes(), 4 * PAGE_BYTES, "cached");
    drop(memory);
    assert_eq!(source.used_bytes(), 0);
}

#[test]
fn commit_that_fails_below_takes_nothing_from_the_budget() {
    let faulty = FaultSource::new(sim());
    let source = LimitSource::new(faulty.clone(), 10 * PAGE_BYTES);
    let memory = CachingAllocator::new(source.clone()).unwrap();
    faulty.inject(Fault { nth: 1, repeat: Repeat::Forever });
    assert!(memory.allocate(PAGE_BYTES).unwrap_err().out_of_memory().is_some());
    assert_eq!(source.used_bytes(), 0);
    faulty.clear();
    memory.allocate(10 * PAGE_BYTES).unwrap();
}

#[test]
fn arena_that_is_short_trims_the_others_and_no_more_than_needed() {
    // One page is left, which is not enough. With the pages of the first arena there is room for
    // four, and for the two pages at the ends that a block may share.
    let arenas = Arenas::new(sim(), 18 * PAGE_BYTES);
    let [first, second, third] = [(); 3].map(|()| arenas.open().unwrap());
    drop(first.allocate(5 * PAGE_BYTES).unwrap());
    drop(second.allocate(8 * PAGE_BYTES).unwrap());
    let kept = third.allocate(4 * PAGE_BYTES).unwrap();
    assert_eq!(arenas.used_bytes(), 17 * PAGE_BYTES);
    let _more = third.allocate(4 * PAGE_BYTES).unwrap();
    assert_eq!(first.statistics().reserved.current_bytes, 0);
    assert_eq!(second.statistics().reserved.current_bytes, 8 * PAGE_BYTES, "enough by then");
    let error = first.allocate(16 * PAGE_BYTES).unwrap_err();
    assert!(error.out_of_memory().is_some(), "what is live stays: {error}");
    drop(kept);
    for arena in [first, second, third] {
        arena.check_invariants();
    }
}

#[test]
fn arena_that_lacks_a_part_of_a_page_trims_the_others() {
    // Half a page is left: more than the request, and less than a page.
    let arenas = Arenas::new(sim(), 8 * PAGE_BYTES + PAGE_BYTES / 2);
    let [first, second] = [(); 2].map(|()| arenas.open().unwrap());
    drop(first.allocate(8 * PAGE_BYTES).unwrap());
    assert!(second.allocate(PAGE_BYTES / 4).is_ok());
    assert_eq!(first.statistics().reserved.current_bytes, 0);
}

#[test]
fn arena_of_a_stream_is_opened_once_and_nobody_waits_in_it() {
    let streams = SimStreams::new();
    let arenas = Arenas::new(sim().streams(&streams), 8 * PAGE_BYTES);
    for round in 0..3 {
        for index in 0..3 {
            let stream = Stream::new(index).unwrap();
            let memory = arenas.on(stream).unwrap();
            assert_eq!(memory.stream(), stream);
            let block = memory.allocate(PAGE_BYTES + 1).unwrap();
            assert_eq!(memory.live_blocks()[0].stream, stream);
            streams.launch(stream, &[&block]).unwrap();
            drop(block);
            assert_eq!(memory.statistics().allocations, round + 1, "the arena is the same one");
            assert_eq!(memory.statistics().waits, 0);
            assert_eq!(memory.simulate().allocator().stream(), stream);
        }
    }
    assert_eq!(arenas.used_bytes(), 6 * PAGE_BYTES, "each keeps its cache");
    let large = arenas.on(Stream::DEFAULT).unwrap().allocate(8 * PAGE_BYTES).unwrap();
    assert_eq!(arenas.used_bytes(), 8 * PAGE_BYTES, "until another one is short");
    drop(large);
}

#[test]
fn peak_of_arenas_is_that_of_their_sum() {
    let arenas = Arenas::new(sim(), 21 * PAGE_BYTES);
    let [first, second] = [(); 2].map(|()| arenas.open().unwrap());
    drop(first.allocate(8 * PAGE_BYTES).unwrap());
    first.trim();
    let _kept = second.allocate(5 * PAGE_BYTES).unwrap();
    assert_eq!((arenas.used_bytes(), arenas.used_bytes_peak()), (5 * PAGE_BYTES, 8 * PAGE_BYTES));
    let _more = first.allocate(4 * PAGE_BYTES).unwrap();
    assert_eq!((arenas.used_bytes(), arenas.used_bytes_peak()), (9 * PAGE_BYTES, 9 * PAGE_BYTES));
    assert!(first.allocate(13 * PAGE_BYTES).is_err());
    assert_eq!(arenas.used_bytes_peak(), 9 * PAGE_BYTES, "a refused commit was never there");
}

#[test]
fn commit_that_the_source_refuses_is_in_no_peak() {
    let faulty = FaultSource::new(sim());
    let arenas = Arenas::new(faulty.clone(), 21 * PAGE_BYTES);
    let memory = arenas.open().unwrap();
    let kept = memory.allocate(3 * PAGE_BYTES).unwrap();
    faulty.inject(Fault { nth: 1, repeat: Repeat::Forever });
    assert!(memory.allocate(9 * PAGE_BYTES).is_err());
    assert_eq!((arenas.used_bytes(), arenas.used_bytes_peak()), (3 * PAGE_BYTES, 3 * PAGE_BYTES));
    faulty.clear();
    let more = memory.allocate(4 * PAGE_BYTES).unwrap();
    assert_eq!(arenas.used_bytes_peak(), 7 * PAGE_BYTES);
    drop((kept, more));
    memory.trim();
    assert_eq!((arenas.used_bytes(), arenas.used_bytes_peak()), (0, 7 * PAGE_BYTES));
}

#[test]
fn dropped_arena_returns_its_memory() {
    let arenas = Arenas::new(sim(), 4 * PAGE_BYTES);
    let first = arenas.open().unwrap();
    let block = first.allocate(4 * PAGE_BYTES).unwrap();
    drop(first);
    let second = arenas.open().unwrap();
    assert!(second.allocate(1).is_err(), "the block keeps its arena");
    drop(block);
    assert_eq!(arenas.used_bytes(), 0);
    drop(arenas);
    second.allocate(4 * PAGE_BYTES).unwrap();
}

#[test]
fn threads_in_their_arenas_never_exceed_the_common_budget() {
    const LIMIT_BYTES: usize = 64 * PAGE_BYTES;
    /// An adaptor that fails the test if the arenas commit more than their budget.
    struct Watched(SimSource, AtomicUsize);
    impl Adaptor for Watched {
        type Inner = SimSource;

        fn inner(&self) -> &SimSource {
            &self.0
        }

        fn attempt(
            &self,
            call: SourceCall,
            upstream: &mut lowtide_allocator::Upstream<'_>,
        ) -> Result<(), SourceError> {
            if let SourceCall::Commit { size_bytes, .. } = call {
                let before = self.1.fetch_add(size_bytes, Ordering::SeqCst);
                assert!(before + size_bytes <= LIMIT_BYTES, "{before} + {size_bytes}");
            }
            upstream()
        }

        fn give_back(&self, call: SourceCall, upstream: &mut dyn FnMut()) {
            upstream();
            if let SourceCall::Decommit { size_bytes, .. } = call {
                self.1.fetch_sub(size_bytes, Ordering::SeqCst);
            }
        }
    }
    let arenas = Arenas::new(Watched(sim(), AtomicUsize::new(0)), LIMIT_BYTES);
    let served = AtomicUsize::new(0);
    thread::scope(|scope| {
        for tag in 0..4_usize {
            let (arena, served) = (arenas.open().unwrap(), &served);
            scope.spawn(move || {
                let mut held: Vec<Buffer> = Vec::new();
                for round in 0..2_000_usize {
                    let size_bytes = (round * 7919 + tag * 104_729) % (12 * PAGE_BYTES);
                    match arena.allocate(size_bytes) {
                        Ok(block) => held.push(block),
                        Err(AllocError::OutOfMemory(_)) => held.clear(),
                        Err(error) => panic!("{error}"),
                    }
                    served.fetch_add(1, Ordering::Relaxed);
                    if held.len() > 5 {
                        held.swap_remove(round % 5);
                    }
                }
                drop(held);
                arena.check_invariants();
                arena.trim();
            });
        }
    });
    assert_eq!(served.load(Ordering::Relaxed), 8_000);
    assert_eq!(arenas.used_bytes(), 0);
}

#[test]
fn log_has_the_calls_in_order_with_their_ends() {
    let faulty = FaultSource::new(sim());
    let log = RecordingSource::new(faulty.clone());
    let memory = CachingAllocator::new(log.clone()).unwrap();
    let calls: Vec<_> = log.take().into_iter().map(|record| record.call).collect();
    assert!(matches!(
        calls[..],
        [SourceCall::Reserve { size_bytes: PLENTY }, SourceCall::ReserveViews { .. }]
    ));
    faulty.inject(Fault { nth: 1, repeat: Repeat::Once });
    drop(memory.allocate(PAGE_BYTES).unwrap());
    memory.trim();
    let records = log.take();
    let ends: Vec<bool> = records.iter().map(|record| record.outcome.is_ok()).collect();
    assert_eq!(ends, [false, true, true], "{records:?}");
    assert!(matches!(records[1].call, SourceCall::Commit { size_bytes: PAGE_BYTES, .. }));
    assert!(matches!(records[2].call, SourceCall::Decommit { size_bytes: PAGE_BYTES, .. }));
}

#[test]
fn failure_is_tried_again_while_the_callback_says_so() {
    for (allowed, attempts_max, calls) in [(1, 5, 2), (4, 5, 5), (9, 5, 5), (0, 5, 1), (9, 0, 1)] {
        let faulty = FaultSource::new(sim());
        let asked = Arc::new(AtomicU32::new(0));
        let seen = Arc::clone(&asked);
        let source = RetrySource::new(faulty.clone(), attempts_max, move |failure| {
            assert_eq!(failure.error, SourceError::OutOfMemory { size_bytes: PLENTY });
            assert_eq!(failure.attempts, seen.fetch_add(1, Ordering::Relaxed) + 1);
            if failure.attempts <= allowed { OnFailure::Retry } else { OnFailure::GiveUp }
        });
        faulty.inject(Fault { nth: 1, repeat: Repeat::Forever });
        assert!(source.reserve(PLENTY).is_err());
        assert_eq!(faulty.call_count(), calls, "{allowed} of {attempts_max}");
        assert!(asked.load(Ordering::Relaxed) < 5, "the last failure is not asked about");
    }
    let faulty = FaultSource::new(sim());
    faulty.inject(Fault { nth: 3, repeat: Repeat::Once });
    let source = RetrySource::new(faulty.clone(), 2, |_| OnFailure::Retry);
    let memory = CachingAllocator::new(source).unwrap();
    memory.allocate(1).unwrap();
    assert_eq!(memory.statistics().retries, 0, "the allocator saw no failure");
}

#[test]
fn co_tenant_comes_and_goes_by_its_script() {
    let capacity_bytes = 10 * PAGE_BYTES;
    let script = [
        Tenancy { from_call: 5, wanted_bytes: 0 },
        Tenancy { from_call: 4, wanted_bytes: 8 * PAGE_BYTES },
    ];
    let sim =
        SimSource::with_capacity(capacity_bytes).page_bytes(PAGE_BYTES).without_virtual_memory();
    let memory = CachingAllocator::new(CoTenantSource::new(sim, script)).unwrap();
    let first = memory.allocate(2 * PAGE_BYTES).unwrap(); // call 2, after the reservation
    let second = memory.allocate(PAGE_BYTES).unwrap(); // call 3
    // Call 4: the co-tenant wants eight pages and gets the seven that are left. Call 5, after the
    // cache was released: the co-tenant is gone.
    let third = memory.allocate(7 * PAGE_BYTES).unwrap();
    assert_eq!(memory.statistics().retries, 1);
    drop((first, second, third));
}

#[test]
fn cache_makes_up_for_pages_that_a_co_tenant_takes_on_their_way() {
    let sim =
        SimSource::with_capacity(8 * PAGE_BYTES).page_bytes(PAGE_BYTES).without_virtual_memory();
    // Calls: the reservation, four commits, and the commit of the last request.
    let script = [Tenancy { from_call: 6, wanted_bytes: 2 * PAGE_BYTES }];
    let memory = CachingAllocator::new(CoTenantSource::new(sim, script)).unwrap();
    let pages = |count: usize| memory.allocate(count * PAGE_BYTES).unwrap();
    let (low, wall, high, top) = (pages(3), pages(1), pages(3), pages(1));
    drop((low, high));
    // Four of six cached pages go back. The co-tenant takes two of them before they are committed
    // anew, so the other two cached pages go back as well.
    let _block = pages(4);
    assert_eq!(memory.statistics().retries, 1);
    assert_eq!(memory.statistics().reserved.current_bytes, 6 * PAGE_BYTES);
    memory.check_invariants();
    drop((wall, top));
}

#[test]
fn co_tenant_that_stays_leaves_what_was_there() {
    let source = SimSource::with_capacity(10 * PAGE_BYTES).page_bytes(PAGE_BYTES);
    let script = [Tenancy { from_call: 4, wanted_bytes: usize::MAX }];
    let memory = CachingAllocator::new(CoTenantSource::new(source, script)).unwrap();
    let kept = memory.allocate(3 * PAGE_BYTES).unwrap();
    let error = memory.allocate(PAGE_BYTES).unwrap_err();
    let ledger = error.out_of_memory().unwrap();
    assert_eq!(ledger.missing_bytes, 0, "the capacity is not to blame");
    drop(kept);
    memory.trim();
    let _again = memory.allocate(3 * PAGE_BYTES).unwrap();
    assert!(memory.allocate(1).is_err(), "it holds exactly what was left then");
    memory.check_invariants();
}
