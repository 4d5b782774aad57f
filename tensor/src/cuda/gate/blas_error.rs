//! Errors of cuBLASLt.

use std::path::PathBuf;

use thiserror::Error;

use lowtide_allocator::cuda::{CudaError, MissingLibrary};

/// Reasons why a product was not enqueued. After an error nothing was enqueued.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BlasError {
    /// cuBLASLt is not on this machine, or cannot be used.
    #[error("no cuBLASLt: {0}")]
    Missing(#[from] MissingLibrary),
    /// The library is of a later version of CUDA than the driver, which may not serve it.
    #[error("cuBLASLt {path:?} is of CUDA {version}, the driver of CUDA {driver_version}")]
    NewerThanDriver {
        /// Path of the library's file.
        path: PathBuf,
        /// 1000 times the major number and 10 times the minor one.
        version: usize,
        /// The CUDA version that the driver serves, in the form of `version`.
        driver_version: usize,
    },
    /// The library cannot do this product within the workspace, so the caller has to use its own
    /// kernel.
    #[error("cuBLASLt has no way to do this product in {workspace_bytes} bytes of workspace")]
    NoPlan {
        /// Workspace that the library was given.
        workspace_bytes: usize,
    },
    /// A row is longer than the distance to the next row, or a number is too large for the library.
    #[error("operand {operand} has no layout of cuBLASLt")]
    Layout {
        /// `y`, `a` or `b`.
        operand: &'static str,
    },
    /// The bytes of an operand are fewer than its layout covers, or not whole elements.
    #[error("operand {operand} covers {needed_bytes} bytes of the {given_bytes} that it is given")]
    Short {
        /// `y`, `a` or `b`.
        operand: &'static str,
        /// Bytes from the first element to the end of the last one.
        needed_bytes: usize,
        /// Length of the range.
        given_bytes: usize,
    },
    /// The library refused.
    #[error("{call} failed with {name} ({code})")]
    Call {
        /// Name of the function that was called.
        call: &'static str,
        /// Code that the function returned.
        code: i32,
        /// NVIDIA's name of the code.
        name: &'static str,
    },
    /// The driver refused, or an operand is no memory of the device.
    #[error(transparent)]
    Driver(#[from] CudaError),
}

/// `cublasStatus_t` (cuBLAS documentation, section "cublasStatus_t").
const NAMES: [(i32, &str); 10] = [
    (NOT_INITIALIZED, "CUBLAS_STATUS_NOT_INITIALIZED"),
    (ALLOC_FAILED, "CUBLAS_STATUS_ALLOC_FAILED"),
    (INVALID_VALUE, "CUBLAS_STATUS_INVALID_VALUE"),
    (ARCH_MISMATCH, "CUBLAS_STATUS_ARCH_MISMATCH"),
    (11, "CUBLAS_STATUS_MAPPING_ERROR"),
    (EXECUTION_FAILED, "CUBLAS_STATUS_EXECUTION_FAILED"),
    (INTERNAL_ERROR, "CUBLAS_STATUS_INTERNAL_ERROR"),
    (NOT_SUPPORTED, "CUBLAS_STATUS_NOT_SUPPORTED"),
    (16, "CUBLAS_STATUS_LICENSE_ERROR"),
    (0, "CUBLAS_STATUS_SUCCESS"),
];

const NOT_INITIALIZED: i32 = 1;
const ALLOC_FAILED: i32 = 3;
const INVALID_VALUE: i32 = 7;
const ARCH_MISMATCH: i32 = 8;
const EXECUTION_FAILED: i32 = 13;
const INTERNAL_ERROR: i32 = 14;
const NOT_SUPPORTED: i32 = 15;

impl BlasError {
    /// True if a kernel of the caller can replace the library: the library cannot be used at all,
    /// has no plan for the product, or rejects the product as invalid.
    pub fn is_unsupported(&self) -> bool {
        match self {
            BlasError::NoPlan { .. } | BlasError::Layout { .. } => true,
            BlasError::Call { code, .. } => {
                matches!(*code, NOT_SUPPORTED | INVALID_VALUE) || self.is_unusable()
            }
            _ => self.is_unusable(),
        }
    }

    /// True if the library can do no product here: it is missing, of another version than the
    /// driver, not started, or not for this device.
    pub fn is_unusable(&self) -> bool {
        match self {
            BlasError::Missing(_) | BlasError::NewerThanDriver { .. } => true,
            BlasError::Call { code, .. } => matches!(*code, NOT_INITIALIZED | ARCH_MISMATCH),
            _ => false,
        }
    }

    /// True if the library reports that it does not support such a product.
    pub(super) fn is_of_product(&self) -> bool {
        matches!(self, BlasError::Call { code: NOT_SUPPORTED, .. })
    }

    /// True if the library had no memory for its own state. A smaller or a later request may
    /// succeed.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            BlasError::Call { code, .. } => *code == ALLOC_FAILED,
            BlasError::Driver(error) => error.is_out_of_memory(),
            _ => false,
        }
    }

    /// True if the driver reports that the device's context is lost. The library does not report a
    /// lost context: `EXECUTION_FAILED` may mean one, and then the next call of the driver reports
    /// it.
    pub fn is_fault(&self) -> bool {
        matches!(self, BlasError::Driver(error) if error.is_fault())
    }

    /// `Err` if the code that a call returned is an error.
    pub(super) fn check(call: &'static str, code: i32) -> Result<(), BlasError> {
        if code == 0 {
            return Ok(());
        }
        let known = NAMES.iter().find(|(known, _)| *known == code);
        let name = known.map_or("a code without a name", |(_, name)| name);
        Err(BlasError::Call { call, code, name })
    }
}
