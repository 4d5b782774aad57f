use lowtide_allocator::torch::TorchSettings;
use lowtide_allocator::{
    Adaptor, AllocError, CachingAllocator, Category, Fault, FaultSource, MemorySource, PageRange,
    Policy, Repeat, Rung, Segment, SimSource, SimStreams, SourceCall, SourceError, Statistics,
    Stream, Upstream,
};

use crate::common::{PAGE_BYTES, PLENTY, World, fixed_program};

fn source() -> SimSource {
    SimSource::with_capacity(PLENTY).page_bytes(PAGE_BYTES)
}

/// State that a failed request must not change: all bytes in use.
fn in_use(memory: &CachingAllocator) -> (u64, [usize; 3], Vec<usize>, u64) {
    let Statistics { requested, allocated, charged, by_category, allocations, .. } =
        memory.statistics();
    let whole = [requested.current_bytes, allocated.current_bytes, charged.current_bytes];
    let parts = by_category.iter().map(|(_, counter)| counter.current_bytes).collect();
    (memory.layout_hash(), whole, parts, allocations)
}

/// Runs the fixed program, and skips steps that fail. Returns the errors.
fn run_over_failures(world: &mut World) -> Vec<AllocError> {
    let mut errors = Vec::new();
    for op in fixed_program() {
        let before = in_use(&world.memory);
        if let Err(error) = world.step(op) {
            assert_eq!(in_use(&world.memory), before, "{op:?} failed and left something behind");
            errors.push(error);
        }
        world.memory.check_invariants();
    }
    errors
}

fn request_count() -> u64 {
    let mut world = World::sim(PLENTY);
    world.run(&fixed_program()).unwrap();
    world.memory.request_count()
}

#[test]
fn nth_request_fails_once_for_every_n() {
    let count = request_count();
    assert!(count > 10);
    for nth in 1..=count {
        let mut world = World::sim(PLENTY);
        world.memory.inject_fault(Fault { nth, repeat: Repeat::Once });
        let errors = run_over_failures(&mut world);
        assert_eq!(errors.len(), 1, "request {nth}");
        let ledger = errors[0].out_of_memory().unwrap();
        assert!(ledger.injected);
        assert_eq!(ledger.request_index, nth);
        assert_eq!(ledger.missing_bytes, 0);
        assert_eq!(ledger.tried, [Rung::Trim], "an injected failure is not searched for");
        assert_eq!(world.memory.statistics().ooms, 1);
    }
}

#[test]
fn every_request_from_the_nth_on_fails_for_every_n() {
    for nth in 1..=request_count() {
        let mut world = World::sim(PLENTY);
        world.memory.inject_fault(Fault { nth, repeat: Repeat::Forever });
        let errors = run_over_failures(&mut world);
        assert_eq!(world.memory.request_count() - errors.len() as u64, nth - 1);
        assert!(errors.iter().all(|error| error.out_of_memory().unwrap().injected));
        world.memory.clear_fault();
        world.memory.allocate(1).unwrap();
    }
}

#[test]
fn injected_fault_gives_the_cache_back() {
    let memory = World::sim(PLENTY).memory;
    drop(memory.allocate(10 * PAGE_BYTES).unwrap());
    memory.inject_fault(Fault { nth: 1, repeat: Repeat::Once });
    let error = memory.allocate(1).unwrap_err();
    assert_eq!(error.out_of_memory().unwrap().cached_bytes, 0);
    assert_eq!(memory.statistics().reserved.current_bytes, 0);
}

#[test]
fn source_that_fails_once_is_asked_again() {
    let mut clean = World::new(FaultSource::new(source()));
    let offsets = clean.run(&fixed_program()).unwrap();
    let commits = clean.memory.history();
    let commits =
        commits.records().iter().filter(|r| r.action == lowtide_allocator::Action::Commit).count();
    assert!(commits > 3);
    for nth in 1..=commits as u64 {
        let faulty = FaultSource::new(source());
        let mut world = World::new(faulty.clone());
        faulty.inject(Fault { nth, repeat: Repeat::Once });
        assert_eq!(world.run(&fixed_program()).unwrap(), offsets, "commit {nth}");
        assert_eq!(world.memory.statistics().retries, 1);
        assert_eq!(world.memory.statistics().ooms, 0);
    }
}

#[test]
fn source_that_fails_forever_makes_requests_fail_and_nothing_else() {
    let faulty = FaultSource::new(source());
    World::new(faulty.clone()).run(&fixed_program()).unwrap();
    for nth in 1..=faulty.call_count() - 2 {
        let faulty = FaultSource::new(source());
        let mut world = World::new(faulty.clone());
        faulty.inject(Fault { nth, repeat: Repeat::Forever });
        let errors = run_over_failures(&mut world);
        assert!(!errors.is_empty(), "commit {nth}");
        for error in &errors {
            let ledger = error.out_of_memory().expect("the source said out of memory");
            assert!(!ledger.injected);
            assert_eq!(ledger.missing_bytes, 0, "the capacity is not to blame");
        }
        faulty.clear();
        world.memory.allocate(1 << 20).unwrap();
    }
}

