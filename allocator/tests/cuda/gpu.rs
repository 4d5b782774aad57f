use std::ops::Deref;
use std::sync::Arc;

use lowtide_allocator::cuda::pretend::{TestDriver, Turn, Watch};
use lowtide_allocator::cuda::{CudaDevice, CudaSource, CudaStreams};
use lowtide_allocator::{CachingAllocator, Stream};

use crate::common::{PAGE_BYTES, PLENTY};

/// Memory that a context takes on the pretend device.
pub(crate) const CONTEXT_BYTES: usize = 3 * PAGE_BYTES;

/// Capacity of the device of a test that gives no size.
pub(crate) const DEVICE_BYTES: usize = 32 << 20;

const DRIVER: TestDriver<'_> = TestDriver {
    package: env!("CARGO_MANIFEST_DIR"),
    scratch: env!("CARGO_TARGET_TMPDIR"),
    kernels: &[],
    watch: Watch::Barriers,
    capacity_bytes: DEVICE_BYTES,
    page_bytes: PAGE_BYTES,
    context_bytes: CONTEXT_BYTES,
};

/// The pretend driver, or any driver, for one test at a time.
pub(crate) struct Gpu(Turn);

impl Deref for Gpu {
    type Target = Turn;

    fn deref(&self) -> &Turn {
        &self.0
    }
}

impl Gpu {
    /// Takes a device of any driver. Prints a skip and returns `None` if there is no driver.
    pub(crate) fn take() -> Option<Gpu> {
        DRIVER.take().map(Gpu)
    }

    /// Takes the pretend driver in its initial state. Prints a skip and returns `None` if it cannot
    /// be built.
    pub(crate) fn pretend() -> Option<Gpu> {
        DRIVER.pretend().map(Gpu)
    }

    pub(crate) fn with_capacity(capacity_bytes: usize) -> Option<Gpu> {
        TestDriver { capacity_bytes, ..DRIVER }.pretend().map(Gpu)
    }

    /// Kinds and numbers of objects that are left on the device.
    pub(crate) fn left(&self) -> Vec<(&'static str, u64)> {
        self.pretend.left()
    }

    pub(crate) fn device(&self) -> CudaDevice {
        CudaDevice::of(&self.driver, 0).unwrap()
    }

    pub(crate) fn streams(&self) -> CudaStreams {
        CudaStreams::new(&self.device())
    }

    pub(crate) fn memory(&self) -> (CudaStreams, CachingAllocator) {
        let streams = self.streams();
        let memory = CachingAllocator::new(source(&streams)).unwrap();
        (streams, memory)
    }
}

/// A source with a stated capacity beyond the needs of any program.
pub(crate) fn source(streams: &CudaStreams) -> Arc<CudaSource> {
    Arc::new(CudaSource::with_capacity(streams, PLENTY).unwrap())
}

pub(crate) fn stream(index: usize) -> Stream {
    Stream::new(index).unwrap()
}
