//! Calls of the driver that failed for a lack of memory.

use lowtide_allocator::cuda::CudaError;
use lowtide_allocator::{AllocError, SourceError};

use super::gate::BlasError;
use crate::error::TensorError;

impl TensorError {
    /// The call for which the driver had no memory; `None` for other errors.
    pub(super) fn refused_call(&self) -> Option<&'static str> {
        let of_driver = |error: &CudaError| match error {
            CudaError::Call { call, .. } if error.is_out_of_memory() => Some(*call),
            _ => None,
        };
        match self {
            TensorError::Alloc(AllocError::OutOfMemory(ledger)) => ledger.refused_call,
            TensorError::Alloc(AllocError::Source(SourceError::OutOfMemory { .. })) => {
                Some("page-locked memory of the host")
            }
            TensorError::Cuda(error) => of_driver(error),
            TensorError::Launch(error) => error.cause().and_then(of_driver),
            TensorError::Product(BlasError::Driver(error)) => of_driver(error),
            TensorError::Product(error @ BlasError::Call { call, .. })
                if error.is_out_of_memory() =>
            {
                Some(*call)
            }
            _ => None,
        }
    }
}
