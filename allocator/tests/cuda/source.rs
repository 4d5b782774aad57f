use std::sync::Arc;

use lowtide_allocator::cuda::CudaSource;
use lowtide_allocator::torch::TorchSettings;
use lowtide_allocator::{
    Buffer, CachingAllocator, Category, LimitSource, MemorySource, Policy, Repeat, Rung, SimSource,
    SimStreams, Stream,
};
use proptest::prelude::*;

use crate::common::{PAGE_BYTES, PLENTY, World, program};
use crate::gpu::{CONTEXT_BYTES, Gpu, source, stream};

#[test]
fn same_program_gets_the_same_offsets_as_in_a_simulation() {
    let Some(gpu) = Gpu::pretend() else { return };
    proptest!(ProptestConfig::with_cases(64), |(program in program())| {
        gpu.reset();
        let source = source(&gpu.streams());
        let mut real = World::new(source.clone());
        let mut sim = World::sim(PLENTY);
        for &op in &program {
            prop_assert_eq!(real.step(op).unwrap(), sim.step(op).unwrap());
            real.memory.check_invariants();
            let (on_device, predicted) = (real.memory.statistics(), sim.memory.statistics());
            prop_assert_eq!(on_device.reserved, predicted.reserved);
            prop_assert_eq!(on_device.source_calls, predicted.source_calls);
            let charged_bytes = on_device.charged.current_bytes;
            let committed_bytes = on_device.reserved.current_bytes - charged_bytes;
            prop_assert_eq!(source.report().unwrap().committed_bytes, committed_bytes);
            let used_bytes = gpu.pretend.live("bytes") as usize - CONTEXT_BYTES;
            prop_assert_eq!(used_bytes, committed_bytes);
        }
        drop((real, source));
        prop_assert_eq!(gpu.left(), []);
    });
}

#[test]
fn rules_of_torch_place_alike_on_a_device_and_in_a_simulation() {
    let Some(gpu) = Gpu::with_capacity(CONTEXT_BYTES + (160 << 20)) else { return };
    let of = |source: Arc<dyn MemorySource>| {
        let policy = Policy::Torch(TorchSettings::default());
        let memory = CachingAllocator::with_policy(source, policy).unwrap();
        let sizes = [700, 3 << 20, 1 << 20, 30 << 20, 600_000, 12 << 20, 25 << 20, 5];
        let mut blocks = Vec::new();
        for round in 0..3 {
            for (index, size_bytes) in sizes.into_iter().enumerate() {
                blocks.push(memory.allocate(size_bytes + round * 10_000).unwrap());
                if index % 3 == 2 {
                    drop(blocks.remove(blocks.len() / 2));
                }
            }
            blocks.truncate(3);
        }
        let places: Vec<usize> = blocks.iter().map(Buffer::offset).collect();
        drop(blocks);
        let reserved = memory.statistics().reserved;
        memory.trim();
        (places, reserved, memory.statistics().source_calls)
    };
    let sim = SimSource::with_capacity(PLENTY).page_bytes(PAGE_BYTES);
    let on_device = of(source(&gpu.streams()));
    assert_eq!(on_device, of(Arc::new(sim.streams(&SimStreams::new()))));
}

#[test]
fn new_memory_holds_nothing_of_anybody_and_no_zeros() {
    let Some(gpu) = Gpu::pretend() else { return };
    let (streams, memory) = gpu.memory();
    for value in 0..3 {
        let block = memory.allocate(PAGE_BYTES).unwrap();
        let mut back = vec![0; PAGE_BYTES];
        streams.download(Stream::DEFAULT, (&block, 0..PAGE_BYTES), &mut back).unwrap();
        assert!(back.iter().all(|&byte| byte == 0xCD), "the pretend driver poisons it");
        streams.fill(Stream::DEFAULT, &block, 0..PAGE_BYTES, value).unwrap();
        drop(block);
        memory.trim();
    }
}

/// A step that grows, shrinks, stitches and changes streams, and ends in its initial state.
fn step(memory: &CachingAllocator) {
    let other = stream(1);
    let mut blocks: Vec<Buffer> = (1..12).map(|n| memory.allocate(n * 3000).unwrap()).collect();
    let mut index = 0;
    blocks.retain(|_| {
        index += 1;
        index % 2 == 0
    });
    let large = memory.allocate(20 * PAGE_BYTES).unwrap();
    assert!(large.is_stitched(), "the step is to have a view");
    drop(blocks);
    let elsewhere = memory.allocate_on(other, Category::Other, 9 * PAGE_BYTES).unwrap();
    elsewhere.record_use(Stream::DEFAULT);
}

#[test]
fn repeated_step_makes_no_driver_call_but_for_order() {
    let Some(gpu) = Gpu::pretend() else { return };
    let (_, memory) = gpu.memory();
    (0..3).for_each(|_| step(&memory));
    let calls = gpu.pretend.calls("");
    let order_calls =
        || gpu.pretend.calls("cuEventRecord") + gpu.pretend.calls("cuStreamWaitEvent");
    let before = order_calls();
    (0..10).for_each(|_| step(&memory));
    // A queue without work is not waited for, so no function is called here.
    assert_eq!((gpu.pretend.calls(""), order_calls()), (calls, before));
}

