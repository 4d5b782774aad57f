//! lowtide's allocator in code that is written with cudarc.
//!
//! `cargo run -p lowtide-allocator --features cuda --example cudarc`

use std::error::Error;
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaContext, CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop};
use lowtide_allocator::cuda::{CudaDevice, CudaSource, CudaStreams};
use lowtide_allocator::{Buffer, CachingAllocator, Category, Stream};

/// A block as a slice of cudarc's: cudarc's copies and fills take it like a `CudaSlice`. Its
/// `LaunchArgs::arg` does not: pass a kernel the address, `let x = block.address()` and `arg(&x)`.
struct Floats {
    block: Buffer,
    queue: Arc<CudaStream>,
}

impl DeviceSlice<f32> for Floats {
    fn len(&self) -> usize {
        self.block.size_bytes() / size_of::<f32>()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        &self.queue
    }
}

// The allocator keeps streams in order, so no event is recorded here.
impl DevicePtr<f32> for Floats {
    fn device_ptr<'a>(&'a self, _: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        (self.block.address(), SyncOnDrop::Sync(None))
    }
}

impl DevicePtrMut<f32> for Floats {
    fn device_ptr_mut<'a>(&'a mut self, _: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        (self.block.address(), SyncOnDrop::Sync(None))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    match CudaDevice::open(0) {
        Ok(device) => println!("{}", run(&device)?),
        Err(error) => println!("not run: {error}"),
    }
    Ok(())
}

/// Runs ten steps on two streams of cudarc's. Returns their cost.
pub(crate) fn run(device: &CudaDevice) -> Result<String, Box<dyn Error>> {
    // cudarc uses the context that the device has already: the primary one.
    let context = CudaContext::new(device.index())?;
    let [compute, copies] = [context.new_stream()?, context.new_stream()?];
    let streams = CudaStreams::new(device);
    let on_copies = Stream::new(1).ok_or("there are 64 streams")?;
    streams.adopt(Stream::DEFAULT, compute.clone())?;
    streams.adopt(on_copies, copies.clone())?;

    let source = Arc::new(CudaSource::new(&streams)?);
    let memory = CachingAllocator::new(source.clone())?;
    let batch: Vec<f32> = (0..1 << 18).map(|i| i as f32).collect();
    for _ in 0..10 {
        let allocate = |stream, queue: &Arc<CudaStream>| {
            let block = memory.allocate_on(stream, Category::Activation, batch.len() * 4)?;
            Ok::<_, Box<dyn Error>>(Floats { block, queue: queue.clone() })
        };
        let mut input = allocate(on_copies, &copies)?;
        copies.memcpy_htod(&batch, &mut input)?;
        let mut result = allocate(Stream::DEFAULT, &compute)?;
        // The compute stream reads a block of the copy stream. So it waits, and the block records
        // the use.
        compute.join(&copies)?;
        input.block.record_use(Stream::DEFAULT);
        compute.memset_zeros(&mut result)?;
        compute.memcpy_dtod(&input, &mut result)?;
        assert_eq!(compute.clone_dtoh(&result)?, batch);
    }
    let statistics = memory.statistics();
    let report = source.report()?;
    Ok(format!(
        "{}: {} blocks by {} calls of the source and {} waits; peak {} bytes, outside {} bytes",
        device.name()?,
        statistics.allocations,
        statistics.source_calls,
        statistics.waits,
        statistics.reserved.peak_bytes,
        report.outside_bytes,
    ))
}
