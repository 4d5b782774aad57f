//! Errors of recording a pass and of walking it backwards.

use std::error::Error;
use std::panic::Location;
use std::sync::Arc;

use lowtide_allocator::OutOfMemory;
use lowtide_tensor::{DType, Shape, TensorError};

use crate::anomaly::Anomaly;
use crate::meta::TensorMeta;

/// The source line that called an operation, for errors.
pub(crate) type Site = &'static Location<'static>;

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
        /// The operation whose backward needs the tensor.
        op: &'static str,
        /// The line that called the operation.
        saved_at: &'static Location<'static>,
        /// The line that wrote the tensor last.
        written_at: &'static Location<'static>,
    },
    /// The pass has been consumed by `backward`.
    #[error("{op} at {site}: the pass of this value was consumed by backward")]
    Consumed {
        /// Name of the operation, such as `add`.
        op: &'static str,
        /// The line that called the operation.
        site: &'static Location<'static>,
    },
    /// Values of two passes met in one operation.
    #[error("{op} at {site}: the operands belong to different passes")]
    Passes {
        /// Name of the operation, such as `add`.
        op: &'static str,
        /// The line that called the operation.
        site: &'static Location<'static>,
    },
    /// An operation without a rule met a value that needs a gradient.
    #[error("{op} at {site}: no rule for the gradient, but an operand needs one")]
    NoRule {
        /// Name of the operation, such as `add`.
        op: &'static str,
        /// The line that called the operation.
        site: &'static Location<'static>,
    },
    /// The rule of an operation gave gradients that do not fit the inputs.
    #[error("{op} at {site}: its rule {fault}")]
    Rule {
        /// Name of the operation, such as `add`.
        op: &'static str,
        /// The line that called the operation.
        site: &'static Location<'static>,
        /// The mistake of the rule.
        fault: RuleFault,
    },
    /// A value cannot have a gradient.
    #[error("{op} at {site}: {fault}")]
    Leaf {
        /// `leaf` or `input`.
        op: &'static str,
        /// The line that called the operation.
        site: &'static Location<'static>,
        /// The reason why it is refused.
        fault: LeafFault,
    },
    /// The equation given to [`crate::Var::einsum`] is malformed or does not fit the operands.
    #[error("einsum: \"{equation}\" {fault}")]
    Equation {
        /// The equation as the caller wrote it.
        equation: String,
        /// The mistake, worded to follow the equation.
        fault: &'static str,
    },
    /// Backward was called on a value with more or fewer elements than one.
    #[error("backward: the loss has shape {shape}, not one element")]
    NotScalar {
        /// The shape of the loss.
        shape: Shape,
    },
    /// Backward was called on a value that depends on no recorded leaf.
    #[error("backward: the loss does not depend on any parameter")]
    NoGraph,
    /// A pass that looks for anomalies found one.
    #[error("{0}")]
    NonFinite(Anomaly),
    /// A recomputed segment failed with an error of another crate.
    #[error(transparent)]
    Segment(Arc<dyn Error + Send + Sync>),
}

/// A mistake of a rule. Inputs are counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleFault {
    /// The rule gave too few gradients, or too many.
    #[error("gave {found} gradients for {expected} inputs")]
    Count {
        /// The number of gradients.
        found: usize,
        /// The number of inputs.
        expected: usize,
    },
    /// The rule gave `None` for an input that needs a gradient.
    #[error("gave input {input} no gradient, though it needs one")]
    Missing {
        /// Index of the input, from 0.
        input: usize,
    },
    /// A gradient has another shape than its input.
    #[error("gave input {input} of shape {expected} a gradient of shape {found}")]
    Shape {
        /// Index of the input, from 0.
        input: usize,
        /// The shape of the gradient.
        found: Shape,
        /// The shape of the input.
        expected: Shape,
    },
    /// A gradient has another element type than its input.
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

/// The reason why a value cannot have a gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeafFault {
    /// The value consists of integers or truth values; only floats have gradients.
    #[error("a value of type {dtype} has no gradient")]
    Integers {
        /// The type of the value.
        dtype: DType,
    },
    /// One identity was given to two different values in one step.
    #[error("one identity stands for {first} and for {second}")]
    Changed {
        /// The value that had the identity earlier in the step.
        first: TensorMeta,
        /// The value that was given the identity now.
        second: TensorMeta,
    },
}

impl AutogradError {
    /// Wraps an error of a segment (a layer's or a user's), so that it passes through backward. An
    /// error that contains an [`AutogradError`] should be unwrapped instead, so that `OutOfMemory`
    /// stays visible.
    pub fn segment(error: impl Error + Send + Sync + 'static) -> Self {
        AutogradError::Segment(Arc::new(error))
    }

    /// The out-of-memory ledger, if the error is out of memory.
    pub fn out_of_memory(&self) -> Option<&OutOfMemory> {
        match self {
            AutogradError::Tensor(error) => error.out_of_memory(),
            _ => None,
        }
    }
}

/// The result of an autograd operation. Its name is not `Result`, so that all crates of the
/// workspace can be imported by glob together.
pub type AutogradResult<T, E = AutogradError> = std::result::Result<T, E>;

pub(crate) use AutogradResult as Result;
