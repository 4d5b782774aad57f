//! Tensors made: of memory alone, of a number, of values and bytes of the host, in a mapped file.

use std::ops::Range;

use lowtide_allocator::{Category, PinnedBuffer, Stream};

use crate::copy_stream::COPIES;
use crate::device::Device;
use crate::dtype::{DType, Element, Value};
use crate::error::{Result, TensorError};
use crate::layout::Shape;
use crate::mapped::{MappedBytes, MappedFile};
use crate::spec::DeviceKind;
use crate::storage::Storage;
use crate::tensor::Tensor;
use crate::transfer::{HostBytes, Overwrite, Upload};

impl Tensor {
    /// A tensor with whatever its memory held before; for destinations that are written whole.
    /// The device's current [`Category`] counts its bytes.
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
        Self::empty_on(device, device.allocator().stream(), category, shape.into(), dtype)
    }

    /// [`Tensor::empty_in`], for work on a stream.
    #[track_caller]
    fn empty_on(
        device: &Device,
        stream: Stream,
        category: Category,
        shape: Shape,
        dtype: DType,
    ) -> Result<Self> {
        // Saturated, because no memory holds that much: a wrapped product would be a small buffer.
        let size_bytes = shape.element_count().saturating_mul(dtype.size_bytes());
        let buffer = device.allocator().allocate_on(stream, category, size_bytes)?;
        Ok(Tensor::of(Storage::new(buffer, device.clone()), shape, dtype))
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
    /// An NVIDIA device copies beside its computations. The copy waits for earlier work on the
    /// memory that it writes, and the first operation on the tensor waits for the copy. `bytes` may
    /// change as soon as the function returns.
    #[track_caller]
    pub fn from_bytes(
        device: &Device,
        shape: impl Into<Shape>,
        dtype: DType,
        bytes: &[u8],
    ) -> Result<Self> {
        let upload = Upload { op: "from_bytes", from: HostBytes::Any(bytes), dtype };
        Self::from_upload(device, shape.into(), upload)
    }

    /// The elements in the bytes `range` of a page-locked block, native byte order, row-major.
    ///
    /// # Errors
    /// The errors of [`Tensor::from_bytes`].
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
        let from = HostBytes::PageLocked(from, range);
        Self::from_upload(device, shape.into(), Upload { op: "from_page_locked", from, dtype })
    }

    #[track_caller]
    fn from_upload(device: &Device, shape: Shape, upload: Upload<'_>) -> Result<Self> {
        let (op, dtype, len) = (upload.op, upload.dtype, upload.from.bytes().len());
        if shape.element_count().checked_mul(dtype.size_bytes()) != Some(len) {
            let found = Shape::new(&[len / dtype.size_bytes()]);
            return Err(TensorError::Shape { op, left: found, right: shape });
        }
        let category = device.allocator().current_category();
        let stream = if device.copies_beside() { COPIES } else { device.allocator().stream() };
        let tensor = Self::empty_on(device, stream, category, shape, dtype)?;
        device.launch(upload, &[], &[&tensor])?;
        tensor.storage().set_arriving(device.copies_beside());
        Ok(tensor)
    }

    /// The elements that begin at `offset_bytes` of a file, native byte order, row-major. On the
    /// CPU they stay in the file: the system reads them when they are looked at, they count as
    /// [mapped](Device::mapped_bytes), and take one block of 512 bytes of the device's memory,
    /// which carries category and module. An operation that writes them is an error. An NVIDIA
    /// device, which cannot read them in the file, gets a copy, as [`Tensor::from_bytes`] makes it;
    /// a simulated device does as the device that it stands for.
    ///
    /// # Errors
    /// `Index` where the file ends before; `Unaligned` unless the offset is a multiple of the
    /// element's size; `OutOfMemory`.
    #[track_caller]
    pub fn from_mapped(
        device: &Device,
        shape: impl Into<Shape>,
        dtype: DType,
        file: &MappedFile,
        offset_bytes: usize,
    ) -> Result<Self> {
        let (op, shape) = ("from_mapped", shape.into());
        let size_bytes = shape.element_count().saturating_mul(dtype.size_bytes());
        let len = file.bytes().len();
        let end = offset_bytes.saturating_add(size_bytes);
        if end > len {
            return Err(TensorError::index(op, end, len));
        }
        let bytes = &file.bytes()[offset_bytes..end];
        if device.kind() == DeviceKind::Cuda {
            return Self::from_bytes(device, shape, dtype, bytes);
        }
        // A mapping begins with a page.
        let align_bytes = dtype.size_bytes();
        if !offset_bytes.is_multiple_of(align_bytes) {
            return Err(TensorError::Unaligned { op, offset_bytes, align_bytes });
        }
        // The empty block stands for the storage with the allocator.
        let (allocator, count) = (device.allocator(), device.mapped_count());
        let (stream, category) = (allocator.stream(), allocator.current_category());
        let buffer = allocator.allocate_on(stream, category, 0)?;
        let mapped = MappedBytes::new(file, offset_bytes..end, count);
        Ok(Tensor::of(Storage::of_mapped(buffer, device.clone(), mapped), shape, dtype))
    }

    /// Overwrites the elements with those in `bytes`, native byte order, row-major.
    ///
    /// # Errors
    /// `Shape` when the count does not fit, `Frozen`, `Overlap` (on an expanded view).
    #[track_caller]
    pub fn set_bytes_(&mut self, bytes: &[u8]) -> Result<()> {
        let op = "set_bytes";
        if bytes.len() != self.size_bytes() {
            let found = Shape::new(&[bytes.len() / self.dtype().size_bytes()]);
            return Err(TensorError::Shape { op, left: found, right: *self.shape() });
        }
        let upload = Upload { op, from: HostBytes::Any(bytes), dtype: self.dtype() };
        self.device().launch(Overwrite(upload), &[], &[self])
    }
}
