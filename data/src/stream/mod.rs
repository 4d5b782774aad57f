//! Streams: samples in sequence, without a length and without an index.

mod builder;
mod loader;
mod shuffled;

pub use loader::{Reading, StreamLoader, StreamLoaderState, StreamOptions};
pub use shuffled::ShuffledStream;

use crate::dataset::SampleSlot;
use crate::element::Field;
use crate::error::SampleError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Samples in sequence, whose number is unknown or infinite, such as the samples of files that are
/// too large to be indexed. [`StreamLoader`] makes batches of a stream.
pub trait Stream: Send {
    /// The fields of every sample, which never change.
    fn fields(&self) -> &[Field];

    /// Writes the next sample into its zeroed slot. Returns false at the end of the stream and at
    /// every later call.
    ///
    /// # Errors
    /// Any error. The next call continues after the sample that could not be read.
    fn write_next(&mut self, slot: &mut SampleSlot<'_>) -> Result<bool, SampleError>;

    /// The position before the next sample.
    fn state(&self) -> StreamState;

    /// Moves to a position. The samples after the position come again, bit for bit.
    ///
    /// # Errors
    /// Any error if the state belongs to another stream.
    fn set_state(&mut self, state: &StreamState) -> Result<(), SampleError>;
}

impl<S: Stream + ?Sized> Stream for Box<S> {
    fn fields(&self) -> &[Field] {
        (**self).fields()
    }

    fn write_next(&mut self, slot: &mut SampleSlot<'_>) -> Result<bool, SampleError> {
        (**self).write_next(slot)
    }

    fn state(&self) -> StreamState {
        (**self).state()
    }

    fn set_state(&mut self, state: &StreamState) -> Result<(), SampleError> {
        (**self).set_state(state)
    }
}

/// The position of a [`Stream`]: numbers that the stream chooses, which can be stored in any
/// format.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StreamState(serde_json::Value);

impl StreamState {
    /// The state with the content of `state`.
    ///
    /// # Panics
    /// If `state` cannot be JSON: a map whose keys are not text, or a `Serialize` that fails.
    #[must_use]
    pub fn new(state: &impl Serialize) -> Self {
        Self(serde_json::to_value(state).expect("the state of a stream is plain numbers and texts"))
    }

    /// The content that the stream saved in the state.
    ///
    /// # Errors
    /// [`ForeignState`] if the state does not have this content.
    pub fn content<T: DeserializeOwned>(&self) -> Result<T, ForeignState> {
        T::deserialize(&self.0).map_err(|source| ForeignState { source })
    }
}

/// A state of another kind of stream; the cause of a
/// [`DataError::StreamState`](crate::DataError::StreamState).
#[derive(Debug, thiserror::Error)]
#[error("the state belongs to another stream: {source}")]
pub struct ForeignState {
    /// The part of the content that is missing or wrong.
    source: serde_json::Error,
}
