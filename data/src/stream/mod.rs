//! Samples one after the other, without a length and without an index.

mod builder;
mod loader;
mod shuffled;

pub use loader::{Reading, StreamLoader, StreamLoaderState, StreamOptions};
pub use shuffled::ShuffledStream;

use crate::dataset::{SampleError, SampleSlot};
use crate::element::Field;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Samples one after the other, of a number that is not known or endless, such as those of files
/// that are too large to be indexed. [`StreamLoader`] makes batches of them.
pub trait Stream: Send {
    /// What each sample consists of; never changes.
    fn fields(&self) -> &[Field];

    /// Writes the next sample into its zeroed place, or returns false at the end, and then again
    /// at each call.
    ///
    /// # Errors
    /// Any error. The next call goes on after what could not be read.
    fn write_next(&mut self, slot: &mut SampleSlot<'_>) -> Result<bool, SampleError>;

    /// The position before the next sample.
    fn state(&self) -> StreamState;

    /// Goes to a position, so that the samples after it come again, bit by bit.
    ///
    /// # Errors
    /// Any error for a state of another stream.
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

/// The position of a [`Stream`]: some numbers of the stream's own, to be stored in any format.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StreamState(serde_json::Value);

impl StreamState {
    /// The state with the content of `state`.
    ///
    /// # Panics
    /// If `state` cannot be JSON: a map whose keys are no texts, or a `Serialize` that fails.
    #[must_use]
    pub fn new(state: &impl Serialize) -> Self {
        Self(serde_json::to_value(state).expect("the state of a stream is plain numbers and texts"))
    }

    /// What the stream has saved in the state.
    ///
    /// # Errors
    /// [`ForeignState`] if the state has another content.
    pub fn content<T: DeserializeOwned>(&self) -> Result<T, ForeignState> {
        T::deserialize(&self.0).map_err(|source| ForeignState { source })
    }
}

/// A state that is not of this kind of stream: the cause inside
/// [`DataError::StreamState`](crate::DataError::StreamState).
#[derive(Debug, thiserror::Error)]
#[error("the state is that of another stream: {source}")]
pub struct ForeignState {
    /// What the state does not have.
    source: serde_json::Error,
}
