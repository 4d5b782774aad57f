use cudarc::driver::CudaContext;
use lowtide_allocator::cuda::{CudaDevice, CudaError, CudaSource, CudaStreams, Driver, Libraries};
use lowtide_allocator::{
    AllocError, CachingAllocator, Fence, Repeat, SimSource, SourceError, Stream,
};

use crate::common::PAGE_BYTES;
use crate::example;
use crate::gpu::{CONTEXT_BYTES, DEVICE_BYTES, Gpu, stream};

const ILLEGAL_ADDRESS: i32 = 700;
const OUT_OF_MEMORY: i32 = 2;
const INVALID_VALUE: i32 = 1;

#[test]
fn driver_and_device_say_who_they_are() {
    let Some(gpu) = Gpu::pretend() else { return };
    assert_eq!(gpu.driver.version(), Ok(13000));
    assert_eq!(gpu.driver.device_count(), Ok(4));
    assert_eq!(gpu.device().name().as_deref(), Ok("pretend GPU"));
    let error = CudaDevice::of(&gpu.driver, 4).unwrap_err();
    assert_eq!(error, CudaError::NoDevice { index: 4, count: 4 });
    let memory = gpu.device().memory().unwrap();
    assert_eq!(memory.total_bytes, DEVICE_BYTES);
    assert_eq!(memory.free_bytes, DEVICE_BYTES - CONTEXT_BYTES);
}

#[test]
fn driver_that_does_not_start_is_an_error_and_may_start_later() {
    let Some(gpu) = Gpu::pretend() else { return };
    let folder = gpu.driver.path().parent().unwrap().to_path_buf();
    let libraries = Libraries::in_folders([folder]);
    const NO_DEVICE: i32 = 100;
    gpu.pretend.fail("cuInit", NO_DEVICE, 1, Repeat::Once);
    let error = Driver::open(&libraries).unwrap_err();
    assert!(matches!(error, CudaError::Call { call: "cuInit", code: NO_DEVICE, .. }), "{error}");
    Driver::open(&libraries).unwrap();
}

#[test]
fn report_tells_what_is_outside_the_allocator() {
    let Some(gpu) = Gpu::pretend() else { return };
    gpu.pretend.take(5 * PAGE_BYTES);
    let source = CudaSource::new(&gpu.streams()).map(std::sync::Arc::new).unwrap();
    let memory = CachingAllocator::new(source.clone()).unwrap();
    assert_eq!(memory.capacity_bytes(), DEVICE_BYTES - CONTEXT_BYTES - 5 * PAGE_BYTES);
    let _block = memory.allocate(2 * PAGE_BYTES).unwrap();
    let report = source.report().unwrap();
    assert_eq!(report.committed_bytes, 2 * PAGE_BYTES);
    assert_eq!(report.outside_bytes, CONTEXT_BYTES + 5 * PAGE_BYTES);
    gpu.pretend.take(7 * PAGE_BYTES);
    assert_eq!(source.report().unwrap().outside_bytes, CONTEXT_BYTES + 7 * PAGE_BYTES);
}

#[test]
fn lost_device_is_no_lack_of_memory() {
    let Some(gpu) = Gpu::pretend() else { return };
    let (_, memory) = gpu.memory();
    for code in [ILLEGAL_ADDRESS, OUT_OF_MEMORY, INVALID_VALUE] {
        gpu.pretend.fail("cuMemCreate", code, 1, Repeat::Forever);
        let error = memory.allocate(PAGE_BYTES).unwrap_err();
        let operation = "cuMemCreate";
        match code {
            OUT_OF_MEMORY => assert_eq!(error.out_of_memory().unwrap().missing_bytes, 0),
            ILLEGAL_ADDRESS => {
                let AllocError::Source(cause) = error else { panic!("{error}") };
                assert_eq!(cause, SourceError::DeviceFault { operation, code });
            }
            _ => {
                let AllocError::Source(cause) = error else { panic!("{error}") };
                let size_bytes = PAGE_BYTES;
                assert_eq!(cause, SourceError::System { operation, size_bytes, code });
            }
        }
    }
    gpu.pretend.fail("cuMemCreate", 0, 0, Repeat::Once);
    memory.allocate(PAGE_BYTES).unwrap();
}

