//! Ranks with pretend devices of their own.

use std::sync::Arc;
use std::time::Duration;

use lowtide_allocator::cuda::CudaDevice;
use lowtide_allocator::cuda::pretend::{TestDriver, Turn};
use lowtide_ranks::{Collectives, ThreadRank, nccl, threads};
use lowtide_tensor::Device;
use lowtide_tensor::cuda::CudaOptions;
use lowtide_tensor::cuda::pretend::test_driver;

pub(crate) use super::values::*;

pub(crate) const DRIVER: TestDriver<'_> =
    test_driver(env!("CARGO_MANIFEST_DIR"), env!("CARGO_TARGET_TMPDIR"));

/// Largest number of ranks in a test: the pretend driver has four devices.
pub(crate) const MOST: usize = 4;

pub(crate) fn device(gpu: &Turn, index: usize) -> Device {
    let device = CudaDevice::of(&gpu.driver, index).expect("it has as many");
    Device::cuda_on(&device, CudaOptions::default()).expect("memory")
}

/// Runs `work` on `count` ranks and returns the results by rank. Without a driver, or with too few
/// devices, the ranks run on the processor, and the skip is printed.
pub(crate) fn on_ranks<R: Send>(
    count: usize,
    timeout: Duration,
    work: impl Fn(Box<dyn Collectives>, Device) -> R + Sync,
) -> Vec<R> {
    let gpu = DRIVER.take().filter(|gpu| has_devices(gpu, count));
    let gpu = gpu.as_ref();
    on_threads(count, timeout, |rank| {
        let Some(gpu) = gpu else { return work(Box::new(rank), cpu()) };
        let device = device(gpu, rank.rank().index);
        let rank = nccl(Arc::new(rank), &device, timeout).expect("all join");
        work(Box::new(rank), device)
    })
}

fn has_devices(gpu: &Turn, count: usize) -> bool {
    let found = gpu.driver.device_count().expect("a number");
    if found < count {
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        println!("skipped: {test}: {count} ranks need as many devices, here are {found}");
    }
    found >= count
}

/// Runs `work` on `count` ranks that are threads and have no device yet.
pub(crate) fn on_threads<R: Send>(
    count: usize,
    timeout: Duration,
    work: impl Fn(ThreadRank) -> R + Sync,
) -> Vec<R> {
    let work = &work;
    std::thread::scope(|scope| {
        let ranks = threads(count, timeout).into_iter();
        let handles: Vec<_> = ranks.map(|rank| scope.spawn(move || work(rank))).collect();
        handles.into_iter().map(|handle| handle.join().expect("no panic")).collect()
    })
}
