use std::ops::Deref;

use lowtide_allocator::cuda::CudaDevice;
use lowtide_allocator::cuda::pretend::{TestDriver, Turn};
use lowtide_tensor::cuda::CudaOptions;
use lowtide_tensor::{Device, TensorError};

use crate::pretend::DRIVER;

/// The lock on the pretend driver, or on any driver, for one test at a time.
pub(crate) struct Gpu(Turn);

impl Deref for Gpu {
    type Target = Turn;

    fn deref(&self) -> &Turn {
        &self.0
    }
}

impl Gpu {
    /// A device of any driver. Without a driver: `None`, with a printed note.
    pub(crate) fn take() -> Option<Gpu> {
        DRIVER.take().map(Gpu)
    }

    /// A newly started pretend device. If its driver cannot be built: `None`, with a printed note.
    pub(crate) fn pretend() -> Option<Gpu> {
        DRIVER.pretend().map(Gpu)
    }

    /// A newly started pretend device with pages of this size.
    pub(crate) fn with_pages(page_bytes: usize) -> Option<Gpu> {
        let context_bytes = page_bytes;
        TestDriver { page_bytes, context_bytes, ..DRIVER }.pretend().map(Gpu)
    }

    pub(crate) fn device(&self) -> Device {
        self.try_device_within(None).unwrap()
    }

    pub(crate) fn try_device_within(
        &self,
        budget_bytes: Option<usize>,
    ) -> Result<Device, TensorError> {
        let options = CudaOptions { budget_bytes, ..Default::default() };
        Device::cuda_on(&CudaDevice::of(&self.driver, 0)?, options)
    }

    /// Kinds of driver objects that were not released, with their counts.
    pub(crate) fn left(&self) -> Vec<(&'static str, u64)> {
        self.pretend.left()
    }
}
