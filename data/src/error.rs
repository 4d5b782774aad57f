//! Errors of loading data, each with its place.

use crate::tokenizer::error::TokenizerError;
use lowtide_allocator::AllocError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// An error of a dataset. The loader adds the index of the sample.
pub type SampleError = Box<dyn std::error::Error + Send + Sync>;

/// An error of a loader, a dataset, or a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// An option has a value that is not allowed, or that does not fit the address space.
    #[error("option {option} cannot be {value}")]
    InvalidOption {
        /// Name of the option.
        option: &'static str,
        /// The refused value.
        value: usize,
    },
    /// The dataset could not write a sample.
    #[error("sample {index} cannot be loaded")]
    Sample {
        /// Index of the sample in the dataset.
        index: usize,
        /// The dataset's own error.
        source: SampleError,
    },
    /// No sample of the next batch was finished within
    /// [`LoaderOptions::timeout`](crate::LoaderOptions::timeout).
    #[error("sample {index} was not loaded within {timeout:?}")]
    Timeout {
        /// Index in the dataset of the first sample that is not loaded. This sample hangs, or waits
        /// for a worker because other samples hang.
        index: usize,
        /// The option's value.
        timeout: Duration,
    },
    /// The dataset panicked while it wrote a sample.
    #[error("loading sample {index} panicked: {message}")]
    Panicked {
        /// Index of the sample in the dataset.
        index: usize,
        /// The message of the panic, if it is text.
        message: String,
    },
    /// Every staging buffer is in a batch that is still held. Drop a batch and call `next` again:
    /// nothing is lost. A larger `prefetch` allows more batches at a time.
    #[error("all {slots} staging buffers are held by batches that have not been dropped")]
    StagingExhausted {
        /// Number of staging buffers of the loader.
        slots: usize,
    },
    /// The staging ring does not fit in memory.
    #[error("the staging ring cannot be allocated")]
    Staging {
        /// The allocator's error.
        source: AllocError,
    },
    /// A weight of a sampler is negative, infinite or not a number.
    #[error("sample {index} cannot have the weight {weight}")]
    Weight {
        /// Index of the sample.
        index: usize,
        /// The refused weight.
        weight: f64,
    },
    /// A sampler was made for another number of samples than the dataset has.
    #[error("the sampler knows {sampler} samples, the dataset has {dataset}")]
    SampleCount {
        /// Number of samples that the sampler was made for.
        sampler: usize,
        /// Number of samples of the dataset.
        dataset: usize,
    },
    /// A saved state belongs to another loader.
    #[error("the saved state has {what} {saved}, this loader has {here}")]
    StateMismatch {
        /// Name of the number that differs.
        what: &'static str,
        /// The number in the state.
        saved: u64,
        /// The number in this loader; for `batch`, the largest possible index.
        here: u64,
    },
    /// A stream refuses a saved state.
    #[error("the saved state does not belong to this stream")]
    StreamState {
        /// The stream's own error.
        source: SampleError,
    },
    /// A dataset cannot be mixed.
    #[error("samples cannot be mixed: {reason}")]
    InvalidMixing {
        /// The reason, as a clause.
        reason: &'static str,
    },
    /// A step of an image pipeline has invalid numbers or is in the wrong place.
    #[error("step {step} {reason}")]
    Transform {
        /// Name of the step.
        step: &'static str,
        /// The reason, worded to follow the name of the step.
        reason: &'static str,
    },
    /// A column of an in-memory dataset has the wrong number of elements.
    #[error("field {field} has {actual} elements where the samples need {expected}")]
    FieldLength {
        /// Name of the field.
        field: Arc<str>,
        /// Required number of elements: samples times elements per sample.
        expected: usize,
        /// Given number of elements.
        actual: usize,
    },
    /// A file cannot be read, or its contents are wrong.
    #[error("{}: {source}", path.display())]
    File {
        /// Path of the file.
        path: std::path::PathBuf,
        /// The error of the system, or the fault of the contents.
        source: std::io::Error,
    },
    /// A place in a file does not follow the file's format.
    #[error("{}, {place}: {source}", path.display())]
    Malformed {
        /// Path of the file.
        path: std::path::PathBuf,
        /// The place in the file.
        place: FilePlace,
        /// The fault of the sample.
        source: SampleError,
    },
    /// A chat template cannot be encoded.
    #[error("the chat template cannot be encoded")]
    Tokenizer {
        /// The tokenizer's error.
        source: TokenizerError,
    },
    /// The operating system refused a thread, or embedded data are damaged.
    #[error("{what} failed")]
    Io {
        /// The operation that failed.
        what: &'static str,
        /// The operating system's or the decoder's error.
        source: std::io::Error,
    },
}

/// A place in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilePlace {
    /// A line, counted from 1.
    Line(u64),
    /// A byte, counted from 0.
    Byte(u64),
}

impl fmt::Display for FilePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line}"),
            Self::Byte(byte) => write!(f, "byte {byte}"),
        }
    }
}

impl DataError {
    /// The error of a file with wrong contents.
    pub(crate) fn damaged(path: &std::path::Path, source: impl Into<SampleError>) -> Self {
        let source = std::io::Error::new(std::io::ErrorKind::InvalidData, source);
        Self::File { path: path.to_owned(), source }
    }
}

/// An index that the dataset does not have; the cause of a [`DataError::Sample`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("index {index} is outside the dataset's {len} samples")]
pub struct IndexOutOfRange {
    /// The index of the sample in its dataset.
    pub index: usize,
    /// Number of samples of the dataset.
    pub len: usize,
}

/// A byte of a `bool` field that is neither 0 nor 1; the cause of a [`DataError::Sample`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("field {field} holds bool, and a byte of it is {byte}")]
pub struct NotBool {
    /// Name of the field.
    pub field: Arc<str>,
    /// The first byte that is neither 0 nor 1.
    pub byte: u8,
}

/// A sample that is longer than its ragged field allows; the cause of a [`DataError::Sample`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("field {field} has {len} items, and at most {len_max} are allowed")]
pub struct TooLong {
    /// Name of the field.
    pub field: Arc<str>,
    /// Number of items of the sample.
    pub len: usize,
    /// Maximum number of items.
    pub len_max: usize,
}
