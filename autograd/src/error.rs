//! What can go wrong while recording or walking backwards.

use std::panic::Location;

use lowtide_allocator::OutOfMemory;
use lowtide_tensor::{Shape, TensorError};
use thiserror::Error;

/// An error of a recorded operation or of a backward pass.
#[derive(Clone, Debug, Error)]
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
}

impl AutogradError {
    /// This error with the operation's place in it. Rules save inside closures, which do not
    /// know their caller; the record does.
    pub(crate) fn saved_by(self, site: &'static Location<'static>) -> Self {
        match self {
            AutogradError::Modified { op, written_at, .. } => {
                AutogradError::Modified { op, saved_at: site, written_at }
            }
            error => error,
        }
    }

    /// The out-of-memory ledger, if that is what this is.
    pub fn out_of_memory(&self) -> Option<&OutOfMemory> {
        match self {
            AutogradError::Tensor(error) => error.out_of_memory(),
            _ => None,
        }
    }
}
