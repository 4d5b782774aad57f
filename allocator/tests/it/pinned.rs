use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use lowtide_allocator::{
    Adaptor, AllocError, CachingAllocator, Fault, FaultSource, Fence, HostSource, LimitSource,
    LockedSource, MemorySource, PageLock, PinnedCache, Repeat, SimSource, SimStreams, SourceError,
    Stream, SystemLock,
};

use crate::common::{PAGE_BYTES, PLENTY};

const BATCH_BYTES: usize = 4 * PAGE_BYTES;

fn copies() -> [Stream; 2] {
    [Stream::new(3).unwrap(), Stream::new(5).unwrap()]
}

/// A cache of simulated host memory for `batches` batches.
fn cache(streams: &SimStreams, batches: usize) -> PinnedCache {
    let source = SimSource::with_capacity(batches * BATCH_BYTES).page_bytes(PAGE_BYTES);
    PinnedCache::new(source.without_virtual_memory(), streams.clone()).unwrap()
}

#[test]
fn host_never_touches_a_block_that_a_copy_may_read() {
    for batches in 1..=4 {
        let streams = SimStreams::new();
        let cache = cache(&streams, batches);
        let mut offsets = Vec::new();
        for step in 0..20 {
            let copy = copies()[step % 2];
            let batch = cache.allocate(copy, BATCH_BYTES).unwrap();
            streams.touch(&[batch.block()]).unwrap();
            streams.launch(copy, &[batch.block()]).unwrap();
            offsets.push(batch.block().offset());
        }
        let used: BTreeSet<_> = offsets.into_iter().collect();
        assert_eq!(used.len(), batches, "the whole capacity is the ring");
        assert!(cache.wait_count() > 0);
        let reserved_bytes = cache.allocator().statistics().reserved.peak_bytes;
        assert_eq!(reserved_bytes, batches * BATCH_BYTES);
    }
}

#[test]
fn contents_have_a_number_until_they_are_to_be_written() {
    let memory = PinnedCache::new(HostSource::with_capacity(1 << 20), SimStreams::new()).unwrap();
    let [copy, other] = copies();
    let allocate = || memory.allocate(copy, PAGE_BYTES).unwrap();
    let (mut first, second) = (allocate(), allocate());
    let before = [&first, &second].map(|block| block.contents_id());
    assert_ne!(before[0], before[1]);
    first.record_use(other);
    first.wait().unwrap();
    assert_eq!((first.as_slice()[0], first.contents_id()), (0, before[0]));
    first.as_mut_slice()[0] = 1;
    let after = first.contents_id();
    assert!(!before.contains(&after));
    drop((first, second));
    assert!(![before[0], before[1], after].contains(&allocate().contents_id()));
}

#[test]
fn host_write_before_the_wait_is_early() {
    let streams = SimStreams::new();
    let cache = cache(&streams, 2);
    let [copy, other] = copies();
    let batch = cache.allocate(copy, BATCH_BYTES).unwrap();
    streams.touch(&[batch.block()]).unwrap();
    streams.launch(copy, &[batch.block()]).unwrap();
    let early = streams.touch(&[batch.block()]).unwrap_err();
    assert_eq!((early.stream, early.running_on), (None, copy));
    assert_eq!(early.previous_serial, batch.block().serial());
    assert_eq!(
        early.to_string(),
        "the host touches byte 0 of block 1 while stream 3 may still work on block 1 there"
    );
    streams.wait_host(other).unwrap();
    assert!(streams.touch(&[batch.block()]).is_err(), "another stream's wait does not help");
    batch.wait().unwrap();
    streams.touch(&[batch.block()]).unwrap();
}

#[test]
fn launch_comes_after_all_that_the_host_has_waited_for() {
    let streams = SimStreams::new();
    let memory = CachingAllocator::new(SimSource::with_capacity(PLENTY)).unwrap();
    let [first, second] = copies();
    let block = memory.allocate(100).unwrap();
    streams.launch(first, &[&block]).unwrap();
    drop(block);
    let reused = memory.allocate(100).unwrap();
    assert!(streams.launch(second, &[&reused]).is_err());
    streams.wait_host(first).unwrap();
    streams.launch(second, &[&reused]).unwrap();
}

