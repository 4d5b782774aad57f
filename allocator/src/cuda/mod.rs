#![doc = include_str!("README.md")]
#![expect(unsafe_code, reason = "calls the driver")]

mod copies;
mod device;
mod driver;
mod error;
mod host;
mod kernel_error;
mod launch;
mod libraries;
mod module;
mod pages;
#[cfg(feature = "pretend")]
pub mod pretend;
mod ptx;
mod source;
mod streams;
mod table;

pub use device::{Architecture, CudaDevice, DeviceMemory};
pub use driver::Driver;
pub use error::CudaError;
pub use host::CudaHostSource;
pub use kernel_error::KernelError;
pub use launch::{Argument, Grid, Kernel, Parameter};
pub use libloading::Library;
pub use libraries::{Libraries, MissingLibrary};
pub use module::{Function, FunctionNeeds, Module};
pub use ptx::PtxArchive;
pub use source::{CudaSource, MemoryReport};
pub use streams::CudaStreams;
