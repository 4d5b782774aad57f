#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

#[cfg(not(target_pointer_width = "64"))]
compile_error!("lowtide needs a target of 64 bits: it reserves terabytes of addresses");
#[cfg(not(unix))]
compile_error!(
    "lowtide needs Unix: it reserves far more addresses than it uses, and Windows takes memory for \
     all of them"
);

mod adaptor;
mod arenas;
mod books;
mod buffer;
mod caching;
mod category;
mod check;
mod checked;
mod co_tenant;
#[cfg(feature = "cuda")]
pub mod cuda;
mod engine;
mod error;
mod fault;
mod history;
mod holes;
mod host;
mod layout;
mod limit;
mod live;
mod lock;
mod locked;
mod mapping;
#[cfg(all(test, lowtide_loom))]
mod models;
mod modules;
mod origin;
mod pages;
mod pinned;
mod policy;
mod reclaim;
mod recording;
mod retry;
mod scope;
mod sim;
mod sim_streams;
mod simulation;
mod source;
mod statistics;
mod stream;
mod sync;
pub mod torch;
mod torch_front;
mod torch_named;
pub mod trace;
mod views;
mod watch;

pub use adaptor::{Adaptor, SourceCall, Upstream};
pub use arenas::Arenas;
pub use buffer::Buffer;
pub use caching::CachingAllocator;
pub use category::{ByCategory, Category};
pub use checked::{FreedBlock, Owner};
pub use co_tenant::{CoTenantSource, Tenancy};
pub use error::{AllocError, OutOfMemory, Rung};
pub use fault::{Fault, FaultSource, Repeat};
pub use history::{Action, History, Moment, Record};
#[cfg(target_os = "linux")]
pub use host::SystemLock;
pub use host::{HostSource, LimitOrigin, MemoryLimit, available_bytes};
pub use layout::BLOCK_BYTES;
pub use limit::LimitSource;
pub use live::BlockInfo;
pub use locked::{LockedSource, PageLock};
pub use modules::ModuleShare;
pub use origin::{ModulePath, Origin, OriginScope};
pub use pinned::{PinnedBuffer, PinnedCache};
pub use policy::Policy;
pub use reclaim::{Reclaim, Registration};
pub use recording::{CallRecord, RecordingSource};
pub use retry::{Failure, OnFailure, RetrySource};
pub use scope::{CategoryScope, Charge, Seal};
pub use sim::SimSource;
pub use sim_streams::{EarlyReuse, SimStreams};
pub use simulation::Simulation;
pub use source::{Mapping, MemorySource, PageRange, Segment, SourceError, VirtualMemory};
pub use statistics::{Counter, Statistics};
pub use stream::{Fence, Stream};
pub use watch::{Watch, WatchReport};
