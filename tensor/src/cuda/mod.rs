//! NVIDIA devices: [`Device::cuda`](crate::Device::cuda), and what a kernel has there.
//!
//! All work is enqueued on one stream, in program order. The host waits where a value is read and
//! where bytes that it lends are copied, and nowhere else. What an operation says about values is
//! read, too: whether all labels of a cross-entropy are classes.

pub(crate) mod kernels;
mod operands;

use std::ops::Range;
use std::sync::Arc;

use bytemuck::Pod;
use lowtide_allocator::Stream;
use lowtide_allocator::cuda::{
    Argument, CompileError, CudaDevice, CudaSource, CudaStreams, Grid, Kernel, KernelCompiler,
};

use crate::device::Backend;
use crate::{Device, Result};
use kernels::{Image, Loaded};
pub use operands::{CudaOperands, Place};

/// Which device, and how much of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct CudaOptions {
    /// The device's number, from 0.
    pub index: usize,
    /// The device behaves and reports as one with this much memory; all that is free on it now if
    /// absent.
    pub budget_bytes: Option<usize>,
}

/// What kernels are enqueued with.
pub struct Cuda {
    streams: CudaStreams,
    loaded: Loaded,
}

impl Cuda {
    /// The device of a driver that was found elsewhere, and its memory.
    pub(crate) fn on(
        device: &CudaDevice,
        budget_bytes: Option<usize>,
    ) -> Result<(Cuda, Arc<CudaSource>)> {
        let streams = CudaStreams::new(device);
        let source = match budget_bytes {
            Some(budget_bytes) => CudaSource::with_capacity(&streams, budget_bytes)?,
            None => CudaSource::new(&streams)?,
        };
        let loaded = Loaded::new(device);
        Ok((Cuda { streams, loaded }, Arc::new(source)))
    }

    /// The device.
    pub fn device(&self) -> &CudaDevice {
        self.streams.device()
    }

    /// What compiles this crate's kernels for just this device.
    ///
    /// # Errors
    /// There is none on this machine that serves the device, as the error says: the driver makes
    /// their code of the PTX in this library.
    pub fn compiler(&self) -> Result<&KernelCompiler, &CompileError> {
        self.loaded.compiler()
    }

    /// Enqueues a kernel of this crate, whose source says what it does with its arguments.
    #[expect(unsafe_code, reason = "the one place that launches kernels")]
    pub(crate) fn launch(
        &self,
        image: Image,
        kernel: &Kernel,
        grid: Grid,
        arguments: &[Argument<'_>],
    ) -> Result<()> {
        let function = self.loaded.function(image, kernel)?;
        // SAFETY: 1. the declarations of this crate are those of its own images, which tests load.
        // 2. Operations give the bytes that their layouts cover, which the kernels stay inside:
        // tests run each of them on a device that watches every access.
        Ok(unsafe { self.streams.launch(Stream::DEFAULT, &function, grid, arguments) }?)
    }

    /// Sets every byte of `range` of a place's block.
    pub(crate) fn fill(&self, place: &Place<'_>, range: Range<usize>, value: u8) -> Result<()> {
        Ok(self.streams.fill(Stream::DEFAULT, place.block(), range, value)?)
    }

    /// Copies the bytes of one place to those of another, which has as many.
    pub(crate) fn copy(&self, from: &Place<'_>, to: &Place<'_>) -> Result<()> {
        let (from, to) = ((from.block(), from.bytes()), (to.block(), to.bytes()));
        Ok(self.streams.copy(Stream::DEFAULT, from, to)?)
    }

    /// The elements from the first to the last one of a place, when all work before is done.
    pub(crate) fn read<T: Pod>(&self, place: &Place<'_>) -> Result<Vec<T>> {
        let bytes = place.bytes();
        let mut values = vec![T::zeroed(); bytes.len() / size_of::<T>()];
        let to = bytemuck::cast_slice_mut(&mut values);
        self.streams.download(Stream::DEFAULT, (place.block(), bytes), to)?;
        Ok(values)
    }

    /// Overwrites the elements from the first to the last one of a place.
    pub(crate) fn write<T: Pod>(&self, place: &Place<'_>, values: &[T]) -> Result<()> {
        let to = (place.block(), place.bytes());
        Ok(self.streams.upload(Stream::DEFAULT, bytemuck::cast_slice(values), to)?)
    }
}

impl Device {
    /// What kernels are enqueued with on an NVIDIA device; `None` on others.
    pub fn as_cuda(&self) -> Option<&Cuda> {
        match self.backend() {
            Backend::Cuda(cuda) => Some(cuda),
            _ => None,
        }
    }
}
