//! NVIDIA devices: [`Device::cuda`](crate::Device::cuda), and what a kernel has there.
//!
//! What computes is enqueued on one stream, in program order, and copies from and to the host on
//! another one. A copy waits for work on the memory that it goes to, and for all work where it
//! reads a result; work waits for the copies of its operands. The host waits where a value is read,
//! and nowhere else, unless it has no page-locked memory left for what is still to be copied.
//! What kernels find wrong with values, a label that is no class, is told to who reads next.

mod copies;
pub mod gate;
pub(crate) mod kernels;
mod library;
mod messages;
mod operands;
#[cfg(feature = "pretend")]
pub mod pretend;

use std::ops::Range;
use std::sync::Arc;

use bytemuck::Pod;
use lowtide_allocator::cuda::{Architecture, CudaDevice, CudaSource, CudaStreams, DeviceMemory};
use lowtide_allocator::{
    Buffer, CachingAllocator, MemorySource, PinnedBuffer, PinnedCache, Stream,
};

use crate::cuda::gate::{Argument, Grid, Signature};
use crate::device::{Backend, Device};
use crate::error::Result;
pub(crate) use copies::Checked;
use copies::Copies;
pub use gate::Precision;
use gate::{Blas, BlasError, CompileError, KernelCompiler, Product};
use kernels::{Image, Loaded};
use library::Library;
pub use library::{ProductCounts, ProductsBy};
pub use operands::{CudaOperands, DeviceOperand};

/// Kept free on a device beside what was taken when it was opened: libraries load kernels when
/// these are first used, and the driver grows what it has for launches.
const RESERVE_BYTES_MAX: usize = 256 << 20;

/// Of a small device, only this part of what is free is kept.
const RESERVE_PART: usize = 64;

/// The first devices with tf32.
const TF32_SINCE: Architecture = Architecture { major: 8, minor: 0 };

/// How much of a device, and how it computes.
#[derive(Clone, Copy, Debug, Default)]
pub struct CudaOptions {
    /// The device behaves and reports as one with this much memory for tensors. Absent, or more
    /// than there is: all that is free once kernels and libraries are loaded, but for a reserve.
    pub budget_bytes: Option<usize>,
    /// What multiplies matrices, and how precisely; convolutions are as precise.
    pub products: Products,
}

/// What multiplies matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Products {
    /// cuBLASLt, where it is found and has a way to do the product; else the kernel of this crate.
    Library(Precision),
    /// The kernel of this crate, which adds half types up in f32 without tensor cores.
    Own,
}

impl Default for Products {
    fn default() -> Self {
        Products::Library(Precision::F32)
    }
}

/// Compiles every kernel of this crate for every type, on all cores, so that none is compiled when
/// it is first launched: after an installation, say. The compiler's
/// [cache](KernelCompiler::cache) keeps them; how many there are.
///
/// # Errors
/// That of the first that is not compiled; the others are.
pub fn compile_kernels(compiler: &KernelCompiler) -> Result<usize, CompileError> {
    let cubins = kernels::cubins(compiler, &kernels::all_images());
    let kept: Vec<Vec<u8>> = cubins.into_iter().collect::<Result<_, _>>()?;
    Ok(kept.len())
}

/// What kernels are enqueued with.
pub struct Cuda {
    streams: CudaStreams,
    copies: Copies,
    loaded: Loaded,
    library: Library,
    is_in_tf32: bool,
    /// Of the device, for what it caches when the driver needs memory.
    memory: CachingAllocator,
    outside_bytes: usize,
}

