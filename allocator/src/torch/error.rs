//! Errors of the policy.

use thiserror::Error;

/// An error of [`TorchPolicy`](crate::torch::TorchPolicy). Live blocks are as before; cached
/// segments may have been released.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TorchError {
    /// No rung of the ladder found room.
    #[error(
        "out of memory: {requested_bytes} bytes asked, a segment of {segment_bytes} needed, \
         {reserved_bytes} reserved of which {active_bytes} active"
    )]
    OutOfMemory {
        /// Bytes that the caller asked for.
        requested_bytes: u64,
        /// Size of the segment that the source, or the limit, refused.
        segment_bytes: u64,
        /// Bytes still held from the source after the whole cache was released.
        reserved_bytes: u64,
        /// Bytes of live and pending blocks.
        active_bytes: u64,
        /// The limit of the settings.
        limit_bytes: Option<u64>,
    },
    /// PyTorch refuses requests of an EiB or more before any search.
    #[error("{requested_bytes} bytes asked, more than an exabyte")]
    TooLarge {
        /// Bytes that the caller asked for.
        requested_bytes: u64,
    },
    /// No block in the right state is at the address.
    #[error("no block at {address:#x} that could be {verb}")]
    NotThere {
        /// Address where the block should be.
        address: u64,
        /// The operation, as a participle.
        verb: &'static str,
    },
}

/// An impossible layout: blocks that do not tile their segment, free neighbours, parts of pages, or
/// segments that overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the segment at {address:#x} overlaps another one, or its blocks do not tile it")]
pub struct LayoutError {
    /// Address of the segment.
    pub address: u64,
}
