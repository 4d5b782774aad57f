use std::sync::{Mutex, MutexGuard, PoisonError};

use lowtide_allocator::cuda::pretend::Pretend;
use lowtide_allocator::cuda::{CudaDevice, Driver, Libraries};
use lowtide_tensor::cuda::CudaOptions;
use lowtide_tensor::{Device, TensorError};

use crate::pretend;

const DEVICE_BYTES: usize = 64 << 20;
const PAGE_BYTES: usize = 2 << 20;

/// The pretend driver, for one test at a time. When it goes, nothing may be left on it.
pub(crate) struct Gpu {
    driver: Driver,
    pub(crate) pretend: Pretend,
    page_bytes: usize,
    _turn: MutexGuard<'static, ()>,
}

impl Gpu {
    /// A device as after its start; `None`, said aloud, where the driver cannot be built.
    pub(crate) fn take() -> Option<Gpu> {
        Gpu::with_pages(PAGE_BYTES)
    }

    /// One with pages of this size.
    pub(crate) fn with_pages(page_bytes: usize) -> Option<Gpu> {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = pretend::folder()?;
        let driver = Driver::open(&Libraries::in_folders([folder])).unwrap();
        let pretend = Pretend::of(&driver).expect("the library that was just built");
        let gpu = Gpu { driver, pretend, page_bytes, _turn: turn };
        gpu.reset();
        Some(gpu)
    }

    /// Nothing may hold on to a device from before.
    pub(crate) fn reset(&self) {
        self.pretend.reset(DEVICE_BYTES, self.page_bytes, self.page_bytes);
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

    /// What nobody gave back, and how many.
    pub(crate) fn left(&self) -> Vec<(&'static str, u64)> {
        let kinds = ["handles", "mappings", "ranges", "streams", "events", "contexts", "queued"];
        kinds
            .map(|kind| (kind, self.pretend.live(kind)))
            .into_iter()
            .filter(|&(_, n)| n > 0)
            .collect()
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.pretend.complaint(), None);
            assert_eq!(self.left(), [], "left on the device");
        }
    }
}
