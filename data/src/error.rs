//! Errors of loading, each with the place where it happened.

use crate::dataset::SampleError;
use crate::tokenizer::TokenizerError;
use lowtide_allocator::AllocError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What can go wrong between a dataset and a batch.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A loader option that no loader can have, or that does not fit the address space.
    #[error("option {option} cannot be {value}")]
    InvalidOption {
        /// Name of the option.
        option: &'static str,
        /// Its refused value.
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
    /// No sample of the batch that is waited for was finished for as long as
    /// [`LoaderOptions::timeout`](crate::LoaderOptions::timeout): this one hangs, or is not begun
    /// because others hang.
    #[error("sample {index} was not loaded within {timeout:?}")]
    Timeout {
        /// Index in the dataset of the first sample that is not there.
        index: usize,
        /// The option's value.
        timeout: Duration,
    },
    /// The dataset panicked while it wrote a sample.
    #[error("loading sample {index} panicked: {message}")]
    Panicked {
        /// Index of the sample in the dataset.
        index: usize,
        /// The panic's message, if it was text.
        message: String,
    },
    /// Every staging buffer is in a batch that is still held. Drop one and ask again: nothing is
    /// lost. Raise `prefetch` to hold more.
    #[error("all {slots} staging buffers are held by batches that have not been dropped")]
    StagingExhausted {
        /// Staging buffers of the loader.
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
        /// Its refused weight.
        weight: f64,
    },
    /// A sampler was made for another number of samples than the dataset has.
    #[error("the sampler knows {sampler} samples, the dataset has {dataset}")]
    SampleCount {
        /// Samples that the sampler was made for.
        sampler: usize,
        /// Samples of the dataset.
        dataset: usize,
    },
    /// A saved state belongs to another loader.
    #[error("the saved state has {what} {saved}, this loader has {here}")]
    StateMismatch {
        /// The number that differs.
        what: &'static str,
        /// Its value in the state.
        saved: u64,
        /// Its value in this loader; for `batch` the greatest possible one.
        here: u64,
    },
    /// A stream refuses a saved state.
    #[error("the saved state is not of this stream")]
    StreamState {
        /// The stream's own error.
        source: SampleError,
    },
    /// A dataset cannot be mixed.
    #[error("samples cannot be mixed: {reason}")]
    InvalidMixing {
        /// What is wrong.
        reason: &'static str,
    },
    /// A step of an image pipeline cannot be taken.
    #[error("step {step} {reason}")]
    Transform {
        /// The step's name.
        step: &'static str,
        /// What it would need.
        reason: &'static str,
    },
    /// A column of an in-memory dataset has the wrong number of elements.
    #[error("field {field} has {actual} elements where the samples need {expected}")]
    FieldLength {
        /// Name of the field.
        field: Arc<str>,
        /// Elements needed: samples times elements per sample.
        expected: usize,
        /// Elements given.
        actual: usize,
    },
    /// A file cannot be read, or is not what it should be.
    #[error("{}: {source}", path.display())]
    File {
        /// Path of the file.
        path: std::path::PathBuf,
        /// What the system says of it, or what is wrong with it.
        source: std::io::Error,
    },
    /// A place of a file is not what the file's format has there.
    #[error("{}, {place}: {source}", path.display())]
    Malformed {
        /// The file that is malformed.
        path: std::path::PathBuf,
        /// The place in it.
        place: FilePlace,
        /// What is wrong there.
        source: SampleError,
    },
    /// The frame of a chat's turns cannot be encoded.
    #[error("the frame of the turns cannot be encoded")]
    Tokenizer {
        /// The tokenizer's error.
        source: TokenizerError,
    },
    /// The operating system refused a thread, or a file cannot be read.
    #[error("{what} failed")]
    Io {
        /// What was attempted.
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
    /// A file that is there and is not what it should be.
    pub(crate) fn damaged(
        path: &std::path::Path,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        let source = std::io::Error::new(std::io::ErrorKind::InvalidData, source);
        Self::File { path: path.to_owned(), source }
    }
}

/// An index that the dataset does not have: the cause inside [`DataError::Sample`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("index {index} is outside the dataset's {len} samples")]
pub struct IndexOutOfRange {
    /// The index asked for.
    pub index: usize,
    /// Samples of the dataset.
    pub len: usize,
}

/// A byte that is no truth value, in a field of them: the cause inside [`DataError::Sample`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("field {field} holds bool, and a byte of it is {byte}")]
pub struct NotBool {
    /// Name of the field.
    pub field: Arc<str>,
    /// The first such byte.
    pub byte: u8,
}

/// A sample of a ragged field that is longer than the field allows: the cause inside
/// [`DataError::Sample`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("field {field} has {len} items, and at most {len_max} are allowed")]
pub struct TooLong {
    /// Name of the field.
    pub field: Arc<str>,
    /// Items of the sample.
    pub len: usize,
    /// The field's greatest length.
    pub len_max: usize,
}