impl Cuda {
    /// The device of a driver that was found elsewhere, and its memory.
    pub(crate) fn on(
        device: &CudaDevice,
        CudaOptions { budget_bytes, products }: CudaOptions,
    ) -> Result<(Cuda, CachingAllocator)> {
        let streams = CudaStreams::new(device);
        let (copies, loaded) = (Copies::new(&streams), Loaded::new(device));
        let library = Library::new(device, products);
        let is_in_tf32 = products == Products::Library(Precision::Tf32)
            && device.architecture()?.is_none_or(|architecture| architecture >= TF32_SINCE);
        // First what takes memory outside the allocator. What fails now is tried again when it is
        // first used, and the error is told then.
        loaded.load_all();
        drop(library.open());
        let DeviceMemory { total_bytes, free_bytes } = device.memory()?;
        let free_bytes = free_bytes - RESERVE_BYTES_MAX.min(free_bytes / RESERVE_PART);
        let mut source = CudaSource::with_capacity(&streams, free_bytes)?;
        let most_bytes = free_bytes / source.page_bytes() * source.page_bytes();
        let budget_bytes = budget_bytes.map_or(most_bytes, |bytes| bytes.min(most_bytes));
        source = CudaSource::with_capacity(&streams, budget_bytes)?;
        let memory = CachingAllocator::new(source)?;
        let outside_bytes = total_bytes - most_bytes;
        let allocator = memory.clone();
        let cuda = Cuda { streams, copies, loaded, library, is_in_tf32, memory, outside_bytes };
        Ok((cuda, allocator))
    }

    /// What of the device's memory is not for tensors: what was taken when the device was opened,
    /// by its context, kernels, libraries and other programs, and the reserve.
    pub fn outside_bytes(&self) -> usize {
        self.outside_bytes
    }

    /// Makes a call of the driver, and makes it again if the driver had no memory for it, once the
    /// allocator has given its cache back. A call that is refused has enqueued nothing.
    ///
    /// # Errors
    /// Out of memory that names the call, where the cache did not help; else that of the call.
    pub(crate) fn retried<T>(&self, mut call: impl FnMut() -> Result<T>) -> Result<T> {
        match call() {
            Err(error) if error.refused_call().is_some() => drop(self.memory.trim()),
            done => return done,
        }
        call().map_err(|error| match error.refused_call() {
            Some(refused) => self.memory.refused_outside(refused).into(),
            None => error,
        })
    }

    /// The driver's device.
    pub fn device(&self) -> &CudaDevice {
        self.streams.device()
    }

    /// What compiles this crate's kernels for just this device.
    ///
    /// # Errors
    /// There is none on this machine that serves the device, as the error says: kernels are then
    /// those that the feature `ptx` has put into the program.
    pub fn compiler(&self) -> Result<&KernelCompiler, &CompileError> {
        self.loaded.compiler()
    }

    /// What multiplies matrices here.
    pub fn products(&self) -> ProductsBy {
        self.library.by()
    }

    /// How many launches the library and the kernel of this crate have done so far.
    pub fn product_counts(&self) -> ProductCounts {
        self.library.counts()
    }

    /// The products that cuBLASLt has planned, with its description of the kernel for each.
    pub fn library_choices(&self) -> Vec<(Product, [u64; 8])> {
        self.library.choices()
    }

    /// The library of matrix products and how precise they are; `None` where the kernel of this
    /// crate does them.
    ///
    /// # Errors
    /// The library failed for a reason that may pass, such as a lack of memory.
    pub(crate) fn blas(&self) -> Result<Option<(Blas, Precision)>> {
        self.retried(|| self.library.open())
    }

    /// Enqueues a launch of a product by the library; false if it cannot do the product.
    ///
    /// # Errors
    /// The driver failed.
    pub(crate) fn by_library(
        &self,
        mut enqueue: impl FnMut() -> Result<(), BlasError>,
    ) -> Result<bool> {
        self.retried(|| match enqueue() {
            Ok(()) => {
                self.library.count_library();
                Ok(true)
            }
            Err(error) if error.is_unsupported() => {
                self.library.refused(&error);
                Ok(false)
            }
            Err(error) => Err(error.into()),
        })
    }

    /// Whether products of f32, convolutions among them, are of tf32: as was asked for, where the
    /// device has it, or is a pretend one that does not tell.
    pub(crate) fn is_in_tf32(&self) -> bool {
        self.is_in_tf32
    }

    /// Counts a launch of a product by the kernel of this crate.
    pub(crate) fn count_own_product(&self) {
        self.library.count_own();
    }

    /// The streams of the device, of which all but copies from and to the host is on the default
    /// one.
    pub(crate) fn streams(&self) -> &CudaStreams {
        &self.streams
    }

