//! What can go wrong while recording or walking backwards.

use std::error::Error;
use std::panic::Location;
use std::sync::Arc;

use lowtide_allocator::OutOfMemory;
use lowtide_tensor::{Shape, TensorError};

use crate::Anomaly;

/// An error of a recorded operation or of a backward pass.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AutogradError {
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A tensor that backward needs was written in place after it was saved.
    #[error("{op}: the tensor saved at {saved_at} was changed in place at {written_at}")]
    Modified {
        /// The operation whose backward needs it.
        op: &'static str,
        /// Where the operation was called.
        saved_at: &'static Location<'static>,
        /// Where it was last written.
        written_at: &'static Location<'static>,
    },
    /// The pass has been consumed by `backward`.
    #[error("{op} at {site}: the pass of this value was consumed by backward")]
    Consumed {
        /// The operation.
        op: &'static str,
        /// Where it was called.
        site: &'static Location<'static>,
    },
    /// Values of two passes met in one operation.
    #[error("{op} at {site}: the operands belong to different passes")]
    Passes {
        /// The operation.
        op: &'static str,
        /// Where it was called.
        site: &'static Location<'static>,
    },
    /// An operation without a rule met a value that needs a gradient.
    #[error("{op} at {site}: no rule for the gradient, but an operand needs one")]
    NoRule {
        /// The operation.
        op: &'static str,
        /// Where it was called.
        site: &'static Location<'static>,
    },
    /// Backward starts from one number.
    #[error("backward: the loss has shape {shape}, not one element")]
    NotScalar {
        /// The shape found.
        shape: Shape,
    },
    /// Backward was asked of a value that no recorded leaf leads to.
    #[error("backward: the loss does not depend on any parameter")]
    NoGraph,
    /// A pass that looks for anomalies found one.
    #[error("{0}")]
    NonFinite(Anomaly),
    /// A segment that was recomputed failed with an error that is not this crate's.
    #[error(transparent)]
    Segment(Arc<dyn Error + Send + Sync>),
}

impl AutogradError {
    /// Carries an error of a segment's own (a layer's, a user's) through backward. One that wraps
    /// an error of this crate should be unwrapped instead, so that `OutOfMemory` stays visible.
    pub fn segment(error: impl Error + Send + Sync + 'static) -> Self {
        AutogradError::Segment(Arc::new(error))
    }

    /// The out-of-memory ledger, if that is what this is.
    pub fn out_of_memory(&self) -> Option<&OutOfMemory> {
        match self {
            AutogradError::Tensor(error) => error.out_of_memory(),
            _ => None,
        }
    }
}