#[test]
fn reservation_that_fails_is_an_error_of_the_source() {
    let faulty = FaultSource::new(source());
    faulty.inject(Fault { nth: 1, repeat: Repeat::Once });
    let error = CachingAllocator::new(faulty.clone()).unwrap_err();
    assert!(matches!(error, AllocError::Source(SourceError::OutOfMemory { .. })), "{error}");
    assert!(error.to_string().contains("bytes left"), "the cause is told: {error}");
    assert_eq!(faulty.call_count(), 1);
}

#[test]
fn allocator_without_addresses_for_views_stitches_nothing_and_neither_does_its_simulation() {
    let faulty = FaultSource::new(SimSource::with_capacity(4 * PAGE_BYTES).page_bytes(PAGE_BYTES));
    faulty.inject(Fault { nth: 2, repeat: Repeat::Once });
    let memory = CachingAllocator::new(faulty.clone()).expect("it does without");
    assert_eq!(faulty.call_count(), 2);
    let page = || memory.allocate(PAGE_BYTES).unwrap();
    let (low, _wall) = (page(), page());
    drop(low);
    let simulation = memory.simulate();
    for memory in [&memory, simulation.allocator()] {
        let two = memory.allocate(2 * PAGE_BYTES).unwrap();
        assert!(!two.is_stitched());
        let error = memory.allocate(2 * PAGE_BYTES).unwrap_err();
        assert_eq!(error.out_of_memory().unwrap().tried, [Rung::Search, Rung::Trim]);
    }
}

/// A source that claims to map pages at a second address, but does not.
struct Mapless(SimSource);

impl Adaptor for Mapless {
    type Inner = SimSource;

    fn inner(&self) -> &SimSource {
        &self.0
    }

    fn attempt(&self, call: SourceCall, upstream: &mut Upstream<'_>) -> Result<(), SourceError> {
        let SourceCall::Map { size_bytes, .. } = call else { return upstream() };
        Err(SourceError::System { operation: "map", size_bytes, code: 12 })
    }
}

#[test]
fn request_whose_pages_cannot_be_mapped_goes_to_the_top_while_there_is_room() {
    let source = SimSource::with_capacity(8 * PAGE_BYTES).page_bytes(PAGE_BYTES);
    let memory = CachingAllocator::new(Mapless(source)).unwrap();
    let [low, wall, high, _last] = [(); 4].map(|()| memory.allocate(PAGE_BYTES).unwrap());
    drop((low, high));
    let block = memory.allocate(2 * PAGE_BYTES).unwrap();
    assert!(!block.is_stitched());
    assert_eq!(block.offset(), 4 * PAGE_BYTES);
    assert_eq!(memory.statistics().reserved.current_bytes, 4 * PAGE_BYTES);
    assert_eq!(memory.statistics().stitches, 0);
    memory.check_invariants();
    let before = in_use(&memory);
    let error = memory.allocate(5 * PAGE_BYTES).unwrap_err();
    assert_eq!(error.out_of_memory().unwrap().missing_bytes, PAGE_BYTES);
    assert_eq!(in_use(&memory), before);
    let last = memory.allocate(4 * PAGE_BYTES).unwrap();
    assert_eq!((last.offset(), last.is_stitched()), (6 * PAGE_BYTES, false));
    memory.check_invariants();
    drop(wall);
}

#[test]
fn torch_rules_refuse_pages_that_two_segments_would_share() {
    let source = |page_bytes| SimSource::with_capacity(64 << 20).page_bytes(page_bytes);
    let policy = || Policy::Torch(TorchSettings::default());
    let error = CachingAllocator::with_policy(source(4 << 20), policy()).unwrap_err();
    assert!(matches!(error, AllocError::PageShared { page_bytes } if page_bytes == 4 << 20));
    CachingAllocator::with_policy(source(2 << 20), policy()).unwrap();
    let odd = Policy::Torch(TorchSettings { large_segment_bytes: 21 << 20, ..Default::default() });
    assert!(CachingAllocator::with_policy(source(2 << 20), odd.clone()).is_err());
    CachingAllocator::with_policy(source(1 << 20), odd).unwrap();
    CachingAllocator::new(source(4 << 20)).unwrap();
}

