//! Why a request could not be served.

use crate::error::{AllocError, Tried};
use crate::source::SourceError;

/// Why a request could not be served, for now or for good.
pub(crate) enum Refusal {
    /// There is too little memory; reclaimers may help.
    Short(Shortage),
    /// The source failed.
    Final(AllocError),
    /// The source could not make one stream wait for another.
    Wait(SourceError),
}

/// How much is missing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shortage {
    pub(crate) needed_bytes: usize,
    /// No rung helps against a fault that was asked for.
    pub(crate) injected: bool,
    /// What has been tried so far.
    pub(crate) tried: Tried,
}
