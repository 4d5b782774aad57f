//! Creation of tensors: without values, from a number, from values and bytes of the host, in a
//! mapped file.

use std::ops::Range;

use lowtide_allocator::{Category, PinnedBuffer, Stream};

use crate::copy_stream::COPIES;
use crate::device::Device;
use crate::dtype::{DType, Element, Value};
use crate::error::{Result, TensorError};
use crate::layout::{IntoShape, Shape};
use crate::mapped::{MappedBytes, MappedFile};
use crate::spec::DeviceKind;
use crate::storage::Storage;
use crate::tensor::Tensor;
use crate::transfer::{HostBytes, Overwrite, Upload};

impl Tensor {
    /// A tensor with the old contents of its memory, for destinations that are written completely.
    /// The bytes count for the device's current [`Category`].
    ///
    /// # Errors
    /// `OutOfMemory`.
    #[track_caller]
    pub fn empty(device: &Device, shape: impl IntoShape, dtype: DType) -> Result<Self> {
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
        shape: impl IntoShape,
        dtype: DType,
    ) -> Result<Self> {
        let shape = shape.into_shape("empty")?;
        Self::empty_on(device, device.allocator().stream(), category, shape, dtype)
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
        // The product saturates, because no memory holds as much. A wrapped product would be a
        // small buffer.
        let size_bytes = shape.element_count().saturating_mul(dtype.size_bytes());
        let buffer = device.allocator().allocate_on(stream, category, size_bytes)?;
        Ok(Tensor::of(Storage::new(buffer, device.clone()), shape, dtype))
    }

    /// Scratch memory of `len` elements for a kernel, or a tensor without elements.
    #[track_caller]
    pub(crate) fn workspace(device: &Device, len: usize, dtype: DType) -> Result<Self> {
        Self::empty_in(device, Category::Workspace, [len], dtype)
    }

    /// A tensor whose elements are all 0.
    ///
    /// # Errors
    /// `OutOfMemory`.
    #[track_caller]
    pub fn zeros(device: &Device, shape: impl IntoShape, dtype: DType) -> Result<Self> {
        Self::full(device, shape, dtype, 0.0)
    }

    /// A tensor whose elements are all 1.
    ///
    /// # Errors
    /// `OutOfMemory`.
    #[track_caller]
    pub fn ones(device: &Device, shape: impl IntoShape, dtype: DType) -> Result<Self> {
        Self::full(device, shape, dtype, 1.0)
    }

    /// A tensor whose elements are all `value`, converted as [`Tensor::to_dtype`] does.
    ///
    /// # Errors
    /// `OutOfMemory`.
    #[track_caller]
    pub fn full(device: &Device, shape: impl IntoShape, dtype: DType, value: f64) -> Result<Self> {
        let mut tensor = Self::empty(device, shape, dtype)?;
        tensor.fill_(value)?;
        Ok(tensor)
    }

    /// A tensor of `values` in row-major order. A simulated device only allocates the memory.
    ///
    /// # Errors
    /// `Shape` when the count does not fit, `OutOfMemory`.
    #[track_caller]
    pub fn from_slice<T: Value>(
        device: &Device,
        shape: impl IntoShape,
        values: &[T],
    ) -> Result<Self> {
        Self::from_bytes(device, shape, T::Element::DTYPE, T::as_bytes(values))
    }

    /// A tensor of the elements in `bytes`, in native byte order and row-major.
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
        shape: impl IntoShape,
        dtype: DType,
        bytes: &[u8],
    ) -> Result<Self> {
        let upload = Upload { op: "from_bytes", from: HostBytes::Any(bytes), dtype };
        Self::from_upload(device, shape.into_shape(upload.op)?, upload)
    }

    /// A tensor of the elements in the bytes `range` of a page-locked block, in native byte order
    /// and row-major.
    ///
    /// # Errors
    /// The errors of [`Tensor::from_bytes`].
    ///
    /// # Panics
    /// If the range is not within the block.
    ///
    /// # Streams
    /// As for [`Tensor::from_bytes`], with one exception: if the block is of a
    /// [ring](Device::page_locked_ring) of an NVIDIA device, the device reads the block when the
    /// copy runs. The block must not be written before the host has [waited for the
    /// block](PinnedBuffer::wait).
    #[track_caller]
    pub fn from_page_locked(
        device: &Device,
        shape: impl IntoShape,
        dtype: DType,
        (from, range): (&PinnedBuffer, Range<usize>),
    ) -> Result<Self> {
        let (op, from) = ("from_page_locked", HostBytes::PageLocked(from, range));
        Self::from_upload(device, shape.into_shape(op)?, Upload { op, from, dtype })
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

    /// A tensor of the elements that begin at `offset_bytes` of a file, in native byte order and
    /// row-major. On the CPU the elements stay in the file, and the system reads them on first use.
    /// The tensor counts as [mapped](Device::mapped_bytes), and takes one block of 512 bytes of the
    /// device's memory, which carries category and module. An operation that writes to the tensor
    /// is an error. An NVIDIA device gets a copy, as by [`Tensor::from_bytes`]. A simulated device
    /// does the same as the device that it stands for.
    ///
    /// # Errors
    /// `Index` if the file is too short; `Unaligned` unless the offset is a multiple of the
    /// element's size; `OutOfMemory`.
    #[track_caller]
    pub fn from_mapped(
        device: &Device,
        shape: impl IntoShape,
        dtype: DType,
        file: &MappedFile,
        offset_bytes: usize,
    ) -> Result<Self> {
        let op = "from_mapped";
        let shape = shape.into_shape(op)?;
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
        // A mapping begins with a page, so the alignment of the offset decides.
        let align_bytes = dtype.size_bytes();
        if !offset_bytes.is_multiple_of(align_bytes) {
            return Err(TensorError::Unaligned { op, offset_bytes, align_bytes });
        }
        // The empty block represents the storage in the allocator.
        let (allocator, count) = (device.allocator(), device.mapped_count());
        let (stream, category) = (allocator.stream(), allocator.current_category());
        let buffer = allocator.allocate_on(stream, category, 0)?;
        let mapped = MappedBytes::new(file, offset_bytes..end, count);
        Ok(Tensor::of(Storage::of_mapped(buffer, device.clone(), mapped), shape, dtype))
    }

    /// Overwrites the elements with the elements in `bytes`, in native byte order and row-major.
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