#[test]
fn allocators_on_the_same_streams_are_told_apart() {
    let streams = SimStreams::new();
    let [first, second] = copies();
    let host = cache(&streams, 1);
    let device = CachingAllocator::new(SimSource::with_capacity(PLENTY)).unwrap();
    drop(device.allocate(1).unwrap());
    let (batch, tensor) = (host.allocate(first, 1).unwrap(), device.allocate(1).unwrap());
    assert_eq!(batch.block().offset(), tensor.offset());
    assert_ne!(batch.block().serial(), tensor.serial());
    streams.launch(first, &[batch.block()]).unwrap();
    streams.launch(second, &[&tensor]).unwrap();
}

#[test]
fn waits_come_only_when_memory_is_short_and_once_for_each_stream() {
    let streams = SimStreams::new();
    let cache = cache(&streams, 3);
    let [first, second] = copies();
    for _ in 0..2 {
        drop(cache.allocate(first, BATCH_BYTES).unwrap());
    }
    let mut shared = cache.allocate(first, BATCH_BYTES).unwrap();
    shared.record_use(second);
    drop(shared);
    assert_eq!((cache.wait_count(), cache.pending_count()), (0, 3));
    let next = cache.allocate(first, BATCH_BYTES).unwrap();
    assert_eq!((cache.wait_count(), cache.pending_count()), (2, 0));
    assert_eq!(cache.allocator().statistics().ooms, 0);
    drop(next);
    assert_eq!(cache.synchronize().unwrap(), BATCH_BYTES);
    assert_eq!(cache.synchronize().unwrap(), 0);
    assert_eq!(cache.wait_count(), 3);
}

#[test]
fn live_blocks_are_not_to_be_had_by_waiting() {
    let cache = cache(&SimStreams::new(), 1);
    let _held = cache.allocate(copies()[0], BATCH_BYTES).unwrap();
    let error = cache.allocate(copies()[0], 1).unwrap_err();
    assert!(error.out_of_memory().is_some(), "{error}");
}

#[test]
fn repeated_step_calls_the_source_no_more() {
    let streams = SimStreams::new();
    let cache = cache(&streams, 2);
    let step = || drop(cache.allocate(copies()[0], BATCH_BYTES).unwrap());
    (0..4).for_each(|_| step());
    let calls = cache.allocator().statistics().source_calls;
    (0..10).for_each(|_| step());
    assert_eq!(cache.allocator().statistics().source_calls, calls);
}

/// Streams over a device that fails on command.
fn faulty_streams() -> FaultSource<SimSource> {
    FaultSource::new(SimSource::with_capacity(1).streams(&SimStreams::new()))
}

/// A fence that forwards to the fence of a source.
struct FenceOf(FaultSource<SimSource>);

impl Fence for FenceOf {
    fn wait(&self, waiter: Stream, on: Stream) -> Result<(), SourceError> {
        self.0.fence().unwrap().wait(waiter, on)
    }

    fn wait_host(&self, on: Stream) -> Result<(), SourceError> {
        self.0.fence().unwrap().wait_host(on)
    }
}

#[test]
fn wait_that_fails_is_an_error_and_the_blocks_stay_pending() {
    let device = faulty_streams();
    let source = SimSource::with_capacity(BATCH_BYTES).page_bytes(PAGE_BYTES);
    let cache = PinnedCache::new(source, FenceOf(device.clone())).unwrap();
    drop(cache.allocate(copies()[0], BATCH_BYTES).unwrap());
    device.inject(Fault { nth: 1, repeat: Repeat::Once });
    let error = cache.allocate(copies()[0], BATCH_BYTES).unwrap_err();
    assert!(matches!(error, AllocError::Source(_)), "{error}");
    assert_eq!(cache.pending_count(), 1);
    device.inject(Fault { nth: 1, repeat: Repeat::Once });
    assert!(cache.synchronize().is_err());
    cache.allocate(copies()[0], BATCH_BYTES).unwrap();
}

#[test]
fn last_handle_waits_before_the_memory_goes() {
    let device = faulty_streams();
    let sim = SimSource::with_capacity(BATCH_BYTES).page_bytes(PAGE_BYTES);
    let source = LimitSource::new(sim, BATCH_BYTES);
    let cache = PinnedCache::new(source.clone(), FenceOf(device.clone())).unwrap();
    let batch = cache.allocate(copies()[0], 100).unwrap();
    drop(cache);
    assert_eq!(device.call_count(), 0);
    assert_eq!(source.used_bytes(), PAGE_BYTES);
    drop(batch);
    assert_eq!(device.call_count(), 1, "the host waited");
    assert_eq!(source.used_bytes(), 0);
}