#[test]
fn repeated_step_with_work_on_two_streams_calls_for_order_alone() {
    let Some(gpu) = Gpu::pretend() else { return };
    let (streams, memory) = gpu.memory();
    for on in [Stream::DEFAULT, stream(1)] {
        let block = memory.allocate_on(on, Category::Other, 100).unwrap();
        streams.fill(on, &block, 0..100, 1).unwrap();
    }
    (0..3).for_each(|_| step(&memory));
    let of_kind = |names: &[&str]| names.iter().map(|name| gpu.pretend.calls(name)).sum::<u64>();
    let order = ["cuEventRecord", "cuStreamWaitEvent", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"];
    let (all, order_before) = (gpu.pretend.calls(""), of_kind(&order));
    let waits_before = memory.statistics().waits;
    (0..10).for_each(|_| step(&memory));
    let (calls, order_calls) = (gpu.pretend.calls("") - all, of_kind(&order) - order_before);
    let waits = memory.statistics().waits - waits_before;
    assert!(waits > 0, "the step is to change streams");
    assert_eq!((calls, order_calls), (6 * waits, 6 * waits));
}

#[test]
fn stitched_block_is_one_range_of_bytes() {
    let Some(gpu) = Gpu::pretend() else { return };
    let (streams, memory) = gpu.memory();
    let on = Stream::DEFAULT;
    let blocks: Vec<Buffer> = (0..7).map(|_| memory.allocate(2 * PAGE_BYTES).unwrap()).collect();
    let mut kept = Vec::new();
    for (index, block) in blocks.into_iter().enumerate() {
        if index % 2 == 0 {
            streams.fill(on, &block, 0..2 * PAGE_BYTES, index as u8).unwrap();
            kept.push((index as u8, block));
        }
    }
    let mut large = memory.allocate(6 * PAGE_BYTES).unwrap();
    assert!(large.is_stitched() && large.pieces().len() == 3, "{:?}", large.pieces());
    let bytes: Vec<u8> = (0..6 * PAGE_BYTES).map(|i| (i % 253) as u8).collect();
    for _ in 0..3 {
        streams.upload(on, &bytes, (&large, 0..bytes.len())).unwrap();
        let mut back = vec![0; bytes.len()];
        streams.download(on, (&large, 0..bytes.len()), &mut back).unwrap();
        assert!(back == bytes);
        // The pages are pages of the holes: no other block's bytes changed.
        for (value, block) in &kept {
            let mut back = vec![0; 2 * PAGE_BYTES];
            streams.download(on, (block, 0..2 * PAGE_BYTES), &mut back).unwrap();
            assert!(back.iter().all(|byte| byte == value));
        }
        drop(large);
        memory.trim();
        large = memory.allocate(6 * PAGE_BYTES).unwrap();
    }
}

#[test]
fn device_is_used_to_the_last_page_and_not_beyond() {
    let page_count = 20;
    let Some(gpu) = Gpu::with_capacity(CONTEXT_BYTES + page_count * PAGE_BYTES) else { return };
    let memory = CachingAllocator::new(CudaSource::new(&gpu.streams()).unwrap()).unwrap();
    assert_eq!(memory.capacity_bytes(), page_count * PAGE_BYTES);
    let mut blocks: Vec<Buffer> =
        (0..page_count).map(|_| memory.allocate(PAGE_BYTES).unwrap()).collect();
    let error = memory.allocate(1).unwrap_err();
    assert_eq!(error.out_of_memory().unwrap().missing_bytes, PAGE_BYTES);
    // Pages that lie apart serve one block.
    let mut index = 0;
    blocks.retain(|_| {
        index += 1;
        index % 2 == 0
    });
    let large = memory.allocate(page_count / 2 * PAGE_BYTES).unwrap();
    assert!(large.is_stitched());
    assert!(memory.allocate(1).is_err());
}

#[test]
fn neighbour_who_takes_memory_is_a_lack_of_memory_that_passes() {
    let Some(gpu) = Gpu::with_capacity(CONTEXT_BYTES + 20 * PAGE_BYTES) else { return };
    let memory = CachingAllocator::new(CudaSource::new(&gpu.streams()).unwrap()).unwrap();
    let held = memory.allocate(10 * PAGE_BYTES).unwrap();
    gpu.pretend.take(5 * PAGE_BYTES);
    let error = memory.allocate(8 * PAGE_BYTES).unwrap_err();
    let ledger = error.out_of_memory().unwrap();
    assert_eq!(ledger.missing_bytes, 0, "the capacity is not to blame");
    assert!(ledger.tried.contains(&Rung::Trim), "{ledger:?}");
    assert_eq!(gpu.pretend.live("handles"), 10, "what a failed commit made is given back");
    memory.allocate(5 * PAGE_BYTES).unwrap();
    gpu.pretend.take(0);
    memory.allocate(8 * PAGE_BYTES).unwrap();
    drop(held);
}

#[test]
fn pages_go_only_when_the_work_on_them_is_done() {
    let Some(gpu) = Gpu::pretend() else { return };
    let (streams, memory) = gpu.memory();
    for on in [Stream::DEFAULT, stream(5)] {
        let block = memory.allocate_on(on, Category::Other, 3 * PAGE_BYTES).unwrap();
        streams.fill(on, &block, 0..3 * PAGE_BYTES, 1).unwrap();
    }
    assert_eq!(gpu.pretend.live("queued"), 4, "two fills, and a wait with its record");
    memory.trim();
    assert_eq!(gpu.pretend.live("handles"), 0);
    streams.device().synchronize().expect("no work met an address without memory");
}

#[test]
fn views_go_only_when_the_work_on_them_is_done() {
    let Some(gpu) = Gpu::pretend() else { return };
    let (streams, memory) = gpu.memory();
    let mut blocks: Vec<Buffer> = (0..5).map(|_| memory.allocate(PAGE_BYTES).unwrap()).collect();
    drop(blocks.remove(3));
    drop(blocks.remove(1));
    let stitched = memory.allocate(2 * PAGE_BYTES).unwrap();
    assert!(stitched.is_stitched());
    streams.fill(Stream::DEFAULT, &stitched, 0..2 * PAGE_BYTES, 1).unwrap();
    drop(stitched);
    assert_eq!(gpu.pretend.live("queued"), 1);
    memory.trim();
    assert_eq!((gpu.pretend.live("handles"), gpu.pretend.live("mappings")), (3, 3));
    streams.device().synchronize().expect("no work met an address without memory");
}

#[test]
fn view_that_cannot_be_mapped_leaves_nothing_mapped_and_the_block_goes_to_the_top() {
    for fault in [Some(("cuMemMap", 3)), Some(("cuMemSetAccess", 1)), None] {
        let Some(gpu) = Gpu::pretend() else { return };
        let (_, memory) = gpu.memory();
        let mut blocks: Vec<Buffer> =
            (0..7).map(|_| memory.allocate(PAGE_BYTES).unwrap()).collect();
        [5, 3, 1].into_iter().for_each(|index| drop(blocks.remove(index)));
        if let Some((function, nth)) = fault {
            gpu.pretend.fail(function, 1, nth, Repeat::Once);
        }
        let block = memory.allocate(3 * PAGE_BYTES).unwrap();
        assert_eq!(block.is_stitched(), fault.is_none(), "{fault:?}");
        // Growth first gives free pages back, and a view maps its pages once more.
        let mapped = if fault.is_none() { 10 } else { 7 };
        let live = (gpu.pretend.live("mappings"), gpu.pretend.live("handles"));
        assert_eq!(live, (mapped, 7), "{fault:?}");
    }
}

#[test]
fn memory_outlives_every_handle_but_the_block() {
    let Some(gpu) = Gpu::take() else { return };
    let (streams, memory) = gpu.memory();
    let block = memory.allocate(PAGE_BYTES).unwrap();
    drop(memory);
    streams.fill(Stream::DEFAULT, &block, 0..PAGE_BYTES, 5).unwrap();
    let mut back = vec![0; PAGE_BYTES];
    streams.download(Stream::DEFAULT, (&block, 0..PAGE_BYTES), &mut back).unwrap();
    assert!(back.iter().all(|&byte| byte == 5));
}

#[test]
fn adaptors_stack_on_a_device() {
    let Some(gpu) = Gpu::take() else { return };
    let source = source(&gpu.streams());
    let limit_bytes = 4 * source.page_bytes();
    let limited = LimitSource::new(source, limit_bytes);
    let memory = CachingAllocator::new(Arc::new(limited)).unwrap();
    let _block = memory.allocate(limit_bytes).unwrap();
    assert!(memory.allocate(1).unwrap_err().out_of_memory().is_some());
}

#[test]
fn blocks_of_many_threads_hold_what_each_wrote() {
    let Some(gpu) = Gpu::take() else { return };
    let (streams, memory) = gpu.memory();
    std::thread::scope(|scope| {
        for index in 0..4_usize {
            let (streams, memory) = (&streams, &memory);
            scope.spawn(move || {
                let on = stream(index);
                for round in 0..40_usize {
                    let size_bytes = 1 + (round * 977 + index * 131) % (3 * PAGE_BYTES);
                    let block = memory.allocate_on(on, Category::Other, size_bytes).unwrap();
                    let value = (round * 4 + index) as u8;
                    streams.fill(on, &block, 0..size_bytes, value).unwrap();
                    let mut back = vec![0; size_bytes];
                    streams.download(on, (&block, 0..size_bytes), &mut back).unwrap();
                    assert!(back.iter().all(|&byte| byte == value));
                    if round % 10 == 9 {
                        memory.trim();
                    }
                }
            });
        }
    });
    memory.check_invariants();
}
