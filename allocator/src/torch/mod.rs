//! The placement rules of PyTorch's CUDA caching allocator, as arithmetic on addresses.
//!
//! The rules follow `c10/cuda/CUDACachingAllocator.cpp` and `c10/core/AllocatorConfig.h` of PyTorch
//! (BSD-3, early 2026), as published; no code is shared. These rules place every block where
//! PyTorch places it. So PyTorch's recorded traces replay address for address (crate
//! `lowtide-trace`), and a policy can be compared with PyTorch's on the same requests.
//!
//! - A *segment* comes from a [`SegmentSource`]; *blocks* tile it. Small requests (at most 1 MiB)
//!   and large requests have a pool each. The two pools never share a segment.
//! - A request takes the smallest free block of its stream that fits, the lowest on ties.
//! - The rest of this block becomes a free block if it is at least 512 bytes in the small pool, or
//!   more than 1 MiB in the large pool. A smaller rest stays with the block, as waste.
//! - A freed block merges with its free neighbours. A block that other streams used stays active
//!   until [`complete_free`](TorchPolicy::complete_free) says that these streams are done with it.
//! - With expandable segments, a stream's requests share few long ranges of addresses. The lowest
//!   free addresses get memory, by pages of 2 MiB (small pool) or 20 MiB (large pool). Free pages
//!   lose their memory when the cache is emptied.
//!
//! Private pools of graph captures and callbacks on a lack of memory are left out.

mod block;
mod check;
mod error;
mod expand;
mod heap;
mod layout;
mod policy;
mod reclaim;
mod settings;
mod source;

pub use block::{
    AddressRange, BlockLayout, BlockState, LiveBlock, Pool, RangeLayout, SegmentLayout,
    SegmentStatistics, StreamId,
};
pub use error::{LayoutError, TorchError};
pub use policy::{Freed, Placement, TorchCounters, TorchPolicy};
pub use settings::{
    MADE_TO_MEASURE_BYTES_MIN, POWER2_INTERVALS, REQUEST_BYTES_END, SMALL_BYTES_MAX,
    SMALL_SEGMENT_BYTES, TorchSettings, round_to_power2_division,
};
pub use source::{PageSource, SegmentSource, SourceCall};
