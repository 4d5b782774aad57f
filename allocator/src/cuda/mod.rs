#![doc = include_str!("README.md")]
#![expect(unsafe_code, reason = "calls the driver")]

mod copies;
mod device;
mod driver;
mod error;
mod host;
mod libraries;
mod pages;
#[cfg(feature = "pretend")]
pub mod pretend;
mod source;
mod streams;
mod table;

pub use device::{Architecture, CudaDevice, DeviceMemory};
pub use driver::Driver;
pub use error::CudaError;
pub use host::CudaHostSource;
pub use libloading::Library;
pub use libraries::{Libraries, MissingLibrary};
pub use source::{CudaSource, MemoryReport};
pub use streams::CudaStreams;
