//! Errors of models, optimizers and their files.

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
    /// A state tensor differs from the one that the optimizer keeps under this name.
    #[error("{name}: {problem}")]
    State {
        /// Name of the state tensor.
        name: String,
        /// The difference between the file or state and the expected one.
        problem: WeightsProblem,
    },
    /// The blocks of a [stage](crate::parallel::run_stage) have run. This is no failure: it ends
    /// the forward code of the stage's model.
    #[error("this stage of the model ends here")]
    EndOfStage,
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
    /// A tensor of a weights file differs from the model's tensor of this name.
    #[error("{}: {name}: {problem}", path.display())]
    Weights {
        /// Path of the file.
        path: PathBuf,
        /// Name of the parameter or buffer.
        name: String,
        /// The difference between the file or state and the expected one.
        problem: WeightsProblem,
    },
    /// A parameter is divided: this rank has only a part.
    #[error("{name} is divided among ranks, and this one has only a part of it")]
    Divided {
        /// Name of the parameter.
        name: String,
    },
    /// Adapters do not fit the model.
    #[error(transparent)]
    Adapter(#[from] AdapterProblem),
    /// The model cannot be pruned in the requested way.
    #[error(transparent)]
    Prune(#[from] PruneProblem),
}

/// Reasons why a model cannot be pruned.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PruneProblem {
    /// No parameter, or no group of channels, has this name.
    #[error("nothing to prune is called `{target}`; there are {}", list(names))]
    NoMatch {
        /// The target as the caller gave it.
        target: String,
        /// Names of the parameters or groups that could be pruned.
        names: Vec<String>,
    },
    /// The inputs of a weight do not divide into runs of equal length.
    #[error("{name}: {inputs} inputs are no multiple of {of}")]
    Inputs {
        /// Name of the parameter.
        name: String,
        /// Positions along dimension 1.
        inputs: usize,
        /// Length of a run.
        of: usize,
    },
    /// The group has no channel with this index.
    #[error("{group}: there is no channel {channel} of {len}")]
    Channel {
        /// Name of the group.
        group: String,
        /// Index of the channel.
        channel: usize,
        /// Channels of the group.
        len: usize,
    },
    /// No channel would be left.
    #[error("{group}: one of the {len} channels has to stay")]
    Emptied {
        /// Name of the group.
        group: String,
        /// Channels of the group.
        len: usize,
    },
    /// A group names slices that a tensor does not have.
    #[error("{group}: {name} is not of {len} channels along dimension {axis}")]
    Group {
        /// Name of the group.
        group: String,
        /// Name of the parameter or buffer.
        name: String,
        /// The dimension of the channels.
        axis: usize,
        /// Channels of the group.
        len: usize,
    },
    /// A layer has an adapter or is quantised: its channels cannot be cut.
    #[error("{name} has an adapter or is quantised; prune before that")]
    Layer {
        /// Name of the layer.
        name: String,
    },
}

/// Reasons why a model cannot be adapted, or cannot take the adapters of a file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AdapterProblem {
    /// No linear layer has this name.
    #[error("no linear layer is called `{target}`; there are {}", endings(layers))]
    NoMatch {
        /// The target as the caller gave it.
        target: String,
        /// Names of the linear layers of the model.
        layers: Vec<String>,
    },
    /// The pattern is no regular expression.
    #[error("`{pattern}`: {source}")]
    Pattern {
        /// The pattern as the caller gave it.
        pattern: String,
        /// The place of the problem.
        source: Box<regex::Error>,
    },
    /// The layer has an adapter already.
    #[error("{name} has an adapter already; merge or remove it first")]
    Present {
        /// Name of the layer.
        name: String,
    },
    /// The model has no adapters.
    #[error("no layer has an adapter")]
    Absent,
    /// The weight is also another parameter. A merge would change both.
    #[error("the weight of {name} is also another parameter, such as an embedding")]
    Shared {
        /// Name of the layer.
        name: String,
    },
    /// The weight is quantised. A merge would round it again.
    #[error("the weight of {name} is quantised; decode it before a merge")]
    Quantized {
        /// Name of the layer.
        name: String,
    },
    /// The config of the adapters asks for a feature that is not supported.
    #[error("{}: `{field}` is {value}, which is not known here", path.display())]
    Unsupported {
        /// Path of the file.
        path: PathBuf,
        /// Field of the config.
        field: &'static str,
        /// The value of the field, shortened.
        value: String,
    },
    /// The config of the adapters is not JSON.
    #[error("{}: {source}", path.display())]
    Json {
        /// Path of the file.
        path: PathBuf,
        /// The error of the parser.
        source: serde_json::Error,
    },
}

/// Differences between a file and a model or its optimizer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WeightsProblem {
    /// The model has the parameter, the file does not.
    #[error("missing from the file")]
    Missing,
    /// The file has the tensor, the model does not.
    #[error("not known to this model")]
    Unknown,
    /// The file has more than one tensor of this name.
    #[error("more than once in the file")]
    Twice,
    /// The count of updates is not a whole number, or differs from the count of the other
    /// parameters.
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
    /// This error as an [`AutogradError`], for a segment of a pass.
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

/// The first names of a list, in one line.
fn list(names: &[String]) -> String {
    const SHOWN_MAX: usize = 12;
    let more = if names.len() > SHOWN_MAX { " .." } else { "" };
    if names.is_empty() {
        "none".to_owned()
    } else {
        names[..names.len().min(SHOWN_MAX)].join(", ") + more
    }
}

/// The last parts of names, each once, at most `SHOWN_MAX`, in one line. Full names would repeat
/// for every block.
fn endings(names: &[String]) -> String {
    const SHOWN_MAX: usize = 12;
    let mut shown: Vec<&str> = Vec::new();
    for name in names {
        let ending = name.rsplit('.').next().unwrap_or(name);
        if !shown.contains(&ending) {
            shown.push(ending);
        }
    }
    let more = if shown.len() > SHOWN_MAX { " .." } else { "" };
    shown.truncate(SHOWN_MAX);
    if shown.is_empty() { "none".to_owned() } else { shown.join(", ") + more }
}
