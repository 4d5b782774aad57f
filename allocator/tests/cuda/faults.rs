use std::error::Error;
use std::sync::Arc;

use lowtide_allocator::cuda::{CudaDevice, CudaHostSource, CudaSource, CudaStreams};
use lowtide_allocator::{Buffer, CachingAllocator, Category, PinnedCache, Repeat, Stream};

use crate::common::PAGE_BYTES;
use crate::gpu::{Gpu, stream};

/// Objects of a program. All live until the driver works again.
#[derive(Default)]
struct Held {
    device: Option<CudaDevice>,
    streams: Option<CudaStreams>,
    source: Option<Arc<CudaSource>>,
    memory: Option<CachingAllocator>,
    host: Option<PinnedCache>,
    blocks: Vec<Buffer>,
}

/// Makes every kind of driver call a few times. Continues after a failure; returns the number of
/// failures.
fn go(gpu: &Gpu, held: &mut Held) -> usize {
    let mut failures = 0;
    if let Err(error) = open(gpu, held) {
        assert!(!error.to_string().is_empty());
        failures += 1;
    }
    let (Some(memory), Some(streams)) = (held.memory.clone(), held.streams.clone()) else {
        return failures;
    };
    let mut count = |result: Result<(), Box<dyn Error>>| failures += usize::from(result.is_err());
    let on = |index: usize| stream(index % 3);
    for index in 0..8 {
        count((|| {
            let block = memory.allocate_on(on(index), Category::Other, (index + 1) * 3000)?;
            held.blocks.push(block);
            let block = held.blocks.last().ok_or("it was pushed")?;
            streams.fill(on(index), block, 0..block.size_bytes(), index as u8)?;
            Ok(())
        })());
        memory.check_invariants();
    }
    let mut index = 0;
    held.blocks.retain(|_| {
        index += 1;
        index % 2 == 0
    });
    count((|| {
        let large = memory.allocate_on(stream(1), Category::Other, 12 * PAGE_BYTES)?;
        streams.upload(stream(1), &vec![7; 12 * PAGE_BYTES], (&large, 0..12 * PAGE_BYTES))?;
        let mut back = vec![0; 12 * PAGE_BYTES];
        streams.download(stream(1), (&large, 0..12 * PAGE_BYTES), &mut back)?;
        assert!(back.iter().all(|&byte| byte == 7), "a copy that says that it ran did not");
        Ok(())
    })());
    memory.check_invariants();
    held.blocks.clear();
    memory.trim();
    memory.check_invariants();
    count((|| {
        let cache = held.host.as_ref().ok_or("no host memory")?;
        for value in 0..4 {
            let mut batch = cache.allocate(stream(2), 64 << 10)?;
            batch.as_mut_slice().fill(value);
            let slot = memory.allocate_on(stream(2), Category::Input, 64 << 10)?;
            streams.upload_pinned(stream(2), (&batch, 0..64 << 10), (&slot, 0))?;
        }
        cache.synchronize()?;
        Ok(())
    })());
    memory.trim();
    count(streams.synchronize(Stream::DEFAULT).map_err(Into::into));
    failures
}

fn open(gpu: &Gpu, held: &mut Held) -> Result<(), Box<dyn Error>> {
    let device = held.device.insert(CudaDevice::of(&gpu.driver, 0)?);
    device.name()?;
    let streams = held.streams.insert(CudaStreams::new(device));
    let source = held.source.insert(Arc::new(CudaSource::new(streams)?));
    held.memory = Some(CachingAllocator::new(source.clone())?);
    source.report()?;
    let host = CudaHostSource::with_capacity(device, 2 * (64 << 10));
    held.host = Some(PinnedCache::new(host, streams.clone())?);
    Ok(())
}

/// Number of calls of the whole program, and of its part before the objects are dropped.
fn call_counts(gpu: &Gpu) -> (u64, u64) {
    gpu.reset();
    let mut held = Held::default();
    assert_eq!(go(gpu, &mut held), 0, "the program is at fault");
    let before_the_end = gpu.pretend.calls("");
    drop(held);
    (gpu.pretend.calls(""), before_the_end)
}

/// Codes of different kinds: one says nothing of memory, one says that memory is short, and one is
/// unknown to the bindings.
const CODES: [i32; 3] = [1, 2, 12345];

#[test]
fn nth_driver_call_fails_once_for_every_n_and_nothing_is_left() {
    let Some(gpu) = Gpu::pretend() else { return };
    let (count, _) = call_counts(&gpu);
    assert!(count > 300, "{count}");
    for nth in 1..=count {
        gpu.reset();
        gpu.pretend.fail("", CODES[nth as usize % 3], nth, Repeat::Once);
        let mut held = Held::default();
        let failures = go(&gpu, &mut held);
        assert!(failures <= 2, "call {nth}: {failures} parts of the program failed");
        drop(held);
        assert_eq!(gpu.left(), [], "call {nth}");
    }
}

#[test]
fn every_driver_call_from_the_nth_on_fails_for_every_n() {
    let Some(gpu) = Gpu::pretend() else { return };
    let (_, count) = call_counts(&gpu);
    for nth in 1..=count {
        gpu.reset();
        gpu.pretend.fail("", CODES[nth as usize % 3], nth, Repeat::Forever);
        let mut held = Held::default();
        go(&gpu, &mut held);
        gpu.pretend.fail("", 0, 0, Repeat::Once);
        if let (Some(memory), Some(streams)) = (&held.memory, &held.streams) {
            let block = memory.allocate(5 * PAGE_BYTES).expect("the driver works again");
            streams.fill(Stream::DEFAULT, &block, 0..5 * PAGE_BYTES, 1).unwrap();
            streams.device().synchronize().unwrap();
        }
        drop(held);
        assert_eq!(gpu.left(), [], "call {nth}");
    }
}

#[test]
fn device_that_is_lost_at_the_nth_call_hangs_nobody() {
    let Some(gpu) = Gpu::pretend() else { return };
    let (_, count) = call_counts(&gpu);
    for nth in (1..=count).step_by(7) {
        gpu.reset();
        gpu.pretend.fail("", 700, nth, Repeat::Forever);
        let mut held = Held::default();
        assert!(go(&gpu, &mut held) > 0, "call {nth}");
        // Nothing can be given back any more, but every drop must end.
        drop(held);
    }
    gpu.reset();
}
