//! Errors of a replay, and the made-up addresses of its modules.

use lowtide_allocator::torch::LayoutError;
use thiserror::Error;

/// The first address of segments that are not recorded; above the addresses of any device.
pub(crate) const MADE_UP_ADDRESS: u64 = 1 << 62;

/// Reasons why a snapshot cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The snapshot has no trace of the device.
    #[error("no trace of device {device}")]
    NoTrace {
        /// Index of the device in the snapshot.
        device: usize,
    },
    /// The events do not lead to the state at the end.
    #[error("event {event} ({address:#x}) contradicts what follows: {problem}")]
    Inconsistent {
        /// Index in the trace.
        event: u64,
        /// Address that the event names.
        address: u64,
        /// The contradiction, as a clause.
        problem: &'static str,
    },
    /// The recorded place of a block or segment is impossible.
    #[error("what is recorded at {address:#x} cannot be there")]
    Impossible {
        /// Address of the block or segment.
        address: u64,
    },
}

impl From<LayoutError> for ReplayError {
    fn from(LayoutError { address }: LayoutError) -> Self {
        ReplayError::Impossible { address }
    }
}