    /// Loads a kernel of this crate, so that a later launch has nothing to load.
    pub(crate) fn reserve(&self, image: Image, signature: &Signature) -> Result<()> {
        self.retried(|| {
            self.loaded.function(image, signature)?;
            Ok(())
        })
    }

    /// Enqueues a kernel of this crate, whose source says what it does with its arguments.
    #[expect(unsafe_code, reason = "the one place that launches kernels")]
    pub(crate) fn launch(
        &self,
        image: Image,
        signature: &Signature,
        grid: Grid,
        arguments: &[Argument<'_>],
    ) -> Result<()> {
        self.retried(|| {
            let function = self.loaded.function(image, signature)?;
            // SAFETY: 1. the declarations of this crate are those of its own images, which tests
            // load. 2. Operations give the bytes that their layouts cover, which the kernels stay
            // inside: tests run each of them on a device that watches every access.
            Ok(unsafe { function.launch(&self.streams, Stream::DEFAULT, grid, arguments) }?)
        })
    }

    /// Sets every byte of `range` of a place's block.
    pub(crate) fn fill(
        &self,
        place: &DeviceOperand<'_>,
        range: Range<usize>,
        value: u8,
    ) -> Result<()> {
        let fill =
            || Ok(self.streams.fill(Stream::DEFAULT, place.block(), range.clone(), value)?);
        self.retried(fill)
    }

    /// Copies the bytes of one place to those of another, which has as many.
    pub(crate) fn copy(&self, from: &DeviceOperand<'_>, to: &DeviceOperand<'_>) -> Result<()> {
        self.retried(|| {
            let (from, to) = ((from.block(), from.bytes()), (to.block(), to.bytes()));
            Ok(self.streams.copy(Stream::DEFAULT, from, to)?)
        })
    }

    /// The elements from the first to the last one of a place, when all work before is done.
    pub(crate) fn read<T: Pod>(&self, place: &DeviceOperand<'_>) -> Result<Vec<T>> {
        self.retried(|| self.copies.download(place))
    }

    /// Overwrites what is from the first to the last element of a place.
    pub(crate) fn write(&self, place: &DeviceOperand<'_>, bytes: &[u8]) -> Result<()> {
        self.retried(|| self.copies.overwrite(bytes, place))
    }

    /// [`Cuda::write`] to memory that was allocated for copies, and that was not used since.
    pub(crate) fn write_new(&self, place: &DeviceOperand<'_>, bytes: &[u8]) -> Result<()> {
        self.retried(|| self.copies.upload(bytes, place.block(), place.bytes().start))
    }

    /// [`Cuda::write_new`] from bytes of a page-locked block, see [`Copies::upload_pinned`].
    pub(crate) fn write_new_from(
        &self,
        place: &DeviceOperand<'_>,
        (from, range): (&PinnedBuffer, Range<usize>),
    ) -> Result<()> {
        let start = place.bytes().start;
        self.retried(|| self.copies.upload_pinned((from, range.clone()), place.block(), start))
    }

    /// See [`Copies::copy_ahead`].
    pub(crate) fn copy_ahead(
        &self,
        block: &Arc<Buffer>,
        parts: &[(&PinnedBuffer, Range<usize>)],
    ) -> Result<()> {
        self.retried(|| self.copies.copy_ahead(block, parts))
    }

    /// Lets go of what was copied ahead to a block.
    pub(crate) fn forget_ahead(&self, block: &Arc<Buffer>) {
        self.copies.forget_ahead(block);
    }

    /// Memory for a ring of buffers that copies read themselves.
    pub(crate) fn ring(&self, size_bytes: usize) -> Result<PinnedCache> {
        self.retried(|| Ok(self.copies.ring(size_bytes)?))
    }

    /// Lets `launch` tell a kernel where to complain about a value; who reads a value next is told.
    pub(crate) fn with_complaint(
        &self,
        launch: impl FnOnce(Argument<'_>) -> Result<()>,
    ) -> Result<()> {
        self.retried(|| self.copies.reserve_complaint())?;
        self.copies.with_complaint(launch)
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
