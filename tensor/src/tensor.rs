//! The tensor: a handle to shared storage plus a layout. Creation, reading, bookkeeping.

use std::fmt::{self, Debug};
use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;

use lowtide_allocator::{Category, ModulePath, Origin, PinnedBuffer, Stream};

use crate::device::{Backend, COPIES, Device};
use crate::dtype::{DType, Element, Value, for_each_dtype};
use crate::error::{Result, TensorError};
use crate::layout::{Layout, Shape};
use crate::mapped::MappedBytes;
use crate::storage::Storage;
use crate::transfer::{Download, Overwrite, Upload};

/// An n-dimensional array on a [`Device`].
///
/// Cloning is cheap and shares the storage, and so do the views ([`Tensor::transpose`],
/// [`Tensor::narrow`], ...): an in-place method (its name ends in `_`) on one is seen by all.
#[derive(Clone)]
pub struct Tensor {
    storage: Arc<Storage>,
    layout: Layout,
    dtype: DType,
}

impl Tensor {
    /// A tensor with whatever its memory held before; for destinations that are written whole.
    /// Its bytes are attributed to the device's current [`Category`].
    ///
    /// # Errors
    /// `OutOfMemory`.
    #[track_caller]
    pub fn empty(device: &Device, shape: impl Into<Shape>, dtype: DType) -> Result<Self> {
        Self::empty_in(device, device.allocator().current_category(), shape, dtype)
    }

    /// [`Tensor::empty`], attributed to `category`.
    ///
    /// # Errors
    /// `OutOfMemory`.
    #[track_caller]
    pub fn empty_in(
        device: &Device,
        category: Category,
        shape: impl Into<Shape>,
        dtype: DType,
    ) -> Result<Self> {
        Self::empty_on(device, (device.allocator().stream(), category), shape.into(), dtype)
    }

    /// [`Tensor::empty_in`], for work on a stream.
    #[track_caller]
    fn empty_on(
        device: &Device,
        (stream, category): (Stream, Category),
        shape: Shape,
        dtype: DType,
    ) -> Result<Self> {
        // Saturated, because no memory holds that much: a wrapped product would be a small buffer.
        let size_bytes = shape.element_count().saturating_mul(dtype.size_bytes());
        let buffer = device.allocator().allocate_on(stream, category, size_bytes)?;
        let storage = Arc::new(Storage::new(buffer, device.clone()));
        Ok(Tensor { storage, layout: Layout::contiguous(shape), dtype })
    }

    /// A tensor whose bytes are mapped, with an empty block.
    #[track_caller]
    pub(crate) fn of_mapped(
        device: &Device,
        shape: Shape,
        dtype: DType,
        mapped: MappedBytes,
    ) -> Result<Self> {
        let (stream, category) =
            (device.allocator().stream(), device.allocator().current_category());
        let buffer = device.allocator().allocate_on(stream, category, 0)?;
        let storage = Arc::new(Storage::of_mapped(buffer, device.clone(), mapped));
        Ok(Tensor { storage, layout: Layout::contiguous(shape), dtype })
    }

    /// The beginning of each row of a matrix as elements of another type that are no larger, as
    /// many as the row has: what a kernel left there.
    #[cfg(feature = "cuda")]
    pub(crate) fn front_of_rows(&self, dtype: DType) -> Self {
        let times = self.dtype.size_bytes() / dtype.size_bytes();
        Tensor { storage: self.storage.clone(), layout: self.layout.front_of_rows(times), dtype }
    }

    /// Scratch memory of `len` elements for a kernel, or a tensor without elements.
    #[track_caller]
    pub(crate) fn workspace(device: &Device, len: usize, dtype: DType) -> Result<Self> {
        Self::empty_in(device, Category::Workspace, [len], dtype)
    }

    /// Every element 0.
    ///
    /// # Errors
    /// `OutOfMemory`.
    #[track_caller]
    pub fn zeros(device: &Device, shape: impl Into<Shape>, dtype: DType) -> Result<Self> {
        Self::full(device, shape, dtype, 0.0)
    }