#[test]
fn host_statistics_have_the_names_and_sums_of_torch() {
    let cache = cache(&SimStreams::new(), 4);
    let held = cache.allocate(copies()[0], 1000).unwrap();
    drop(cache.allocate(copies()[0], 2000).unwrap());
    let values: std::collections::BTreeMap<_, _> = cache.torch_named().collect();
    assert_eq!(values["active_requests.current"], 2, "pending ones are active");
    assert_eq!(values["active_bytes.current"], 1024 + 2048);
    assert_eq!(values["allocated_bytes.current"], PAGE_BYTES as u64);
    for name in ["active_requests", "active_bytes", "allocated_bytes"] {
        let of = |metric: &str| values[format!("{name}.{metric}").as_str()];
        assert_eq!(of("current"), of("allocated") - of("freed"), "{name}");
    }
    assert_eq!(values.len(), 11);
    drop(held);
}

/// A lock that records the locked pages, and refuses beyond a limit, as the system does.
#[derive(Clone, Default)]
struct LockLog {
    pages: Arc<Mutex<BTreeSet<u64>>>,
    pages_max: usize,
}

impl PageLock for LockLog {
    fn lock(&self, address: u64, size_bytes: usize) -> Result<(), SourceError> {
        let mut pages = self.pages.lock().unwrap();
        let count = size_bytes / PAGE_BYTES;
        if pages.len() + count > self.pages_max {
            let limit_bytes = (self.pages_max * PAGE_BYTES) as u64;
            return Err(SourceError::LockLimit { size_bytes, limit_bytes });
        }
        for page in 0..count as u64 {
            assert!(pages.insert(address + page * PAGE_BYTES as u64), "locked twice");
        }
        Ok(())
    }

    fn unlock(&self, address: u64, size_bytes: usize) {
        for page in 0..(size_bytes / PAGE_BYTES) as u64 {
            let page = address + page * PAGE_BYTES as u64;
            assert!(self.pages.lock().unwrap().remove(&page), "not locked");
        }
    }
}

#[test]
fn what_is_committed_is_locked_and_nothing_else() {
    let lock = LockLog { pages_max: 100, ..LockLog::default() };
    let locked_bytes = || lock.pages.lock().unwrap().len() * PAGE_BYTES;
    let sim = SimSource::with_capacity(PLENTY).page_bytes(PAGE_BYTES);
    let source = LockedSource::new(sim, lock.clone());
    assert!(source.virtual_memory().is_none() && source.fence().is_none());
    assert_eq!(source.inner().page_bytes(), PAGE_BYTES);
    let memory = CachingAllocator::new(source).unwrap();
    let mut blocks: Vec<_> = (1..8).map(|n| memory.allocate(n * PAGE_BYTES).unwrap()).collect();
    let mut index = 0;
    blocks.retain(|_| {
        index += 1;
        index % 3 != 1
    });
    assert_eq!(locked_bytes(), memory.statistics().reserved.current_bytes);
    memory.trim();
    assert_eq!(locked_bytes(), memory.statistics().reserved.current_bytes);
    let _large = memory.allocate(20 * PAGE_BYTES).unwrap();
    assert_eq!(locked_bytes(), memory.statistics().reserved.current_bytes);
    drop((blocks, _large));
    memory.trim();
    assert_eq!(locked_bytes(), 0);

    // Locked in one call, and unlocked from the middle.
    drop(memory.allocate(10 * PAGE_BYTES).unwrap());
    let [low, middle, high] = [3, 3, 4].map(|n| memory.allocate(n * PAGE_BYTES).unwrap());
    drop(middle);
    assert_eq!(memory.trim(), 3 * PAGE_BYTES);
    assert_eq!(locked_bytes(), 7 * PAGE_BYTES);
    drop(low);
    assert_eq!(memory.trim(), 3 * PAGE_BYTES);
    assert_eq!(locked_bytes(), 4 * PAGE_BYTES);
    drop((high, memory));
    assert_eq!(locked_bytes(), 0, "the rest goes with the segment");
}

#[test]
fn commit_that_fails_below_leaves_nothing_locked() {
    let lock = LockLog { pages_max: 100, ..LockLog::default() };
    let faulty = FaultSource::new(SimSource::with_capacity(PLENTY).page_bytes(PAGE_BYTES));
    let memory = CachingAllocator::new(LockedSource::new(faulty.clone(), lock.clone())).unwrap();
    faulty.inject(Fault { nth: 1, repeat: Repeat::Forever });
    assert!(memory.allocate(1).is_err());
    assert!(lock.pages.lock().unwrap().is_empty());
}

