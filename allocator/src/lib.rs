#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod buffer;
mod caching;
mod category;
mod check;
mod engine;
mod error;
mod fault;
mod history;
mod holes;
mod host;
mod layout;
#[cfg(all(test, lowtide_loom))]
mod models;
mod pages;
mod policy;
mod reclaim;
mod scope;
mod sim;
mod sim_streams;
mod simulation;
mod source;
mod statistics;
mod stream;
mod sync;
pub mod torch;
pub mod trace;
mod views;

pub use buffer::Buffer;
pub use caching::CachingAllocator;
pub use category::{ByCategory, Category};
pub use error::{AllocError, OutOfMemory, Rung};
pub use fault::{Fault, FaultSource, Repeat};
pub use history::{Action, History, Moment, Record};
pub use host::HostSource;
pub use layout::BLOCK_BYTES;
pub use policy::BlockInfo;
pub use reclaim::{Reclaim, Registration};
pub use scope::{CategoryScope, Charge, Seal};
pub use sim::SimSource;
pub use sim_streams::{EarlyReuse, SimStreams};
pub use simulation::Simulation;
pub use source::{Mapping, MemorySource, PageRange, Segment, SourceError, VirtualMemory};
pub use statistics::{Counter, Statistics};
pub use stream::{Fence, Stream};