#[test]
fn error_of_a_call_has_the_name_that_the_driver_gives_it() {
    let Some(gpu) = Gpu::pretend() else { return };
    let device = gpu.device();
    for (code, name, is_fault) in [
        (ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", true),
        (INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", false),
        // A code that the bindings do not have.
        (12345, "a code without a name", false),
    ] {
        gpu.pretend.fail("cuCtxSynchronize", code, 1, Repeat::Once);
        let error = device.synchronize().unwrap_err();
        let call = "cuCtxSynchronize";
        assert_eq!(error, CudaError::Call { call, code, name: name.to_owned() });
        assert_eq!((error.is_fault(), error.is_out_of_memory()), (is_fault, false));
    }
}

#[test]
fn bytes_outside_a_block_are_refused_before_the_driver_is_asked() {
    let Some(gpu) = Gpu::pretend() else { return };
    let (streams, memory) = gpu.memory();
    let block = memory.allocate(1000).unwrap();
    let elsewhere = CachingAllocator::new(SimSource::with_capacity(1 << 20)).unwrap();
    let other = elsewhere.allocate(1000).unwrap();
    let calls = gpu.pretend.calls("");
    let mut bytes = [0; 1001];
    let on = Stream::DEFAULT;
    let refused = [
        streams.fill(on, &block, 0..1001, 1),
        streams.fill(on, &block, 1001..1001, 1),
        streams.fill(on, &other, 0..1, 1),
        streams.upload(on, &bytes, (&block, 0..bytes.len())),
        streams.upload(on, &bytes[..10], (&block, 0..11)),
        streams.download(on, (&block, 0..1000), &mut bytes),
        streams.download(on, (&other, 0..1001), &mut bytes),
        streams.copy(on, (&block, 0..10), (&block, 20..31)),
        streams.copy(on, (&other, 0..10), (&block, 0..10)),
    ];
    for (index, result) in refused.into_iter().enumerate() {
        assert!(matches!(result, Err(CudaError::NotOfDevice { .. })), "{index}: {result:?}");
    }
    assert_eq!(gpu.pretend.calls(""), calls);
}

#[test]
fn copies_read_and_write_what_they_say() {
    let Some(gpu) = Gpu::take() else { return };
    let (streams, memory) = gpu.memory();
    let on = stream(3);
    let [one, two] =
        [0, 1].map(|_| memory.allocate_on(on, memory.current_category(), 5000).unwrap());
    let bytes: Vec<u8> = (0..5000_u32).map(|i| (i % 251) as u8).collect();
    streams.upload(on, &bytes, (&one, 0..bytes.len())).unwrap();
    streams.fill(on, &two, 0..5000, 9).unwrap();
    streams.copy(on, (&one, 100..4200), (&two, 50..4150)).unwrap();
    let mut back = vec![0; 5000];
    streams.download(on, (&two, 0..5000), &mut back).unwrap();
    let mut expected = vec![9; 5000];
    expected[50..4150].copy_from_slice(&bytes[100..4200]);
    assert!(back == expected);
}

#[test]
fn adopted_queue_is_of_the_device_and_alone_on_its_stream() {
    let Some(gpu) = Gpu::pretend() else { return };
    let streams = gpu.streams();
    let own = CudaContext::new(0).unwrap().new_stream().unwrap();
    let foreign = CudaContext::new(1).unwrap().new_stream().unwrap();
    let error = streams.adopt(stream(1), foreign).unwrap_err();
    assert_eq!(error, CudaError::StreamTaken { stream: stream(1) });
    streams.adopt(stream(1), own.clone()).unwrap();
    let error = streams.adopt(stream(1), own).unwrap_err();
    assert_eq!(error, CudaError::StreamTaken { stream: stream(1) });
}

#[test]
fn streams_that_nothing_was_enqueued_on_are_not_made_for_a_wait() {
    let Some(gpu) = Gpu::pretend() else { return };
    let streams = gpu.streams();
    streams.wait(stream(1), stream(2)).unwrap();
    streams.wait_host(stream(2)).unwrap();
    assert_eq!(gpu.pretend.live("streams"), 0);
}

#[test]
fn current_context_of_a_thread_is_left_alone() {
    let Some(gpu) = Gpu::pretend() else { return };
    let other = CudaContext::new(1).unwrap();
    other.bind_to_thread().unwrap();
    let (_, memory) = gpu.memory();
    drop(memory.allocate(PAGE_BYTES).unwrap());
    memory.trim();
    // A stream that is made without binding this device again would belong to the other device.
    assert_eq!(cudarc::driver::result::ctx::get_current().unwrap(), Some(other.cu_ctx()));
}

#[test]
fn cudarc_example_runs() {
    let Some(gpu) = Gpu::pretend() else { return };
    for seed in 0..10 {
        gpu.pretend.schedule(seed);
        let line = example::run(&gpu.device()).unwrap();
        // Two blocks of 1 MiB in pages of 4 KiB. In each step the copy stream takes a block that
        // both streams used.
        assert!(line.starts_with("pretend GPU: 20 blocks by 2 calls of the source"), "{line}");
        assert!(line.contains("peak 2097152 bytes, outside 12288 bytes"), "{line}");
    }
}

#[test]
fn streams_of_two_devices_are_apart() {
    let Some(gpu) = Gpu::pretend() else { return };
    let second = CudaDevice::of(&gpu.driver, 1).unwrap();
    let (here, memory) = gpu.memory();
    let block = memory.allocate(100).unwrap();
    let there = CudaStreams::new(&second);
    let error = there.fill(Stream::DEFAULT, &block, 0..100, 1).unwrap_err();
    assert!(matches!(error, CudaError::NotOfDevice { .. }), "{error}");
    here.fill(Stream::DEFAULT, &block, 0..100, 1).unwrap();
    here.synchronize(Stream::DEFAULT).unwrap();
}
