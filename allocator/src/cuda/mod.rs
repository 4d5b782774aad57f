//! NVIDIA devices: the one place that calls the driver.
//!
//! The driver is found and loaded at run time, so that everything builds, and says what is missing,
//! where there is none. [`Driver`] is the library, [`CudaDevice`] a device with its primary
//! context, [`CudaStreams`] its queues and the order between them, [`CudaSource`] its memory,
//! [`CudaHostSource`] page-locked memory of the host.
//!
//! ```no_run
//! use lowtide_allocator::cuda::{CudaDevice, CudaSource, CudaStreams};
//! use lowtide_allocator::{CachingAllocator, Stream};
//!
//! let device = CudaDevice::open(0)?;
//! let streams = CudaStreams::new(&device);
//! let memory = CachingAllocator::new(CudaSource::new(&streams)?)?;
//! let block = memory.allocate(1 << 20)?;
//! streams.fill(Stream::DEFAULT, &block, 0..1 << 20, 7)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What the driver does with its device's memory is no matter of references: the processor cannot
//! read it. So the functions here are safe where they see to it that the bytes are of a live block
//! of the device, and that bytes of the host outlive the copy.
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

pub use device::{CudaDevice, DeviceMemory};
pub use driver::Driver;
pub use error::CudaError;
pub use host::CudaHostSource;
pub use libraries::Libraries;
pub use source::{CudaSource, MemoryReport};
pub use streams::CudaStreams;