    /// Every element 1.
    ///
    /// # Errors
    /// `OutOfMemory`.
    #[track_caller]
    pub fn ones(device: &Device, shape: impl Into<Shape>, dtype: DType) -> Result<Self> {
        Self::full(device, shape, dtype, 1.0)
    }

    /// Every element `value`, converted as [`Tensor::to_dtype`] does.
    ///
    /// # Errors
    /// `OutOfMemory`.
    #[track_caller]
    pub fn full(
        device: &Device,
        shape: impl Into<Shape>,
        dtype: DType,
        value: f64,
    ) -> Result<Self> {
        let mut tensor = Self::empty(device, shape, dtype)?;
        tensor.fill_(value)?;
        Ok(tensor)
    }

    /// The elements of `values` in row-major order. A simulated device only takes the memory.
    ///
    /// # Errors
    /// `Shape` when the count does not fit, `OutOfMemory`.
    #[track_caller]
    pub fn from_slice<T: Value>(
        device: &Device,
        shape: impl Into<Shape>,
        values: &[T],
    ) -> Result<Self> {
        Self::from_bytes(device, shape, T::Element::DTYPE, T::as_bytes(values))
    }

    /// The elements in `bytes`, native byte order, row-major.
    ///
    /// # Errors
    /// `Shape` when the count does not fit, `OutOfMemory`.
    ///
    /// # Streams
    /// An NVIDIA device copies beside what it computes: the copy waits for work on the memory that
    /// it goes to, if that was another's before, and the first operation on the tensor waits
    /// for the copy. The bytes are used up when this returns.
    #[track_caller]
    pub fn from_bytes(
        device: &Device,
        shape: impl Into<Shape>,
        dtype: DType,
        bytes: &[u8],
    ) -> Result<Self> {
        Self::from_upload(
            device,
            shape.into(),
            Upload { op: "from_bytes", bytes, locked: None, dtype },
        )
    }

    /// The elements in the bytes `range` of a page-locked block, native byte order, row-major.
    ///
    /// # Errors
    /// Those of [`Tensor::from_bytes`].
    ///
    /// # Panics
    /// If the range is not within the block.
    ///
    /// # Streams
    /// As [`Tensor::from_bytes`], but an NVIDIA device that the block's memory is
    /// [of](Device::page_locked_ring) reads it when the copy runs: it must not be written before it
    /// has been [waited for](PinnedBuffer::wait).
    #[track_caller]
    pub fn from_page_locked(
        device: &Device,
        shape: impl Into<Shape>,
        dtype: DType,
        (from, range): (&PinnedBuffer, Range<usize>),
    ) -> Result<Self> {
        let (op, locked) = ("from_page_locked", Some((from, range.start)));
        let bytes = &from.as_slice()[range];
        Self::from_upload(device, shape.into(), Upload { op, bytes, locked, dtype })
    }

    #[track_caller]
    fn from_upload(device: &Device, shape: Shape, upload: Upload<'_>) -> Result<Self> {
        let Upload { op, bytes, dtype, .. } = upload;
        if shape.element_count().checked_mul(dtype.size_bytes()) != Some(bytes.len()) {
            let found = Shape::new(&[bytes.len() / dtype.size_bytes()]);
            return Err(TensorError::Shape { op, left: found, right: shape });
        }
        let category = device.allocator().current_category();
        let stream = if device.copies_beside() { COPIES } else { device.allocator().stream() };
        let tensor = Self::empty_on(device, (stream, category), shape, dtype)?;
        device.launch(upload, &[], &[&tensor])?;
        tensor.storage.set_arriving(device.copies_beside());
        Ok(tensor)
    }

