use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lowtide_allocator::CachingAllocator;
use lowtide_allocator::cuda::pretend::{Order, Pretend, TestDriver, Turn, Watch};
use lowtide_allocator::cuda::{CudaDevice, CudaSource, CudaStreams};
use lowtide_tensor::Device;
use lowtide_tensor::cuda::CudaOptions;
use lowtide_tensor::cuda::pretend::kernels_below;

const PAGE_BYTES: usize = 2 << 20;

/// The kernels of this crate.
pub(crate) const KERNELS: &str = "src";

/// Kernels of these tests: small kernels, and kernels with faults.
pub(crate) const BASICS: &str = "tests/cuda/kernels";

/// More than any program needs.
const PLENTY_BYTES: usize = 1 << 40;

const DRIVER: TestDriver<'_> = TestDriver {
    package: env!("CARGO_MANIFEST_DIR"),
    scratch: env!("CARGO_TARGET_TMPDIR"),
    kernels: &[kernels_below(KERNELS), kernels_below(BASICS)],
    watch: Watch::Accesses,
    capacity_bytes: 64 << 20,
    page_bytes: PAGE_BYTES,
    context_bytes: PAGE_BYTES,
};

/// The pretend driver, or a real one, for one test at a time.
pub(crate) struct Gpu(Turn);

impl Deref for Gpu {
    type Target = Turn;

    fn deref(&self) -> &Turn {
        &self.0
    }
}

impl Gpu {
    /// A device of any driver; `None`, with a message, if there is none.
    pub(crate) fn take() -> Option<Gpu> {
        DRIVER.take().map(Gpu)
    }

    /// A pretend device in its first state; `None`, with a message, if its driver cannot be built.
    pub(crate) fn pretend() -> Option<Gpu> {
        DRIVER.pretend().map(Gpu)
    }

    /// A pretend device that watches every access of its kernels.
    pub(crate) fn watched() -> Option<Gpu> {
        DRIVER.watched().map(Gpu)
    }

    /// A driver with only the kernels of this folder.
    pub(crate) fn with_kernels(folder: &Path, watch: Watch) -> Option<Gpu> {
        let kernels = &[kernels_below(folder.to_str().expect("a path in UTF-8"))];
        TestDriver { kernels, watch, ..DRIVER }.pretend().map(Gpu)
    }

    /// Sets the order of threads, if it can be chosen.
    pub(crate) fn order(&self, order: Order) {
        if let Some(pretend) = self.pretend.get() {
            pretend.threads(order);
        }
    }

    /// The fault of the kernel that lost the device; `None` if the driver cannot tell.
    pub(crate) fn complaint(&self) -> Option<String> {
        self.pretend.get().and_then(Pretend::complaint)
    }

    /// The device without tensors, its queues, and an allocator of its memory.
    pub(crate) fn cuda_device(&self) -> CudaDevice {
        CudaDevice::of(&self.driver, 0).unwrap()
    }

    pub(crate) fn streams(&self) -> CudaStreams {
        CudaStreams::new(&self.cuda_device())
    }

    pub(crate) fn memory(&self) -> (CudaStreams, CachingAllocator) {
        let streams = self.streams();
        let source = Arc::new(CudaSource::with_capacity(&streams, PLENTY_BYTES).unwrap());
        let memory = CachingAllocator::new(source).unwrap();
        (streams, memory)
    }

    pub(crate) fn device(&self) -> Device {
        self.device_within(None)
    }

    pub(crate) fn device_within(&self, budget_bytes: Option<usize>) -> Device {
        self.device_with(CudaOptions { budget_bytes, ..Default::default() })
    }

    pub(crate) fn device_with(&self, options: CudaOptions) -> Device {
        Device::cuda_on(&self.cuda_device(), options).unwrap()
    }

    /// Runs `test` with the threads of each block in three orders; in the device's own order on a
    /// real device.
    pub(crate) fn in_every_order(&self, test: impl Fn()) {
        let Some(pretend) = self.pretend.get() else { return test() };
        for order in [Order::Forwards, Order::Backwards, Order::Drawn(7)] {
            pretend.threads(order);
            test();
        }
    }
}

/// The folder of this package.
pub(crate) fn package() -> PathBuf {
    DRIVER.package_folder()
}
