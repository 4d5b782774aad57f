#![doc = include_str!("README.md")]
#![expect(unsafe_code, reason = "calls the driver")]

mod blas;
mod blas_error;
mod blas_plan;
mod compiler;
mod copies;
mod device;
mod driver;
mod error;
mod host;
mod kernel_cache;
mod kernel_error;
mod launch;
mod libraries;
mod module;
mod pages;
#[cfg(feature = "pretend")]
pub mod pretend;
mod source;
mod streams;
mod table;

pub use blas::{
    Blas, MatrixLayout, Order, Place, PlanCounts, Precision, Product, ProductOperands, Start,
};
pub use blas_error::BlasError;
pub use compiler::{CompileError, Compiler, Program};
pub use device::{Architecture, CudaDevice, DeviceMemory};
pub use driver::Driver;
pub use error::CudaError;
pub use host::CudaHostSource;
pub use kernel_cache::{KernelCache, KernelCompiler};
pub use kernel_error::KernelError;
pub use launch::{Argument, Grid, Kernel, Parameter};
pub use libraries::{Libraries, MissingLibrary};
pub use module::{Function, FunctionNeeds, Module};
pub use source::{CudaSource, MemoryReport};
pub use streams::CudaStreams;