    /// Overwrites the elements with those in `bytes`, native byte order, row-major.
    ///
    /// # Errors
    /// `Shape` when the count does not fit, `Frozen`, `Overlap` (on an expanded view).
    #[track_caller]
    pub fn set_bytes_(&mut self, bytes: &[u8]) -> Result<()> {
        let op = "set_bytes";
        if bytes.len() != self.size_bytes() {
            let found = Shape::new(&[bytes.len() / self.dtype.size_bytes()]);
            return Err(TensorError::Shape { op, left: found, right: *self.shape() });
        }
        self.device().launch(
            Overwrite(Upload { op, bytes, locked: None, dtype: self.dtype }),
            &[],
            &[self],
        )
    }

    /// The sizes of the dimensions.
    pub fn shape(&self) -> &Shape {
        self.layout.shape()
    }

    /// Where the elements lie in the storage.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Where the tensor lives.
    pub fn device(&self) -> &Device {
        self.storage.device()
    }

    /// The number of elements.
    pub fn element_count(&self) -> usize {
        self.shape().element_count()
    }

    /// Bytes of the elements, without the rounding of the storage.
    pub fn size_bytes(&self) -> usize {
        self.element_count() * self.dtype.size_bytes()
    }

    /// How often the storage has been written; a saved tensor compares it.
    pub fn version(&self) -> u64 {
        self.storage.version()
    }

    /// Where the storage was last written, or made.
    pub fn last_write(&self) -> &'static Location<'static> {
        self.storage.last_write()
    }

    /// What the bytes of the storage count as.
    pub fn category(&self) -> Category {
        self.storage.buffer().category()
    }

    /// The module and the site that the bytes of the storage count for.
    pub fn origin(&self) -> Origin {
        self.storage.buffer().origin()
    }

    /// Makes the bytes of the storage count for `module`: see
    /// [`Buffer::set_module`](lowtide_allocator::Buffer::set_module).
    pub fn set_module(&self, module: ModulePath) {
        self.storage.buffer().set_module(module);
    }

