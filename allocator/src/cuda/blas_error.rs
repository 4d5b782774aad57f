//! What can go wrong between a program and cuBLASLt.

use thiserror::Error;

use super::error::CudaError;
use super::libraries::MissingLibrary;

/// Why a product was not enqueued. Nothing was then.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BlasError {
    /// cuBLASLt is not on this machine, or cannot be used.
    #[error("no cuBLASLt: {0}")]
    Missing(#[from] MissingLibrary),
    /// It has no way to do this product within the workspace; one's own kernel has to.
    #[error("cuBLASLt has no way to do this product in {workspace_bytes} bytes of workspace")]
    NoPlan {
        /// What was given.
        workspace_bytes: usize,
    },
    /// A row is longer than the way to the next one, or a number too large for the library.
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
        /// From its first element to the end of the last one.
        needed_bytes: usize,
        /// Of the range.
        given_bytes: usize,
    },
    /// The library refused.
    #[error("{call} failed with {name} ({code})")]
    Call {
        /// The function.
        call: &'static str,
        /// What it returned.
        code: i32,
        /// NVIDIA's name for it.
        name: &'static str,
    },
    /// The driver refused, or an operand is no memory of the device.
    #[error(transparent)]
    Driver(#[from] CudaError),
}

/// `cublasStatus_t` (cuBLAS documentation, section "cublasStatus_t").
const NAMES: [(i32, &str); 10] = [
    (1, "CUBLAS_STATUS_NOT_INITIALIZED"),
    (ALLOC_FAILED, "CUBLAS_STATUS_ALLOC_FAILED"),
    (7, "CUBLAS_STATUS_INVALID_VALUE"),
    (8, "CUBLAS_STATUS_ARCH_MISMATCH"),
    (11, "CUBLAS_STATUS_MAPPING_ERROR"),
    (EXECUTION_FAILED, "CUBLAS_STATUS_EXECUTION_FAILED"),
    (INTERNAL_ERROR, "CUBLAS_STATUS_INTERNAL_ERROR"),
    (NOT_SUPPORTED, "CUBLAS_STATUS_NOT_SUPPORTED"),
    (16, "CUBLAS_STATUS_LICENSE_ERROR"),
    (0, "CUBLAS_STATUS_SUCCESS"),
];

const ALLOC_FAILED: i32 = 3;
const EXECUTION_FAILED: i32 = 13;
const INTERNAL_ERROR: i32 = 14;
const NOT_SUPPORTED: i32 = 15;

impl BlasError {
    /// Whether one's own kernel can do what the library cannot: it is not there, or has no plan.
    pub fn is_unsupported(&self) -> bool {
        match self {
            BlasError::Missing(_) | BlasError::NoPlan { .. } | BlasError::Layout { .. } => true,
            BlasError::Call { code, .. } => *code == NOT_SUPPORTED,
            _ => false,
        }
    }

    /// Whether there was no memory for the library's own state: less of it, or later, may do.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            BlasError::Call { code, .. } => *code == ALLOC_FAILED,
            BlasError::Driver(error) => error.is_out_of_memory(),
            _ => false,
        }
    }

    /// Whether the driver says that the device's context is lost. The library does not tell: its
    /// `EXECUTION_FAILED` may be that, which the next call of the driver says.
    pub fn is_fault(&self) -> bool {
        matches!(self, BlasError::Driver(error) if error.is_fault())
    }

    /// The error of a call that returned `code`, if it is one.
    pub(super) fn check(call: &'static str, code: i32) -> Result<(), BlasError> {
        if code == 0 {
            return Ok(());
        }
        let known = NAMES.iter().find(|(known, _)| *known == code);
        let name = known.map_or("a code without a name", |(_, name)| name);
        Err(BlasError::Call { call, code, name })
    }
}
