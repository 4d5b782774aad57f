//! The plan of one epoch: everything that is known before its first sample is read.

use crate::layout::Layout;
use crate::sampler::order::Order;
use crate::state::LoaderState;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The plan of one epoch.
pub(crate) struct EpochPlan {
    pub(crate) layout: Arc<Layout>,
    /// The state after the last batch.
    pub(crate) end: LoaderState,
    /// Number of samples that may be skipped.
    pub(crate) skip_max: usize,
    pub(crate) order: Box<dyn Order>,
    /// Number of samples that are visited.
    pub(crate) len: usize,
    /// Number of samples that this loader contributes to a full batch.
    pub(crate) batch_size: usize,
    /// Set once the consumer takes no more batches.
    pub(crate) cancelled: AtomicBool,
}

impl EpochPlan {
    /// The plan of a stream, which has no order of its own.
    pub(crate) fn unordered(layout: Arc<Layout>, end: LoaderState) -> Self {
        Self {
            layout,
            end,
            skip_max: 0,
            order: Box::new(Vec::new()),
            len: 0,
            batch_size: 0,
            cancelled: AtomicBool::new(false),
        }
    }

    /// The indices of the samples of `batch`.
    pub(crate) fn samples(&self, batch: usize) -> Vec<usize> {
        let start = batch * self.batch_size;
        let end = self.len.min(start.saturating_add(self.batch_size));
        (start..end).map(|position| self.order.sample(position)).collect()
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        // Relaxed is enough: cancelling only saves work. Replies carry the synchronisation.
        self.cancelled.load(Ordering::Relaxed)
    }

    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

impl fmt::Debug for EpochPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EpochPlan").field("end", &self.end).finish_non_exhaustive()
    }
}