    /// Whether both share one storage.
    pub fn shares_storage(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.storage, &other.storage)
    }

    /// Whether this handle is the only one to its storage and an operation that consumes it may
    /// therefore write its result there: contiguous, not frozen, held by nothing else.
    pub fn is_reusable(&self) -> bool {
        Arc::strong_count(&self.storage) == 1
            && self.layout.is_contiguous()
            && !self.storage.is_frozen()
            && !self.is_mapped()
    }

    /// Makes every in-place operation on the storage an error until [`Tensor::unfreeze`].
    pub fn freeze(&self) {
        self.storage.set_frozen(true);
    }

    /// `Ok` if in-place operations are allowed; for callers that write several tensors or none.
    ///
    /// # Errors
    /// `Frozen` with the caller's place, or `ReadOnly`.
    #[track_caller]
    pub fn check_writable(&self, op: &'static str) -> Result<()> {
        if self.is_mapped() {
            return Err(TensorError::ReadOnly { op, site: Location::caller() });
        }
        if !self.storage.is_frozen() {
            return Ok(());
        }
        Err(TensorError::Frozen { op, site: Location::caller() })
    }

    /// Allows in-place operations again.
    pub fn unfreeze(&self) {
        self.storage.set_frozen(false);
    }

    /// This tensor's stand-in on a device made by [`Device::simulate`], sharing a storage exactly
    /// where the originals do. `None` when the device does not simulate this tensor's, or the
    /// stand-in has been dropped already.
    pub fn simulated_copy(&self, sim: &Device) -> Option<Tensor> {
        let Backend::Sim(simulation) = sim.backend() else { return None };
        let storage = simulation.simulated_copy(&self.storage, sim)?;
        Some(Tensor { storage, ..self.clone() })
    }

    /// The elements in row-major order. Waits for the device.
    ///
    /// # Errors
    /// `DType` when `T` is another type, `ValueUnavailable` on a simulated device; of an NVIDIA
    /// device what it reports, also of work before, and `Label` where a loss had a bad one.
    #[track_caller]
    pub fn to_vec<T: Value>(&self) -> Result<Vec<T>> {
        let op = "to_vec";
        let right = T::Element::DTYPE;
        if self.dtype != right {
            return Err(TensorError::DType { op, left: self.dtype, right });
        }
        if self.device().is_simulated() {
            return Err(TensorError::ValueUnavailable { op, site: Location::caller() });
        }
        let mut values: Vec<T::Element> = Vec::with_capacity(self.element_count());
        self.device().launch(Download { values: &mut values }, &[self], &[])?;
        Ok(values.into_iter().map(T::from_element).collect())
    }

    /// The elements in row-major order, native byte order. Waits for the device.
    ///
    /// # Errors
    /// `ValueUnavailable` on a simulated device.
    #[track_caller]
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        if self.device().is_simulated() {
            let op = "to_bytes";
            return Err(TensorError::ValueUnavailable { op, site: Location::caller() });
        }
        for_each_dtype!(self.dtype, T => {
            let values = self.to_vec::<T>()?;
            Ok(bytemuck::cast_slice(&values).to_vec())
        })
    }

    /// The only element. Waits for the device.
    ///
    /// # Errors
    /// `Shape` when there is not exactly one, and those of [`Tensor::to_vec`].
    #[track_caller]
    pub fn item<T: Value>(&self) -> Result<T> {
        self.check_item::<T>()?;
        if self.device().is_simulated() {
            return Err(TensorError::ValueUnavailable { op: "item", site: Location::caller() });
        }
        Ok(self.to_vec::<T>()?[0])
    }

    /// `Ok` if there is one element, of type `T`.
    fn check_item<T: Value>(&self) -> Result<()> {
        let (op, dtype) = ("item", T::Element::DTYPE);
        if self.element_count() != 1 {
            let right = Shape::new(&[]);
            return Err(TensorError::Shape { op, left: *self.shape(), right });
        }
        if self.dtype != dtype {
            return Err(TensorError::DType { op, left: self.dtype, right: dtype });
        }
        Ok(())
    }

    /// [`Tensor::item`], or on a simulated device `assumed`, which its list of assumptions then
    /// names with the caller's place.
    ///
    /// # Errors
    /// Those of [`Tensor::item`], without `ValueUnavailable`.
    #[track_caller]
    pub fn item_assuming<T: Element>(&self, assumed: T) -> Result<T> {
        match self.device().backend() {
            Backend::Sim(sim) => {
                self.check_item::<T>()?;
                self.storage.await_copy()?;
                self.device().order_copies()?;
                sim.assume(assumed.to_f64(), Location::caller());
                Ok(assumed)
            }
            _ => self.item(),
        }
    }

    pub(crate) fn storage(&self) -> &Arc<Storage> {
        &self.storage
    }

    pub(crate) fn with_layout(&self, layout: Layout) -> Tensor {
        Tensor { storage: Arc::clone(&self.storage), layout, dtype: self.dtype }
    }

    /// `Ok` if this tensor holds floats of any type.
    pub(crate) fn check_any_float(&self, op: &'static str) -> Result<()> {
        if self.dtype.is_float() {
            return Ok(());
        }
        Err(TensorError::DType { op, left: self.dtype, right: DType::F32 })
    }

    /// `Ok` if `other` has this tensor's element type.
    pub(crate) fn check_dtype(&self, op: &'static str, other: &Tensor) -> Result<()> {
        if self.dtype == other.dtype {
            return Ok(());
        }
        Err(TensorError::DType { op, left: self.dtype, right: other.dtype })
    }

    /// `Ok` if this tensor has shape `expected`.
    pub(crate) fn check_shape(&self, op: &'static str, expected: impl Into<Shape>) -> Result<()> {
        let right = expected.into();
        if *self.shape() == right {
            return Ok(());
        }
        Err(TensorError::Shape { op, left: *self.shape(), right })
    }
}

impl Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({}, {}, {:?})", self.dtype, self.shape(), self.device())
    }
}
