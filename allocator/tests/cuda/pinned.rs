use lowtide_allocator::cuda::{CudaHostSource, CudaStreams};
use lowtide_allocator::{
    Buffer, CachingAllocator, Fence, MemorySource, PinnedCache, SourceError, Stream,
};

use crate::common::PAGE_BYTES;
use crate::gpu::{Gpu, source, stream};

const BATCH_BYTES: usize = 64 << 10;

/// Streams whose host waits return at once.
struct Hasty(CudaStreams);

impl Fence for Hasty {
    fn wait(&self, waiter: Stream, on: Stream) -> Result<(), SourceError> {
        self.0.wait(waiter, on)
    }

    fn wait_host(&self, _: Stream) -> Result<(), SourceError> {
        Ok(())
    }
}

/// Sends batches to the device through a ring of two. Returns the number of batches that arrived
/// intact.
fn arrived(streams: &CudaStreams, fence: impl Fence + 'static) -> usize {
    let memory = CachingAllocator::new(source(streams)).unwrap();
    let host = CudaHostSource::with_capacity(streams.device(), 2 * BATCH_BYTES);
    let cache = PinnedCache::new(host, fence).unwrap();
    let copies = stream(2);
    let slots: Vec<Buffer> = (0..8)
        .map(|_| memory.allocate_on(copies, memory.current_category(), BATCH_BYTES).unwrap())
        .collect();
    for (value, slot) in slots.iter().enumerate() {
        let mut batch = cache.allocate(copies, BATCH_BYTES).unwrap();
        batch.as_mut_slice().fill(value as u8);
        streams.upload_pinned(copies, (&batch, 0..BATCH_BYTES), (slot, 0)).unwrap();
    }
    let is_right = |&(value, slot): &(usize, &Buffer)| {
        let mut back = vec![0; BATCH_BYTES];
        streams.download(copies, (slot, 0..BATCH_BYTES), &mut back).unwrap();
        back.iter().all(|&byte| byte == value as u8)
    };
    slots.iter().enumerate().filter(is_right).count()
}

#[test]
fn page_locked_batch_is_not_written_before_its_copy_has_run() {
    let Some(gpu) = Gpu::pretend() else { return };
    for seed in 0..10 {
        gpu.pretend.schedule(seed);
        let streams = gpu.streams();
        assert_eq!(arrived(&streams, streams.clone()), 8, "{seed}");
    }
    gpu.pretend.schedule(0);
    let streams = gpu.streams();
    assert_eq!(arrived(&streams, Hasty(streams.clone())), 2, "only the last two");
}

#[test]
fn ring_is_locked_by_one_call_and_freed_with_its_last_block() {
    let Some(gpu) = Gpu::pretend() else { return };
    let streams = gpu.streams();
    let host = CudaHostSource::with_capacity(streams.device(), 2 * BATCH_BYTES - 1);
    assert_eq!(host.capacity_bytes(), 2 * BATCH_BYTES);
    let cache = PinnedCache::new(host, streams.clone()).unwrap();
    let mut batch = cache.allocate(stream(1), PAGE_BYTES).unwrap();
    assert!(batch.as_slice().iter().all(|&byte| byte == 0));
    assert!(cache.allocate(stream(1), 2 * BATCH_BYTES).unwrap_err().out_of_memory().is_some());
    assert_eq!(gpu.pretend.calls("cuMemHostAlloc"), 1);
    drop(cache);
    batch.as_mut_slice().fill(1);
    assert_eq!(gpu.pretend.live("host"), 1);
    drop(batch);
    assert_eq!(gpu.pretend.live("host"), 0);
}
