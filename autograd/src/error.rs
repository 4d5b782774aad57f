//! What can go wrong while recording or walking backwards.

use std::error::Error;
use std::panic::Location;
use std::sync::Arc;

use lowtide_allocator::OutOfMemory;
use lowtide_tensor::{DType, Shape, TensorError};

use crate::anomaly::Anomaly;

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
        /// Name of the operation, such as `add`.
        op: &'static str,
        /// Where it was called.
        site: &'static Location<'static>,
    },
    /// Values of two passes met in one operation.
    #[error("{op} at {site}: the operands belong to different passes")]
    Passes {
        /// Name of the operation, such as `add`.
        op: &'static str,
        /// Where it was called.
        site: &'static Location<'static>,
    },
    /// An operation without a rule met a value that needs a gradient.
    #[error("{op} at {site}: no rule for the gradient, but an operand needs one")]
    NoRule {
        /// Name of the operation, such as `add`.
        op: &'static str,
        /// Where it was called.
        site: &'static Location<'static>,
    },
    /// The rule of an operation gave other gradients than its inputs need.
    #[error("{op} at {site}: its rule {fault}")]
    Rule {
        /// Name of the operation, such as `add`.
        op: &'static str,
        /// Where it was called.
        site: &'static Location<'static>,
        /// What is wrong with the gradients.
        fault: RuleFault,
    },
    /// A gradient cannot be collected for such a value.
    #[error("{op} at {site}: {fault}")]
    Leaf {
        /// `leaf` or `input`.
        op: &'static str,
        /// Where it was called.
        site: &'static Location<'static>,
        /// What is wrong with the value.
        fault: LeafFault,
    },
    /// An equation of [`crate::Var::einsum`] cannot be followed.
    #[error("einsum: \"{equation}\" {fault}")]
    Equation {
        /// As it was given.
        equation: String,
        /// What is wrong with it.
        fault: &'static str,
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

/// What a rule did wrong. Inputs are counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleFault {
    /// It gave too few gradients, or too many.
    #[error("gave {found} gradients for {expected} inputs")]
    Count {
        /// How many it gave.
        found: usize,
        /// How many inputs the operation has.
        expected: usize,
    },
    /// It gave `None` for an input that needs a gradient.
    #[error("gave input {input} no gradient, though it needs one")]
    Missing {
        /// Index of the input, from 0.
        input: usize,
    },
    /// A gradient has not the shape of its input.
    #[error("gave input {input} of shape {expected} a gradient of shape {found}")]
    Shape {
        /// Index of the input, from 0.
        input: usize,
        /// The shape of the gradient.
        found: Shape,
        /// The shape of the input.
        expected: Shape,
    },
    /// A gradient has not the element type of its input.
    #[error("gave input {input} of type {expected} a gradient of type {found}")]
    DType {
        /// Index of the input, from 0.
        input: usize,
        /// The type of the gradient.
        found: DType,
        /// The type of the input.
        expected: DType,
    },
}

/// Why no gradient can be collected for a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeafFault {
    /// Only floats have gradients.
    #[error("a value of type {dtype} has no gradient")]
    Integers {
        /// The type of the value.
        dtype: DType,
    },
    /// One identity was given to two different values in one step.
    #[error("one identity stands for {} {} and for {} {}", first.1, first.0, second.1, second.0)]
    Changed {
        /// The earlier value.
        first: (Shape, DType),
        /// This one.
        second: (Shape, DType),
    },
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

/// The result of an autograd operation. It is not called `Result`, so that all crates of the
/// workspace can be imported by glob together.
pub type AutogradResult<T, E = AutogradError> = std::result::Result<T, E>;

pub(crate) use AutogradResult as Result;
