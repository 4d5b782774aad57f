use std::ops::Deref;

use lowtide_allocator::cuda::CudaDevice;
use lowtide_allocator::cuda::pretend::{Order, TestDriver, Turn, Watch};
use lowtide_tensor::Device;
use lowtide_tensor::cuda::CudaOptions;

const PAGE_BYTES: usize = 2 << 20;

const DRIVER: TestDriver<'_> = TestDriver {
    package: env!("CARGO_MANIFEST_DIR"),
    scratch: env!("CARGO_TARGET_TMPDIR"),
    kernels: &["src/cuda/kernels"],
    watch: Watch::Accesses,
    capacity_bytes: 64 << 20,
    page_bytes: PAGE_BYTES,
    context_bytes: PAGE_BYTES,
};

/// The pretend driver, or any, for one test at a time.
pub(crate) struct Gpu(Turn);

impl Deref for Gpu {
    type Target = Turn;

    fn deref(&self) -> &Turn {
        &self.0
    }
}

impl Gpu {
    /// A device of any driver; `None`, said aloud, where there is none.
    pub(crate) fn take() -> Option<Gpu> {
        DRIVER.take().map(Gpu)
    }

    /// A pretend device as after its start; `None`, said aloud, where its driver cannot be built.
    pub(crate) fn pretend() -> Option<Gpu> {
        DRIVER.pretend().map(Gpu)
    }

    pub(crate) fn device(&self) -> Device {
        self.device_within(None)
    }

    pub(crate) fn device_within(&self, budget_bytes: Option<usize>) -> Device {
        self.device_with(CudaOptions { budget_bytes, ..Default::default() })
    }

    pub(crate) fn device_with(&self, options: CudaOptions) -> Device {
        Device::cuda_on(&CudaDevice::of(&self.driver, 0).unwrap(), options).unwrap()
    }

    /// Runs `test` with the threads of each block in three orders; in its own on a real device.
    pub(crate) fn in_every_order(&self, test: impl Fn()) {
        let Some(pretend) = self.pretend.get() else { return test() };
        for order in [Order::Forwards, Order::Backwards, Order::Drawn(7)] {
            pretend.threads(order);
            test();
        }
    }
}
