//! An NVIDIA device as kernels see it.

use std::ops::Range;

use bytemuck::Pod;
use lowtide_allocator::cuda::{Architecture, CudaDevice, CudaSource, CudaStreams, DeviceMemory};
use lowtide_allocator::{CachingAllocator, MemorySource, PinnedBuffer, Stream};

use super::copies::Copies;
use super::gate::{
    Argument, Blas, BlasError, CompileError, Grid, KernelCompiler, Precision, Product, Signature,
};
use super::kernels::{Image, Loaded};
use super::library::{Library, ProductCounts, Products, ProductsBy};
use super::operand::DeviceOperand;
use crate::error::Result;
use crate::spec::SimSpec;

/// Largest memory of a device that is left free for later use: libraries load kernels on first use,
/// and the driver grows its own memory for launches.
const RESERVE_BYTES_MAX: usize = 256 << 20;

/// Divisor of the free memory. A small device leaves this part free instead.
const RESERVE_PART: usize = 64;

/// The first architecture with tf32.
const TF32_SINCE: Architecture = Architecture { major: 8, minor: 0 };

/// Options of an NVIDIA device: its memory for tensors, and its products.
#[derive(Clone, Copy, Debug, Default)]
pub struct CudaOptions {
    /// Memory for tensors that the device reports and enforces. If absent or too large, the device
    /// takes all memory that is free after kernels and libraries are loaded, minus a reserve.
    pub budget_bytes: Option<usize>,
    /// The multiplier of matrices and its precision. Convolutions have the same precision.
    pub products: Products,
}

/// An NVIDIA device as kernels see it: the stream for kernels, code, libraries.
pub struct Cuda {
    streams: CudaStreams,
    pub(super) copies: Copies,
    loaded: Loaded,
    library: Library,
    /// The allocator of the device, which gives its cache back when the driver needs memory.
    pub(super) memory: CachingAllocator,
}

impl Cuda {
    /// Opens the device of a driver that was found elsewhere.
    pub(super) fn on(
        device: &CudaDevice,
        CudaOptions { budget_bytes, products }: CudaOptions,
    ) -> Result<(Cuda, SimSpec)> {
        let streams = CudaStreams::new(device);
        let (copies, loaded) = (Copies::new(&streams), Loaded::new(device));
        let library = Library::new(device, products);
        // A pretend device does not say what it is.
        let tf32 = products == Products::Library(Precision::Tf32)
            && device.architecture()?.is_none_or(|architecture| architecture >= TF32_SINCE);
        // Kernels and libraries are loaded first, because they take memory outside the allocator. A
        // failure is ignored here: the first use loads again, and reports the error.
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
        let spec = SimSpec { outside_bytes, tf32, ..SimSpec::like_cuda(memory.capacity_bytes()) };
        Ok((Cuda { streams, copies, loaded, library, memory }, spec))
    }

    /// [`Accelerator::retry`](crate::accelerator::Accelerator::retry) for a call with a result.
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

    /// The compiler of this crate's kernels for just this device.
    ///
    /// # Errors
    /// The reason why no compiler on this machine serves the device: kernels then come from the PTX
    /// that the feature `ptx` has put into the program.
    pub fn compiler(&self) -> Result<&KernelCompiler, &CompileError> {
        self.loaded.compiler()
    }

    /// The multiplier of matrices on this device.
    pub fn products(&self) -> ProductsBy {
        self.library.by()
    }

    /// The numbers of launches that the library and the kernel of this crate have done so far.
    pub fn product_counts(&self) -> ProductCounts {
        self.library.counts()
    }

    /// The products that cuBLASLt has planned, with its description of the kernel for each.
    pub fn library_choices(&self) -> Vec<(Product, [u64; 8])> {
        self.library.choices()
    }

    /// The library of matrix products and their precision; `None` if the kernel of this crate does
    /// them.
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

    /// Counts a launch of a product by the kernel of this crate.
    pub(crate) fn count_own_product(&self) {
        self.library.count_own();
    }

    /// The streams of the device. All work is on the default stream, except copies from and to the
    /// host.
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

    /// Enqueues a kernel of this crate.
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
            // SAFETY: 1. the declarations of this crate match its own images, which tests load. 2.
            // Operations give the bytes that their layouts cover, which the kernels stay inside:
            // tests run each of them on a device that watches every access.
            Ok(unsafe { function.launch(&self.streams, Stream::DEFAULT, grid, arguments) }?)
        })
    }

    /// Sets every byte of `range` of an operand's block.
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

    /// Copies the bytes of one operand to another operand of the same size.
    pub(crate) fn copy(&self, from: &DeviceOperand<'_>, to: &DeviceOperand<'_>) -> Result<()> {
        self.retried(|| {
            let (from, to) = ((from.block(), from.bytes()), (to.block(), to.bytes()));
            Ok(self.streams.copy(Stream::DEFAULT, from, to)?)
        })
    }

    /// Reads the elements of an operand, from the first to the last, once all earlier work is done.
    pub(crate) fn read<T: Pod>(&self, place: &DeviceOperand<'_>) -> Result<Vec<T>> {
        self.retried(|| self.copies.download(place))
    }

    /// Overwrites the memory from the first to the last element of an operand.
    pub(crate) fn write(&self, place: &DeviceOperand<'_>, bytes: &[u8]) -> Result<()> {
        self.retried(|| self.copies.overwrite(bytes, place))
    }

    /// [`Cuda::write`] to memory that was allocated for copies and has not been used since.
    pub(crate) fn write_new(&self, place: &DeviceOperand<'_>, bytes: &[u8]) -> Result<()> {
        self.retried(|| self.copies.upload(bytes, place.block(), place.bytes().start))
    }

    /// [`Cuda::write_new`] from bytes of a page-locked block, see [`Copies::upload_pinned`].
    pub(crate) fn write_new_from(
        &self,
        place: &DeviceOperand<'_>,
        from: &PinnedBuffer,
        range: Range<usize>,
    ) -> Result<()> {
        let start = place.bytes().start;
        self.retried(|| self.copies.upload_pinned(from, range.clone(), place.block(), start))
    }

    /// Calls `launch` with the address for a kernel's complaint about a value. The next read of a
    /// value reports the complaint.
    pub(crate) fn with_complaint(
        &self,
        launch: impl FnOnce(Argument<'_>) -> Result<()>,
    ) -> Result<()> {
        self.retried(|| self.copies.reserve_complaint())?;
        self.copies.with_complaint(launch)
    }
}