#[test]
fn wait_that_fails_is_out_of_memory_outside_the_allocator_and_no_block() {
    // First in a hole of another stream, then at the top.
    for in_hole in [true, false] {
        let streams = SimStreams::new();
        let faulty = FaultSource::new(source().streams(&streams));
        let memory = CachingAllocator::new(faulty.clone()).unwrap();
        let other = Stream::new(1).unwrap();
        let used = memory.allocate(512).unwrap();
        let _wall = in_hole.then(|| memory.allocate_on(other, Category::Other, 512).unwrap());
        streams.launch(Stream::DEFAULT, &[&used]).unwrap();
        drop(used);
        let before = in_use(&memory);
        faulty.inject(Fault { nth: 1, repeat: Repeat::Once });
        let error = memory.allocate_on(other, Category::Other, 512).unwrap_err();
        let ledger = error.out_of_memory().expect("recoverable");
        assert_eq!(ledger.refused_call, Some("a wait of one stream for another"));
        assert_eq!((ledger.requested_bytes, ledger.missing_bytes), (0, 0));
        assert!(ledger.tried.is_empty(), "{:?}", ledger.tried);
        assert_eq!((in_use(&memory), memory.statistics().waits), (before, 0));
        memory.check_invariants();
        // The failed wait must be made by the next request.
        let block = memory.allocate_on(other, Category::Other, 512).unwrap();
        streams.launch(other, &[&block]).unwrap();
        assert_eq!((block.offset(), memory.statistics().waits), (0, 1));
    }
}

#[test]
fn torch_block_whose_wait_fails_is_never_reused() {
    let streams = SimStreams::new();
    let faulty = FaultSource::new(SimSource::with_capacity(PLENTY).streams(&streams));
    let policy = Policy::Torch(TorchSettings::default());
    let memory = CachingAllocator::with_policy(faulty.clone(), policy).unwrap();
    let other = Stream::new(1).unwrap();
    let used = memory.allocate(512).unwrap();
    used.record_use(other);
    streams.launch(other, &[&used]).unwrap();
    faulty.inject(Fault { nth: 1, repeat: Repeat::Once });
    drop(used);
    assert_eq!(memory.statistics().waits, 0, "the wait failed");
    memory.check_invariants();
    let blocks: Vec<_> = (0..8).map(|_| memory.allocate(512).unwrap()).collect();
    streams.launch(Stream::DEFAULT, &blocks.iter().collect::<Vec<_>>()).unwrap();
    drop(blocks);
    memory.trim();
    let block = memory.allocate(512).unwrap();
    streams.launch(Stream::DEFAULT, &[&block]).unwrap();
    memory.check_invariants();
}

#[test]
fn torch_ledger_tells_what_is_missing_and_what_is_free() {
    let mib = |count: usize| count << 20;
    let source = SimSource::with_capacity(mib(50)).page_bytes(mib(2));
    let policy = Policy::Torch(TorchSettings::default());
    let memory = CachingAllocator::with_policy(source, policy).unwrap();
    let _charge = memory.charge(Category::Workspace, mib(3)).unwrap();
    let _block = memory.allocate(mib(12)).unwrap();
    for size_bytes in [mib(36), mib(40), usize::MAX / 2] {
        let error = memory.allocate(size_bytes).unwrap_err();
        let ledger = error.out_of_memory().unwrap();
        memory.allocate(ledger.largest_free_bytes).unwrap();
        assert_eq!(ledger.largest_free_bytes, mib(34));
        if size_bytes < PLENTY {
            assert_eq!(ledger.missing_bytes, size_bytes + mib(12) + mib(3) - mib(50));
            memory.set_capacity(mib(50) + ledger.missing_bytes - 1);
            memory.allocate(size_bytes).unwrap_err();
            memory.set_capacity(mib(50) + ledger.missing_bytes);
            memory.allocate(size_bytes).unwrap();
            memory.trim();
            memory.set_capacity(mib(50));
        }
    }
    memory.check_invariants();
}

#[test]
fn torch_rules_keep_the_code_of_a_system_that_fails() {
    let policy = Policy::Torch(TorchSettings::default());
    let memory = CachingAllocator::with_policy(Refusing, policy).unwrap();
    memory.set_capacity(PLENTY);
    let error = memory.allocate(100).unwrap_err();
    assert!(matches!(error, AllocError::Source(SourceError::System { code: 999, .. })), "{error}");
    memory.check_invariants();
}

/// A source whose system refuses every commit, written without this crate's helpers.
struct Refusing;

impl MemorySource for Refusing {
    fn capacity_bytes(&self) -> usize {
        4 << 20
    }

    fn page_bytes(&self) -> usize {
        512
    }

    fn reserve(&self, size_bytes: usize) -> Result<Segment, SourceError> {
        Ok(Segment::opaque(1 << 30, size_bytes))
    }

    fn release(&self, _: &Segment) {}

    fn commit(&self, _: &Segment, pages: &PageRange) -> Result<(), SourceError> {
        let size_bytes = pages.size_bytes();
        Err(SourceError::System { operation: "map", size_bytes, code: 999 })
    }

    fn decommit(&self, _: &Segment, _: &PageRange) {
        unreachable!("nothing was ever committed");
    }
}

#[test]
fn failure_of_the_system_keeps_its_code() {
    let memory = CachingAllocator::new(Refusing).unwrap();
    let error = memory.allocate_in(Category::Other, 100).unwrap_err();
    let AllocError::Source(cause) = &error else { panic!("{error}") };
    assert_eq!(*cause, SourceError::System { operation: "map", size_bytes: 512, code: 999 });
    let shown = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(shown, "map of 512 bytes failed with code 999");
    assert_eq!(memory.statistics().source_calls, 2);
    memory.check_invariants();
}
