//! Tensors whose bytes lie in a file, which the system reads when they are looked at: frozen
//! weights that cost no memory of a device's budget, since the system can drop them at any time.
#![allow(unsafe_code, reason = "mapping a file is unsafe: others may change it")]

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use memmap2::Mmap;

use crate::device::{Device, DeviceKind};
use crate::dtype::DType;
use crate::error::{Result, TensorError};
use crate::layout::Shape;
use crate::tensor::Tensor;

/// A file that is mapped for reading; a cheap handle. The mapping goes with the last handle and
/// the last tensor in it.
///
/// A process that writes to the file meanwhile changes the tensors' values, and one that shortens
/// it ends this program by a signal.
#[derive(Clone, Debug)]
pub struct MappedFile(Arc<Mmap>);

impl MappedFile {
    /// Maps all of the file.
    ///
    /// # Errors
    /// What the system says; `InvalidInput` for what is no regular file, such as a pipe, which is
    /// not opened: that would wait for a writer.
    pub fn open(path: &Path) -> io::Result<Self> {
        if !fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = File::open(path)?;
        // SAFETY: 1. The mapping is read only, and no `&mut` to its bytes is ever made. 2. They
        // are only read as numbers, all of whose bit patterns are values, or checked anew: a
        // process that writes to the file gives wrong numbers, as it would with `read`. 3. One
        // that shortens it makes reading fail by a signal; the documentation says so.
        let map = unsafe { Mmap::map(&file) }?;
        Ok(MappedFile(Arc::new(map)))
    }

    /// The bytes of the file.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The bytes of one storage in a file.
pub(crate) struct MappedBytes {
    file: MappedFile,
    offset_bytes: usize,
    size_bytes: usize,
    /// Of the device, which counts them.
    mapped_bytes: Arc<AtomicUsize>,
}

impl MappedBytes {
    fn new(file: &MappedFile, [offset_bytes, size_bytes]: [usize; 2], device: &Device) -> Self {
        let (file, mapped_bytes) = (file.clone(), Arc::clone(device.mapped_count()));
        mapped_bytes.fetch_add(size_bytes, Ordering::Relaxed);
        MappedBytes { file, offset_bytes, size_bytes, mapped_bytes }
    }

    /// The same bytes on another device, which simulates this one.
    pub(crate) fn on(&self, device: &Device) -> Self {
        Self::new(&self.file, [self.offset_bytes, self.size_bytes], device)
    }

    /// The first byte. Only to be read.
    pub(crate) fn pointer(&self) -> NonNull<u8> {
        NonNull::from(&self.file.bytes()[self.offset_bytes..][..self.size_bytes]).cast()
    }

    pub(crate) fn size_bytes(&self) -> usize {
        self.size_bytes
    }
}

impl Drop for MappedBytes {
    fn drop(&mut self) {
        self.mapped_bytes.fetch_sub(self.size_bytes, Ordering::Relaxed);
    }
}

impl Tensor {
    /// The elements that begin at `offset_bytes` of a file, native byte order, row-major. On the
    /// CPU they stay there: they are read from the disk when they are looked at, count as
    /// [mapped](Device::mapped_bytes), and take but one block of 512 bytes of the device's memory,
    /// which carries category and module. Whatever writes them is an error. An NVIDIA device, which
    /// cannot read them there, gets a copy, as [`Tensor::from_bytes`] makes it; simulated devices
    /// do as what they stand for.
    ///
    /// # Errors
    /// `Index` where the file ends before; `Unaligned` unless the offset is a multiple of the
    /// element's size; `OutOfMemory`.
    #[track_caller]
    pub fn from_mapped(
        device: &Device,
        shape: impl Into<Shape>,
        dtype: DType,
        (file, offset_bytes): (&MappedFile, usize),
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
        let mapped = MappedBytes::new(file, [offset_bytes, size_bytes], device);
        Self::of_mapped(device, shape, dtype, mapped)
    }

    /// Whether the elements lie in a file: see [`Tensor::from_mapped`].
    pub fn is_mapped(&self) -> bool {
        self.storage().mapped().is_some()
    }
}
