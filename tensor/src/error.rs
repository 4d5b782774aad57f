//! Errors of tensors; every variant names the operation.

use std::fmt::{self, Display};
use std::panic::Location;

#[cfg(feature = "cuda")]
use lowtide_allocator::cuda::CudaError;
use lowtide_allocator::{AllocError, OutOfMemory};
use thiserror::Error;

#[cfg(feature = "cuda")]
use crate::cuda::gate::{BlasError, KernelError, NcclError};
use crate::dtype::DType;
use crate::layout::shape::Shape;
use crate::ops::quantize::format::QuantFormat;

/// An error of a tensor operation. The operands are as they were before the call.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The device's memory could not serve the result or the workspace.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The shapes do not go together.
    #[error("{op}: shapes {left} and {right} do not fit together")]
    Shape {
        /// Name of the operation, such as `add`.
        op: &'static str,
        /// Shape of the first operand, or the shape found.
        left: Shape,
        /// Shape of the second operand, or the shape expected.
        right: Shape,
    },
    /// The dimensions are too many, or their product is too large.
    #[error(
        "{op}: {dims:?} is not a shape: at most 8 dimensions, and at most {} elements",
        usize::MAX
    )]
    Size {
        /// Name of the operation, such as `zeros`.
        op: &'static str,
        /// The dimensions, as given.
        dims: Box<[usize]>,
    },
    /// The element types do not go together, or the operation is not defined for them.
    #[error("{op}: element types {left} and {right} do not fit together")]
    DType {
        /// Name of the operation, such as `add`.
        op: &'static str,
        /// Type of the first operand, or the type found.
        left: DType,
        /// Type of the second operand, or the type expected.
        right: DType,
    },
    /// The weight is in another format than the operation is defined for.
    #[error("{op}: the weight is in {found:?}, not in {expected:?}")]
    Format {
        /// Name of the operation, such as `add`.
        op: &'static str,
        /// Format of the weight.
        found: QuantFormat,
        /// Format that the operation is defined for.
        expected: QuantFormat,
    },
    /// A dimension or position is out of range.
    #[error("{op}: index {index} is out of range for length {len}")]
    Index {
        /// Name of the operation, such as `add`.
        op: &'static str,
        /// The index asked for.
        index: isize,
        /// The valid range is `0..len`, and for dimensions also `-len..0`.
        len: usize,
    },
    /// A label is neither a class nor the label to ignore.
    #[error("{op}: label {label} at position {position} is none of {class_count} classes")]
    Label {
        /// Name of the operation, such as `add`.
        op: &'static str,
        /// The first position with such a label, in row-major order.
        position: usize,
        /// Value of the label.
        label: i64,
        /// Labels are in `0..class_count`.
        class_count: usize,
    },
    /// An integer would be divided by 0.
    #[error("{op}: division of an integer by zero")]
    DivisionByZero {
        /// Name of the operation, such as `add`.
        op: &'static str,
    },
    /// The operands live on different devices.
    #[error("{op}: the operands are on different devices, {left} and {right}{}", hint(left, right))]
    Device {
        /// Name of the operation, such as `add`.
        op: &'static str,
        /// The device of one operand, or the device of the call.
        left: DeviceLabel,
        /// The device of another operand.
        right: DeviceLabel,
    },
    /// Source and destination share memory, or the destination repeats elements.
    #[error("{op} at {site}: the destination overlaps a source or itself")]
    Overlap {
        /// Name of the operation, such as `add`.
        op: &'static str,
        /// Place of the call.
        site: &'static Location<'static>,
    },
    /// An operand has to be contiguous, and is not.
    #[error("{op}: the operands have to be contiguous")]
    Strided {
        /// Name of the operation, such as `add`.
        op: &'static str,
    },
    /// The destination is frozen for the duration of a training step.
    #[error("{op} at {site}: the tensor is frozen while a step is computed")]
    Frozen {
        /// Name of the operation, such as `add`.
        op: &'static str,
        /// Place of the call.
        site: &'static Location<'static>,
    },
    /// The destination lies in a file that is mapped for reading.
    #[error("{op} at {site}: the tensor lies in a file that is mapped for reading")]
    ReadOnly {
        /// Name of the operation, such as `add`.
        op: &'static str,
        /// Place of the call.
        site: &'static Location<'static>,
    },
    /// An operand is locked: by the kernel that launches the operation, or by another thread while
    /// that kernel runs.
    #[error("{op} at {site}: an operand is in use, inside a kernel that would wait for itself")]
    InUse {
        /// Name of the operation, such as `add`.
        op: &'static str,
        /// Place of the call.
        site: &'static Location<'static>,
    },
    /// The elements are not aligned for their type.
    #[error("{op}: offset {offset_bytes} is no multiple of {align_bytes} bytes")]
    Unaligned {
        /// Name of the operation.
        op: &'static str,
        /// Offset of the first element.
        offset_bytes: usize,
        /// Unit that the offset has to be a multiple of.
        align_bytes: usize,
    },
    /// The operation does not run on such a device.
    #[error("{op}: has no kernel for {device}")]
    NoKernel {
        /// Name of the operation, such as `add`.
        op: &'static str,
        /// The kind of device.
        device: &'static str,
    },
    /// The device cannot be opened, or a call of the driver failed.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// A kernel of the device was not launched.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Launch(#[from] KernelError),
    /// The library of matrix products refused.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Product(#[from] BlasError),
    /// NCCL, the library that sends messages between devices, is missing or has failed.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Messages(#[from] NcclError),
    /// A simulated device has no values to read.
    #[error("{op} at {site}: a simulated device has no values")]
    ValueUnavailable {
        /// Name of the operation, such as `add`.
        op: &'static str,
        /// Place of the call.
        site: &'static Location<'static>,
    },
}

/// The name of a device in errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLabel {
    /// `cpu`, `cuda` or `sim`.
    pub name: &'static str,
    /// Bytes that the device's allocator may hand out.
    pub capacity_bytes: usize,
}

impl Display for DeviceLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes)", self.name, self.capacity_bytes)
    }
}

/// Advice about two devices that look like one.
fn hint(left: &DeviceLabel, right: &DeviceLabel) -> &'static str {
    match (left.name, right.name) {
        ("cpu", "cpu") => "; every Device::cpu is a device of its own: make one and clone it",
        _ => "",
    }
}

impl TensorError {
    /// The error `Index` for a position.
    pub(crate) fn index(op: &'static str, index: usize, len: usize) -> Self {
        // An index that was a negative i64 becomes negative again.
        TensorError::Index { op, index: index as isize, len }
    }

    /// The out-of-memory ledger; `None` for other errors.
    pub fn out_of_memory(&self) -> Option<&OutOfMemory> {
        match self {
            TensorError::Alloc(AllocError::OutOfMemory(ledger)) => Some(ledger),
            _ => None,
        }
    }

    /// Adds the caller of an operation to the error of a driver call that lacked memory.
    pub(crate) fn called_by(mut self, site: &'static Location<'static>) -> TensorError {
        if let TensorError::Alloc(AllocError::OutOfMemory(ledger)) = &mut self
            && ledger.refused_call.is_some()
        {
            ledger.site = site;
        }
        self
    }
}

/// The result of a tensor operation. The name is not `Result`, so that all crates of the workspace
/// can be imported by glob together.
pub type TensorResult<T, E = TensorError> = std::result::Result<T, E>;

pub(crate) use TensorResult as Result;
