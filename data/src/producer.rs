//! The parts of a loader that build batches.

use crate::dataset::Dataset;
use crate::pool::Pool;
use crate::staging::Ring;
use std::sync::Arc;
use std::time::Duration;

/// The dataset that is read, the staging buffers, and the threads that fill them.
pub(crate) struct Producer {
    pub(crate) dataset: Arc<dyn Dataset>,
    pub(crate) ring: Ring,
    /// Absent if the thread that asks for a batch builds it.
    pub(crate) pool: Option<Pool>,
}

impl Producer {
    /// Longest wait for a sample; absent if there is no limit. A limit needs workers.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.pool.as_ref()?.timeout
    }
}
