//! Code on NVIDIA devices: modules and launches by the driver, and the libraries. cuBLASLt
//! multiplies, NVRTC compiles kernels, NCCL brings bytes from one device to another.
//!
//! Each library is found and loaded at run time, through [`Libraries`], and may be missing. The
//! driver is loaded by the allocator, which owns context, memory, streams and events:
//! [`lowtide_allocator::cuda`].
//!
//! A launch is unsafe, as a kernel may reach what the driver keeps page-locked. The gate checks the
//! kind of each argument against the kernel's declaration, the declaration against what the driver
//! says of the image, and that blocks are live and of the device.
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
