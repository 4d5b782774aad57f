//! NVIDIA devices: [`Device::cuda`](crate::Device::cuda), and what a kernel has there.
//!
//! What computes is enqueued on one stream, in program order, and copies from and to the host on
//! another one. A copy waits for work on the memory that it goes to, and for all work where it
//! reads a result; work waits for the copies of its operands. The host waits where a value is read,
//! and nowhere else, unless it has no page-locked memory left for what is still to be copied.
//! What kernels find wrong with values, a label that is no class, is told to who reads next.

mod copies;
pub(crate) mod kernels;
mod operands;

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytemuck::Pod;
use lowtide_allocator::Stream;
pub use lowtide_allocator::cuda::Precision;
use lowtide_allocator::cuda::{
    Argument, Blas, CompileError, CudaDevice, CudaSource, CudaStreams, Grid, Kernel, KernelCompiler,
};

use crate::device::Backend;
use crate::{Device, Result};
use copies::Copies;
use kernels::{Image, Loaded};
pub use operands::{CudaOperands, Place};

/// How much of a device, and how it computes.
#[derive(Clone, Copy, Debug, Default)]
pub struct CudaOptions {
    /// The device behaves and reports as one with this much memory; all that is free on it now if
    /// absent.
    pub budget_bytes: Option<usize>,
    /// What multiplies matrices.
    pub products: Products,
}

/// What multiplies matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Products {
    /// cuBLASLt, where it is found and has a way to do the product without scratch memory; else
    /// the kernel of this crate.
    Library(Precision),
    /// The kernel of this crate, in f32.
    Own,
}

impl Default for Products {
    fn default() -> Self {
        Products::Library(Precision::F32)
    }
}

/// What kernels are enqueued with.
pub struct Cuda {
    streams: CudaStreams,
    copies: Copies,
    loaded: Loaded,
    products: Products,
    /// Absent before it is first asked for; then what was found.
    blas: Mutex<Option<Option<Blas>>>,
}

impl Cuda {
    /// The device of a driver that was found elsewhere, and its memory.
    pub(crate) fn on(
        device: &CudaDevice,
        CudaOptions { budget_bytes, products }: CudaOptions,
    ) -> Result<(Cuda, Arc<CudaSource>)> {
        let streams = CudaStreams::new(device);
        let source = match budget_bytes {
            Some(budget_bytes) => CudaSource::with_capacity(&streams, budget_bytes)?,
            None => CudaSource::new(&streams)?,
        };
        let (copies, loaded) = (Copies::new(&streams), Loaded::new(device));
        Ok((Cuda { streams, copies, loaded, products, blas: Mutex::default() }, Arc::new(source)))
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

    /// The library of matrix products and how precise they are; `None` where the kernel of this
    /// crate does them.
    ///
    /// # Errors
    /// The library is there and does not start.
    pub(crate) fn blas(&self) -> Result<Option<(Blas, Precision)>> {
        let Products::Library(precision) = self.products else { return Ok(None) };
        // It is written whole, so a poisoned lock is taken over.
        let mut blas = self.blas.lock().unwrap_or_else(PoisonError::into_inner);
        let found = match &*blas {
            Some(found) => found.clone(),
            None => {
                let found = match Blas::of(self.device()) {
                    Ok(found) => Some(found),
                    Err(error) if error.is_unsupported() => None,
                    Err(error) => return Err(error.into()),
                };
                blas.insert(found).clone()
            }
        };
        Ok(found.map(|blas| (blas, precision)))
    }

    /// The streams of the device, of which all but copies from and to the host is on the default
    /// one.
    pub(crate) fn streams(&self) -> &CudaStreams {
        &self.streams
    }

    /// Loads a kernel of this crate, so that a later launch has nothing to load.
    pub(crate) fn reserve(&self, image: Image, kernel: &Kernel) -> Result<()> {
        self.loaded.function(image, kernel)?;
        Ok(())
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
        self.copies.download(place)
    }

    /// Overwrites what is from the first to the last element of a place.
    pub(crate) fn write(&self, place: &Place<'_>, bytes: &[u8]) -> Result<()> {
        self.copies.overwrite(bytes, place)
    }

    /// [`Cuda::write`] to memory that was allocated for copies, and that nobody has used since.
    pub(crate) fn write_new(&self, place: &Place<'_>, bytes: &[u8]) -> Result<()> {
        self.copies.upload(bytes, place.block(), place.bytes().start)
    }

    /// Lets `launch` tell a kernel where to say which label is bad; who reads a value next is told.
    pub(crate) fn with_bad_label(
        &self,
        launch: impl FnOnce(Argument<'_>) -> Result<()>,
    ) -> Result<()> {
        self.copies.with_bad_label(launch)
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
