//! Counters under the names that PyTorch gives them.

use crate::statistics::{Counter, Statistics};

impl Statistics {
    /// The counters as `torch.cuda.memory_stats` names them, for tools that read its output.
    ///
    /// Names and meanings are those of PyTorch's documentation of `memory_stats`:
    /// - `allocated_bytes` and `active_bytes` are equal: live blocks rounded up to 512 bytes. A
    ///   dropped block can be used again at once, behind a wait if need be.
    /// - `reserved_bytes` counts all bytes that the capacity limits, charged bytes too.
    /// - `allocation` and `active` count blocks.
    /// - `num_alloc_retries` and `num_ooms` mean the same as in PyTorch.
    ///
    /// Left out, because this allocator has no true value for them:
    /// - `small_pool` and `large_pool`: blocks of all sizes share one address range;
    /// - `peak` of `allocation` and `active`: peaks of the number of blocks are not counted;
    /// - `segment`: there is always one;
    /// - `inactive_split`, `inactive_split_bytes`: free pages go back one by one, whatever block
    ///   they were split from;
    /// - `oversize_allocations`, `oversize_segments`, `max_split_size`: there is no such rule;
    /// - `num_device_alloc`, `num_device_free`, `num_sync_all_streams`: `source_calls` counts all
    ///   calls together;
    /// - `num_oom_rejections`: every failure counts as one of `num_ooms`.
    pub fn torch_named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let blocks = [self.allocations - self.frees, self.allocations, self.frees];
        let counts = [
            ["allocation.all.current", "allocation.all.allocated", "allocation.all.freed"],
            ["active.all.current", "active.all.allocated", "active.all.freed"],
        ];
        let counts = counts.into_iter().flat_map(move |names| names.into_iter().zip(blocks));
        let bytes = [
            (REQUESTED, self.requested),
            (ALLOCATED, self.allocated),
            (ACTIVE, self.allocated),
            (RESERVED, self.reserved),
        ];
        let bytes = bytes.into_iter().flat_map(|(names, counter)| named(names, counter));
        let events = [("num_alloc_retries", self.retries), ("num_ooms", self.ooms)];
        counts.chain(bytes).chain(events)
    }
}

/// Current, peak, allocated and freed.
pub(crate) type Names = [&'static str; 4];

const REQUESTED: Names = [
    "requested_bytes.all.current",
    "requested_bytes.all.peak",
    "requested_bytes.all.allocated",
    "requested_bytes.all.freed",
];
const ALLOCATED: Names = [
    "allocated_bytes.all.current",
    "allocated_bytes.all.peak",
    "allocated_bytes.all.allocated",
    "allocated_bytes.all.freed",
];
const ACTIVE: Names = [
    "active_bytes.all.current",
    "active_bytes.all.peak",
    "active_bytes.all.allocated",
    "active_bytes.all.freed",
];
const RESERVED: Names = [
    "reserved_bytes.all.current",
    "reserved_bytes.all.peak",
    "reserved_bytes.all.allocated",
    "reserved_bytes.all.freed",
];

/// The four values of a counter under their names.
pub(crate) fn named(names: Names, counter: Counter) -> impl Iterator<Item = (&'static str, u64)> {
    let Counter { current_bytes, peak_bytes, total_bytes } = counter;
    let values = [current_bytes, peak_bytes, total_bytes, total_bytes - current_bytes];
    names.into_iter().zip(values.map(|bytes| bytes as u64))
}
