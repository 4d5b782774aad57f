#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

#[cfg(not(target_pointer_width = "64"))]
compile_error!("lowtide needs a target of 64 bits: it reserves terabytes of addresses");
#[cfg(not(unix))]
compile_error!(
    "lowtide needs Unix: it reserves far more addresses than it uses, and Windows takes memory for \
     all of them"
);

mod arena;
mod bytes;
mod caching;
mod category;
#[cfg(feature = "cuda")]
pub mod cuda;
mod error;
mod fault;
#[doc(hidden)]
pub mod files;
mod history;
mod lock;
mod origin;
mod source;
mod statistics;
mod stream;
pub mod torch;

pub use arena::block_info::BlockInfo;
pub use arena::extent::{BLOCK_BYTES, Extent, active_bytes};
pub use arena::freed::FreedBlock;
pub use bytes::{Bytes, UNLIMITED_BYTES};
pub use caching::CachingAllocator;
pub use caching::arenas::Arenas;
pub use caching::buffer::Buffer;
pub use caching::checked::Owner;
pub use caching::own::OwnBlocks;
pub use caching::pinned::{PinnedBuffer, PinnedCache};
pub use caching::policy::Policy;
pub use caching::promise::Promise;
pub use caching::reclaim::{Reclaim, Registration};
pub use caching::scope::{CategoryScope, Charge, Seal};
pub use caching::simulation::Simulation;
pub use caching::watch::{Watch, WatchReport};
pub use category::{ByCategory, Category};
pub use error::{AllocError, OutOfMemory, Rung};
pub use fault::{Fault, Repeat};
pub use history::capture::{Capture, CapturedBlock};
pub use history::ring::HISTORY_BYTES;
pub use history::{Action, History, Moment, Record};
pub use origin::{ModulePath, Origin, OriginScope};
pub use source::adaptor::{Adaptor, SourceCall, Upstream};
pub use source::fence::Fence;
#[cfg(target_os = "linux")]
pub use source::host::SystemLock;
pub use source::host::{
    HostSource, LimitOrigin, MemoryLimit, ProcessMemory, available_bytes, process_memory,
};
pub use source::limit::LimitSource;
pub use source::locked::{LockedSource, PageLock};
pub use source::retry::{Failure, OnFailure, RetrySource};
pub use source::sim::SimSource;
pub use source::sim_streams::{EarlyReuse, SimStreams};
#[cfg(feature = "testing")]
pub use source::testing::co_tenant::{CoTenantSource, Tenancy};
#[cfg(feature = "testing")]
pub use source::testing::fault::FaultSource;
#[cfg(feature = "testing")]
pub use source::testing::recording::{CallRecord, RecordingSource};
pub use source::{Mapping, MemorySource, PageRange, Segment, SourceError, VirtualMemory};
pub use statistics::{Counter, ModuleShare, Statistics};
pub use stream::Stream;
