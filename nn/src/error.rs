//! What can go wrong with models, optimizers and their files.

use std::path::PathBuf;

use lowtide_allocator::OutOfMemory;
use lowtide_autograd::AutogradError;
use lowtide_tensor::{Shape, TensorError};
use thiserror::Error;

/// An error of a layer, an optimizer or a weights file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NnError {
    /// A recorded operation failed.
    #[error(transparent)]
    Autograd(#[from] AutogradError),
    /// A gradient does not have its parameter's shape or type.
    #[error("{name}: the gradient is {found}, the parameter {expected}")]
    Gradient {
        /// Name of the parameter.
        name: String,
        /// Shape of the gradient.
        found: Shape,
        /// Shape of the parameter.
        expected: Shape,
    },
    /// A state is not what the optimizer keeps under this name.
    #[error("{name}: {problem}")]
    State {
        /// Name of the state tensor.
        name: String,
        /// How the file or state differs from what was expected.
        problem: WeightsProblem,
    },
    /// The parameters have the values of their average.
    #[error("the parameters are swapped for their average; swap them back before an update")]
    Swapped,
    /// An option is out of its range.
    #[error("{name} = {value} is not in {range}")]
    Option {
        /// Name of the option.
        name: &'static str,
        /// The value that was given.
        value: f64,
        /// The range of accepted values.
        range: &'static str,
    },
    /// A weights file could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The error of the file system.
        source: std::io::Error,
    },
    /// A weights file is not a safetensors file.
    #[error("{}: {source}", path.display())]
    Format {
        /// Path of the file.
        path: PathBuf,
        /// The error of the parser.
        source: safetensors::SafeTensorError,
    },
    /// A weights file does not hold what the model has under this name.
    #[error("{}: {name}: {problem}", path.display())]
    Weights {
        /// Path of the file.
        path: PathBuf,
        /// Name of the parameter or buffer.
        name: String,
        /// How the file or state differs from what was expected.
        problem: WeightsProblem,
    },
}

/// How a file and a model or its optimizer differ.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WeightsProblem {
    /// The model has the parameter, the file does not.
    #[error("missing from the file")]
    Missing,
    /// The file has it, the model does not.
    #[error("not known to this model")]
    Unknown,
    /// A count of updates that is no count, or differs from that of the other parameters.
    #[error("not the count of updates that the other parameters had")]
    Steps,
    /// The shapes differ.
    #[error("shape {found:?} in the file, {expected} in the model")]
    Shape {
        /// Shape in the file.
        found: Vec<usize>,
        /// Shape in the model.
        expected: Shape,
    },
    /// The element types differ.
    #[error("element type {found} in the file, {expected} in the model")]
    Type {
        /// Type in the file.
        found: String,
        /// Type in the model.
        expected: String,
    },
}

impl From<TensorError> for NnError {
    fn from(error: TensorError) -> Self {
        NnError::Autograd(error.into())
    }
}

impl NnError {
    /// This error as the error type of `autograd`, for a segment of a pass.
    pub fn into_autograd(self) -> AutogradError {
        match self {
            NnError::Autograd(error) => error,
            error => AutogradError::segment(error),
        }
    }

    /// The out-of-memory ledger, if this is an out-of-memory error.
    pub fn out_of_memory(&self) -> Option<&OutOfMemory> {
        match self {
            NnError::Autograd(error) => error.out_of_memory(),
            _ => None,
        }
    }
}

/// The result of an operation of this crate. It is not called `Result`, so that all crates of the
/// workspace can be imported by glob together.
pub type NnResult<T, E = NnError> = std::result::Result<T, E>;

pub(crate) use NnResult as Result;
