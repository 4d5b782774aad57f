//! The result of a replay.

/// The differences between a replayed policy and the recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplayReport {
    /// Entries of the trace.
    pub events: u64,
    /// Blocks handed out in the trace.
    pub addresses_total: u64,
    /// Blocks handed out at the recorded address.
    pub addresses_equal: u64,
    /// Segments reserved in the trace.
    pub segments_total: u64,
    /// Segments that the policy asked for with the recorded size.
    pub segments_equal: u64,
    /// True if every segment and block at the end is as recorded: address, size, request, state.
    pub final_blocks_equal: bool,
    /// The most bytes in use at once: requests, each rounded up to 512.
    pub peak_active_bytes: u64,
    /// The most bytes under blocks in use, with the tails that were not split off
    /// (`active_bytes.all.peak` of PyTorch).
    pub peak_block_bytes: u64,
    /// The most bytes in segments at once.
    pub peak_reserved_bytes: u64,
    /// Segments that the policy asked of the source, or gave back to it, during the trace.
    pub source_calls: u64,
    /// Blocks at the start whose size the trace leaves open, within 1 MiB: the sizes that agree
    /// with the rest of the trace were taken.
    pub inferred_blocks: u64,
    /// The first entry at which the policy did something else than recorded.
    pub first_difference: Option<u64>,
}

impl ReplayReport {
    /// True if nothing differs.
    pub fn is_exact(&self) -> bool {
        self.addresses_equal == self.addresses_total
            && self.segments_equal == self.segments_total
            && self.final_blocks_equal
    }
}
