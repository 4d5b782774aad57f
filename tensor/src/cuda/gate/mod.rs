//! Code on NVIDIA devices: modules and launches by the driver, and the libraries. cuBLASLt
//! multiplies, NVRTC compiles kernels, NCCL brings bytes from one device to another.
//!
//! Each library is found and loaded at run time, through [`Libraries`], and may be missing. The
//! driver is loaded by the allocator, which owns context, memory, streams and events:
//! [`lowtide_allocator::cuda`].
//!
//! A launch is unsafe, because a kernel may reach the page-locked memory of the driver. The gate
//! checks each argument against the kernel's declaration, and the declaration against the driver's
//! information about the image. Blocks are checked to be live and of the device.
#![expect(unsafe_code, reason = "calls functions of the driver and of C libraries")]

mod blas;
mod blas_error;
mod blas_plan;
mod compiler;
mod functions;
mod kernel_cache;
mod kernel_error;
mod launch;
mod module;
mod nccl;
mod ptx;
mod signature;

pub use crate::write_mode::WriteMode;
pub use blas::{
    Blas, BlockBytes, Epilogue, MatrixLayout, Order, PlanCounts, Precision, Product,
    ProductOperands,
};
pub use blas_error::BlasError;
pub use compiler::{CompileError, Compiler, KernelSource};
#[cfg(feature = "testing")]
#[doc(hidden)]
pub use kernel_cache::testing;
pub use kernel_cache::{KernelCache, KernelCompiler};
pub use kernel_error::KernelError;
#[cfg(doc)]
use lowtide_allocator::cuda::Libraries;
pub use module::{Function, FunctionNeeds, Module};
pub use nccl::{Communicator, Nccl, NcclError, NcclId};
pub use ptx::PtxArchive;
pub use signature::{Argument, Grid, Parameter, Signature};
