//! The libraries for NVIDIA devices: cuBLASLt multiplies, NVRTC compiles kernels, NCCL brings bytes
//! from one device to another.
//!
//! Each is found and loaded at run time, through [`Libraries`], and may be missing. The driver
//! itself, memory, streams, modules and launches are the allocator's: [`lowtide_allocator::cuda`].
#![expect(unsafe_code, reason = "calls functions of C libraries")]

mod blas;
mod blas_error;
mod blas_plan;
mod compiler;
mod kernel_cache;
mod nccl;

pub use crate::write_mode::WriteMode;
pub use blas::{
    Blas, BlockBytes, Epilogue, MatrixLayout, Order, PlanCounts, Precision, Product,
    ProductOperands,
};
pub use blas_error::BlasError;
pub use compiler::{CompileError, Compiler, KernelSource};
pub use kernel_cache::{KernelCache, KernelCompiler};
#[cfg(doc)]
use lowtide_allocator::cuda::Libraries;
pub use nccl::{Communicator, Nccl, NcclError, NcclId};