#[test]
fn lock_limit_is_named_and_pending_blocks_are_waited_for_first() {
    let lock = LockLog { pages_max: 4, ..LockLog::default() };
    let sim = SimSource::with_capacity(PLENTY).page_bytes(PAGE_BYTES);
    let cache = PinnedCache::new(LockedSource::new(sim, lock), SimStreams::new()).unwrap();
    drop(cache.allocate(copies()[0], 3 * PAGE_BYTES).unwrap());
    let held = cache.allocate(copies()[0], 3 * PAGE_BYTES).unwrap();
    assert_eq!(cache.wait_count(), 1);
    let error = cache.allocate(copies()[0], 2 * PAGE_BYTES).unwrap_err();
    let AllocError::Source(cause) = error else { panic!("{error}") };
    assert_eq!(
        cause.to_string(),
        format!(
            "no {} more bytes can be locked in memory: RLIMIT_MEMLOCK allows {}",
            2 * PAGE_BYTES,
            4 * PAGE_BYTES
        )
    );
    drop(held);
}

/// Locked memory of this process, in KiB.
#[cfg(target_os = "linux")]
fn locked_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn system_locks_what_it_allows_and_says_what_it_does_not() {
    const SIZE_BYTES: usize = 64 << 10;
    let before = locked_kib();
    let source = HostSource::with_capacity(1 << 40).locked();
    let cache = PinnedCache::new(source, SimStreams::new()).unwrap();
    match cache.allocate(copies()[0], SIZE_BYTES) {
        Ok(mut batch) => {
            batch.as_mut_slice().fill(7);
            assert_eq!(locked_kib() - before, SIZE_BYTES >> 10);
            assert!(batch.as_slice().iter().all(|&byte| byte == 7));
            drop(batch);
            cache.synchronize().unwrap();
            assert_eq!(cache.allocator().trim(), SIZE_BYTES);
            assert_eq!(locked_kib(), before);
        }
        Err(AllocError::Source(SourceError::LockLimit { size_bytes, limit_bytes })) => {
            assert_eq!(size_bytes, SIZE_BYTES);
            assert!(limit_bytes < (before << 10) as u64 + SIZE_BYTES as u64);
        }
        Err(error) => panic!("{error}"),
    }
    // There is no mapping at this address.
    assert!(SystemLock.lock(1 << 16, SIZE_BYTES).is_err());
    assert_eq!(locked_kib(), before, "a refused lock leaves nothing locked");
}

#[test]
fn wait_of_the_host_takes_back_what_was_dropped_before_it_and_nothing_else() {
    let streams = SimStreams::new();
    let cache = cache(&streams, 3);
    let [copy, other] = copies();
    let enqueue = |users: &[Stream]| {
        let mut batch = cache.allocate(users[0], BATCH_BYTES).unwrap();
        users[1..].iter().for_each(|user| batch.record_use(*user));
        streams.touch(&[batch.block()]).unwrap();
        users.iter().for_each(|user| streams.launch(*user, &[batch.block()]).unwrap());
    };
    enqueue(&[copy]);
    enqueue(&[copy, other]);
    cache
        .while_waiting(copy, || {
            streams.wait_host(copy)?;
            // Another thread may enqueue work during the wait.
            enqueue(&[copy]);
            Ok::<(), SourceError>(())
        })
        .unwrap();
    assert_eq!((cache.pending_count(), cache.wait_count()), (2, 0), "the first alone");
    let failed = cache.while_waiting(other, || Err::<(), &str>("lost"));
    assert_eq!((failed, cache.pending_count()), (Err("lost"), 2));
    // Each block that is handed out now was taken back before, or is waited for.
    for _ in 0..4 {
        enqueue(&[other]);
    }
}

#[test]
fn memory_goes_with_the_last_handle_even_if_a_wait_fails_once() {
    for (repeat, left_bytes) in [(Repeat::Once, 0), (Repeat::Forever, PAGE_BYTES)] {
        let device = faulty_streams();
        let sim = SimSource::with_capacity(BATCH_BYTES).page_bytes(PAGE_BYTES);
        let source = LimitSource::new(sim, BATCH_BYTES);
        let cache = PinnedCache::new(source.clone(), FenceOf(device.clone())).unwrap();
        drop(cache.allocate(copies()[0], 100).unwrap());
        device.inject(Fault { nth: 1, repeat });
        drop(cache);
        assert_eq!(source.used_bytes(), left_bytes, "{repeat:?}");
    }
}
