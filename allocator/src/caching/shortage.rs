//! Reasons why a request could not be served.

use crate::error::{AllocError, Tried};
use crate::source::SourceError;

/// Reasons why a request could not be served, for now or for good.
pub(crate) enum Refusal {
    /// Memory is short; reclaimers may help.
    Short(Shortage),
    /// The source failed.
    Final(AllocError),
    /// The source could not make one stream wait for another.
    Wait(SourceError),
}

/// A lack of memory, with the rungs that were tried.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shortage {
    pub(crate) needed_bytes: usize,
    /// True for an injected fault, which no rung helps.
    pub(crate) injected: bool,
    /// Rungs that were tried so far.
    pub(crate) tried: Tried,
}
