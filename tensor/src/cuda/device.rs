//! NVIDIA devices as a [`Device`].

use std::ops::Range;
use std::sync::Arc;

use lowtide_allocator::cuda::CudaDevice;
use lowtide_allocator::{Buffer, PinnedBuffer, PinnedCache};

use super::handle::{Cuda, CudaOptions};
use crate::accelerator::Accelerator;
use crate::device::{Backend, Device};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::update;

impl Device {
    /// The NVIDIA device of this number, from 0.
    ///
    /// # Errors
    /// `Cuda`, with the places that were searched, if there is no driver, no such device, or no
    /// context.
    pub fn cuda(index: usize, options: CudaOptions) -> Result<Self> {
        Self::cuda_on(&CudaDevice::open(index)?, options)
    }

    /// An NVIDIA device of a driver that was found elsewhere.
    ///
    /// # Errors
    /// `Cuda` when the driver refuses.
    pub fn cuda_on(device: &CudaDevice, options: CudaOptions) -> Result<Self> {
        let (cuda, spec) = Cuda::on(device, options)?;
        let allocator = cuda.memory.clone();
        Ok(Self::new(allocator, Backend::Cuda(Box::new(cuda)), spec))
    }

    /// The stream, kernels and libraries of an NVIDIA device; `None` on others.
    pub fn as_cuda(&self) -> Option<&Cuda> {
        match self.backend() {
            Backend::Cuda(cuda) => Some(cuda),
            _ => None,
        }
    }
}

impl Accelerator for Cuda {
    fn ring(&self, size_bytes: usize) -> Result<PinnedCache> {
        self.retried(|| Ok(self.copies.ring(size_bytes)?))
    }

    fn copy_ahead(
        &self,
        block: &Arc<Buffer>,
        parts: &[(&PinnedBuffer, Range<usize>)],
    ) -> Result<()> {
        self.retried(|| self.copies.copy_ahead(block, parts))
    }

    fn forget_ahead(&self, block: &Arc<Buffer>) {
        self.copies.forget_ahead(block);
    }

    fn reserve_updates(&self, dtype: DType) -> Result<()> {
        update::cuda::reserve(self, dtype)
    }

    fn retry(&self, call: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.retried(call)
    }
}
