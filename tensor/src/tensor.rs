//! The tensor: a handle to shared storage plus a layout. `create.rs` makes tensors, `read.rs` reads
//! their values.

use std::fmt::{self, Debug};
use std::panic::Location;
use std::sync::Arc;

use lowtide_allocator::{Category, ModulePath, Origin};

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Result, TensorError};
use crate::layout::{Layout, Shape};
use crate::storage::Storage;

/// An n-dimensional array on a [`Device`].
///
/// Cloning is cheap and shares the storage, and so do the views ([`Tensor::transpose`],
/// [`Tensor::narrow`], ...). A write by an in-place method, whose name ends in `_`, shows in all
/// clones and views.
#[derive(Clone)]
pub struct Tensor {
    storage: Arc<Storage>,
    layout: Layout,
    dtype: DType,
}

impl Tensor {
    /// All elements of a storage, one after the other.
    pub(crate) fn of(storage: Storage, shape: Shape, dtype: DType) -> Self {
        Tensor { storage: Arc::new(storage), layout: Layout::contiguous(shape), dtype }
    }

    /// The sizes of the dimensions.
    pub fn shape(&self) -> &Shape {
        self.layout.shape()
    }

    /// The places of the elements in the storage.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The device that the tensor is on.
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

    /// The number of writes to the storage so far. A saved tensor compares this number.
    pub fn version(&self) -> u64 {
        self.storage.version()
    }

    /// The place in the program that last wrote the storage, or made it.
    pub fn last_write(&self) -> &'static Location<'static> {
        self.storage.last_write()
    }

    /// The category that the bytes of the storage count for.
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

    /// True if both tensors share one storage.
    pub fn shares_storage(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.storage, &other.storage)
    }

    /// True if an operation that consumes this tensor may write its result in place: no other
    /// handle has the storage, and the tensor is contiguous and not frozen.
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

    /// `Ok` if in-place operations are allowed: for callers that write all of several tensors or
    /// none.
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

    /// The beginning of each row of a matrix, in elements of type `dtype`, which are no larger. A
    /// kernel has written one such element there for each element of the row.
    #[cfg(feature = "cuda")]
    pub(crate) fn front_of_rows(&self, dtype: DType) -> Self {
        let times = self.dtype.size_bytes() / dtype.size_bytes();
        self.seen_as(self.layout.front_of_rows(times), dtype)
    }

    /// True if the elements lie in a file: see [`Tensor::from_mapped`].
    pub fn is_mapped(&self) -> bool {
        self.storage.mapped().is_some()
    }

    /// The simulated copy of this tensor on a device made by [`Device::simulate`]. Copies share a
    /// storage exactly if the originals do. `None` if the device does not simulate this tensor's
    /// device, or the copy has been dropped already.
    pub fn simulated_copy(&self, sim: &Device) -> Option<Tensor> {
        let storage = sim.simulation()?.simulated_copy(&self.storage, sim)?;
        Some(Tensor { storage, ..self.clone() })
    }

    pub(crate) fn storage(&self) -> &Arc<Storage> {
        &self.storage
    }

    pub(crate) fn with_layout(&self, layout: Layout) -> Tensor {
        self.seen_as(layout, self.dtype)
    }

    /// The memory as elements of another type.
    pub(crate) fn seen_as(&self, layout: Layout, dtype: DType) -> Tensor {
        Tensor { storage: Arc::clone(&self.storage), layout, dtype }
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
