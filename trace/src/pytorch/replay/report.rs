//! The result of a replay.

/// The differences between a replayed policy and the recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplayReport {
    /// Number of events of the trace.
    pub events: u64,
    /// Number of blocks allocated in the trace.
    pub addresses_total: u64,
    /// Number of blocks allocated at the recorded address.
    pub addresses_equal: u64,
    /// Number of segments reserved in the trace.
    pub segments_total: u64,
    /// Number of segments that the policy asked for with the recorded size.
    pub segments_equal: u64,
    /// True if every segment and block at the end is as recorded: address, size, request, state.
    pub final_blocks_equal: bool,
    /// Peak of bytes in use: requests, each rounded up to 512.
    pub peak_active_bytes: u64,
    /// Peak of bytes under blocks in use, including rests that were not split off
    /// (`active_bytes.all.peak` of PyTorch).
    pub peak_block_bytes: u64,
    /// Peak of bytes in segments.
    pub peak_reserved_bytes: u64,
    /// Number of segments that the policy asked of the source, or gave back to it, during the
    /// trace.
    pub source_calls: u64,
    /// Number of blocks at the start whose size the trace leaves open, within 1 MiB. Their sizes
    /// were chosen to agree with the rest of the trace.
    pub inferred_blocks: u64,
    /// Index of the first event at which the policy differed from the recording.
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
