//! How a device keeps work on different streams in order.

use crate::source::SourceError;
use crate::stream::Stream;

/// How a device keeps work on different streams in order.
pub trait Fence: Send + Sync {
    /// What is enqueued on `waiter` from now on starts after all that was enqueued on `on` so far.
    /// Enqueues; the caller does not wait.
    ///
    /// # Errors
    /// The device failed. Nothing may be assumed about the order then.
    fn wait(&self, waiter: Stream, on: Stream) -> Result<(), SourceError>;

    /// The calling thread waits until all that was enqueued on `on` so far is done. It stalls the
    /// host, so it is for page-locked blocks, which the host itself is about to write, and for the
    /// last rungs before a request fails.
    ///
    /// # Errors
    /// The device failed. Nothing may be assumed about what is done then.
    fn wait_host(&self, on: Stream) -> Result<(), SourceError>;
}
