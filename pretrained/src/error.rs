//! Errors of a folder of a model.

use std::fmt::{self, Display};
use std::path::PathBuf;

use lowtide_allocator::OutOfMemory;
use lowtide_autograd::AutogradError;
use lowtide_data::HubError;
use lowtide_nn::{NnError, WeightsProblem};
use lowtide_tensor::TensorError;
use thiserror::Error;

/// An error of a configuration, of a file of weights, or of a model.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PretrainedError {
    /// A layer or an operation failed.
    #[error(transparent)]
    Nn(#[from] NnError),
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The error of the file system.
        source: std::io::Error,
    },
    /// A file is not JSON.
    #[error("{}: {source}", path.display())]
    Json {
        /// Path of the file.
        path: PathBuf,
        /// The error of the parser.
        source: serde_json::Error,
    },
    /// An entry of a configuration cannot be used.
    #[error("{}: {entry}: {problem}", path.display())]
    Entry {
        /// Path of the file.
        path: PathBuf,
        /// Name of the entry. The name of an entry inside another follows a dot.
        entry: String,
        /// The problem of the entry.
        problem: EntryProblem,
    },
    /// There is no such folder, and the local cache of the hub has no such model.
    #[error("{name} is no folder, and {source}")]
    NotFound {
        /// The name of the model.
        name: String,
        /// The error of the search in the cache.
        source: HubError,
    },
    /// A file of weights is not a safetensors file.
    #[error("{}: {source}", path.display())]
    Format {
        /// Path of the file.
        path: PathBuf,
        /// The error of the parser.
        source: safetensors::SafeTensorError,
    },
    /// The files do not hold the tensors that the model has.
    #[error("{}: {}", folder.display(), Listed(problems))]
    Weights {
        /// The folder of the files.
        folder: PathBuf,
        /// Every tensor that is missing, unknown, or of another shape or type.
        problems: Vec<WeightProblem>,
    },
    /// A model cannot be written for other programs, or not in this format.
    #[error("{architecture} as {format}: {problem}")]
    Export {
        /// The architecture of the configuration.
        architecture: &'static str,
        /// The name of the format.
        format: &'static str,
        /// The reason why the model is not exported.
        problem: ExportProblem,
    },
}

/// Reasons why a model cannot be written in a format.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ExportProblem {
    /// Programs that read the format compute other results than the model.
    #[error("no program that reads it has {what}")]
    NoForm {
        /// The part of the model that the format lacks.
        what: &'static str,
    },
    /// A parameter of the model that the architecture in this format lacks, or a parameter of the
    /// architecture that the model lacks.
    #[error("{name} has no place in it")]
    NoPlace {
        /// Name of the parameter.
        name: String,
    },
    /// The model has adapters or quantised weights. Adapters must be merged and weights decoded
    /// first.
    #[error("the parameters are not those of the configuration: adapters have to be merged")]
    Parameters,
}

/// The problem of an entry of a configuration.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum EntryProblem {
    /// The entry is missing and has no default.
    #[error("missing")]
    Missing,
    /// The entry has another kind, or is outside its range.
    #[error("{found} is not {expected}")]
    Wrong {
        /// The values that the entry can have.
        expected: &'static str,
        /// The value of the entry, shortened.
        found: String,
    },
    /// The entry has a value that is not supported.
    #[error("{found} is not supported")]
    Unsupported {
        /// The value of the entry, shortened.
        found: String,
    },
}

/// A tensor of a file that does not fit the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightProblem {
    /// Name of the tensor.
    pub name: String,
    /// The difference between file and model.
    pub problem: WeightsProblem,
}

/// The first few problems of a list, for a terminal.
struct Listed<'a>(&'a [WeightProblem]);

impl Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN_MAX: usize = 8;
        for (index, WeightProblem { name, problem }) in self.0.iter().take(SHOWN_MAX).enumerate() {
            let separator = if index > 0 { "; " } else { "" };
            write!(f, "{separator}{}: {problem}", shortened(name))?;
        }
        match self.0.len().saturating_sub(SHOWN_MAX) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

impl From<TensorError> for PretrainedError {
    fn from(error: TensorError) -> Self {
        PretrainedError::Nn(error.into())
    }
}

impl From<AutogradError> for PretrainedError {
    fn from(error: AutogradError) -> Self {
        PretrainedError::Nn(error.into())
    }
}

impl PretrainedError {
    /// The out-of-memory ledger, if this is an out-of-memory error.
    pub fn out_of_memory(&self) -> Option<&OutOfMemory> {
        match self {
            PretrainedError::Nn(error) => error.out_of_memory(),
            _ => None,
        }
    }
}

/// The result of an operation of this crate. The name is not `Result`, so that all crates of the
/// workspace can be imported by glob together.
pub type PretrainedResult<T, E = PretrainedError> = std::result::Result<T, E>;

pub(crate) use PretrainedResult as Result;

/// A text from a file, shortened for a message, because a hostile text may be long.
pub(crate) fn shortened(text: &str) -> String {
    const SHOWN_MAX: usize = 60;
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}..", &text[..end]),
        None => text.to_owned(),
    }
}
