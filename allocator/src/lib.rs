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
mod host;
mod layout;
mod policy;
mod scope;
mod sim;
mod simulation;
mod source;
mod statistics;
pub mod torch;
pub mod trace;

pub use buffer::Buffer;
pub use caching::CachingAllocator;
pub use category::{Arena, ByCategory, Category};
pub use error::{AllocError, OutOfMemory, Rung};
pub use fault::{Fault, FaultSource, Repeat};
pub use history::{Action, History, Record};
pub use host::HostSource;
pub use layout::BLOCK_BYTES;
pub use policy::BlockInfo;
pub use scope::{CategoryScope, Charge, Seal};
pub use sim::SimSource;
pub use simulation::Simulation;
pub use source::{MemorySource, Segment, SourceError};
pub use statistics::{Counter, Statistics};
