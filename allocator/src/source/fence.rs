//! The order of work on different streams of a device.

use crate::source::SourceError;
use crate::stream::Stream;

/// The order of work on different streams of a device.
pub trait Fence: Send + Sync {
    /// Makes work that is enqueued on `waiter` from now on start after all work that was enqueued
    /// on `on` so far. The wait itself is enqueued: the caller does not wait.
    ///
    /// # Errors
    /// The device failed. Nothing may be assumed about the order then.
    fn wait(&self, waiter: Stream, on: Stream) -> Result<(), SourceError>;

    /// Makes the calling thread wait until all work that was enqueued on `on` so far is done. The
    /// wait stalls the host. So it is for page-locked blocks that the host is about to write, and
    /// for the last rungs before a request fails.
    ///
    /// # Errors
    /// The device failed. No work may be assumed to be done then.
    fn wait_host(&self, on: Stream) -> Result<(), SourceError>;
}
