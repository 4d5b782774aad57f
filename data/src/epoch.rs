//! One pass over the samples: an iterator that hands out batches in order.

use crate::batch::Batch;
use crate::error::DataError;
use crate::job::Built;
use crate::layout::Layout;
use crate::loader::Shared;
use crate::sampler::Order;
use crate::state::LoaderState;
use crate::window::Window;
use std::fmt;
use std::iter::FusedIterator;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What is known of an epoch before its first sample is read.
pub(crate) struct EpochPlan {
    pub(crate) layout: Arc<Layout>,
    /// The state after the last batch.
    pub(crate) end: LoaderState,
    /// Samples that may be skipped.
    pub(crate) skip_max: usize,
    order: Box<dyn Order>,
    /// Samples that are visited.
    len: usize,
    /// Samples that this loader has of a full batch.
    batch_size: usize,
    /// Set once, when no other batch will be taken.
    cancelled: AtomicBool,
}

impl EpochPlan {
    pub(crate) fn new(
        layout: Arc<Layout>,
        end: LoaderState,
        skip_max: usize,
        order: Box<dyn Order>,
        [len, batch_size]: [usize; 2],
    ) -> Self {
        let cancelled = AtomicBool::new(false);
        Self { layout, end, skip_max, order, len, batch_size, cancelled }
    }

    /// What is known of a stream, which has no order of its own.
    pub(crate) fn unordered(layout: Arc<Layout>, end: LoaderState) -> Self {
        Self::new(layout, end, 0, Box::new(Vec::new()), [0; 2])
    }

    /// The indexes of the samples of `batch`.
    pub(crate) fn samples(&self, batch: usize) -> Vec<usize> {
        let start = batch * self.batch_size;
        let end = self.len.min(start.saturating_add(self.batch_size));
        (start..end).map(|position| self.order.sample(position)).collect()
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        // Relaxed is enough: cancelling only saves work, replies carry the synchronisation.
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

/// The batches of one epoch, in order; made by [`Loader::epoch`](crate::Loader::epoch).
///
/// With workers, batches are built ahead from the first call of `next` on. After a sample's error
/// or panic, or a timeout, the epoch is over; [`state`](Self::state) still names the batch that
/// failed, so that it can be tried again with [`Loader::resume`](crate::Loader::resume), and other
/// epochs are not affected. After [`DataError::StagingExhausted`] the same epoch goes on once a
/// batch is dropped.
///
/// Dropping it waits for the samples that are being read at that moment, not for whole batches;
/// not longer than the loader's timeout, if it has one.
pub struct Epoch {
    shared: Arc<Shared>,
    window: Window,
    /// The epoch to build ahead once all batches of this one are begun.
    ahead: Option<u64>,
    /// What is built of it.
    follower: Option<Window>,
    /// Samples skipped so far.
    skipped: usize,
    failed: bool,
}

impl Epoch {
    pub(crate) fn new(shared: Arc<Shared>, window: Window) -> Self {
        Self { shared, window, ahead: None, follower: None, skipped: 0, failed: false }
    }

    /// The position before the next batch: the batches handed out so far are behind it, those
    /// built ahead are not.
    #[must_use]
    pub fn state(&self) -> LoaderState {
        LoaderState { batch: self.window.next, ..self.window.plan.end }
    }

    /// Batches that are still to come.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.window.remaining()
    }

    /// Samples that were left out of the batches so far, as
    /// [`OnBadSample::Skip`](crate::OnBadSample::Skip) allows.
    #[must_use]
    pub fn skipped(&self) -> usize {
        self.skipped
    }

    /// Builds the first batches of `epoch` ahead, in buffers that this one no longer needs. They
    /// are there for [`Loader::epoch`](crate::Loader::epoch) when it is asked for `epoch` next and
    /// this one has handed out its last batch. Without workers nothing is built ahead.
    pub fn build_ahead(&mut self, epoch: u64) {
        self.ahead = self.shared.pool.is_some().then_some(epoch);
    }

    /// The next batch, or why there is none.
    fn build_next(&mut self) -> Result<Built, DataError> {
        let timeout = self.shared.options.timeout;
        self.window.submit(&self.shared);
        if self.window.is_idle() && self.shared.drop_ahead() {
            self.window.submit(&self.shared);
        }
        self.submit_follower();
        let exhausted = DataError::StagingExhausted { slots: self.shared.ring.slots };
        let mut built = self.window.receive(timeout).ok_or(exhausted)??;
        if let Some(error) = built.failure.take() {
            return Err(error);
        }
        let left = self.shared.options.skip_max() - self.skipped;
        if built.faults.len() > left {
            return Err(built.faults.swap_remove(left).error);
        }
        if built.indices.is_empty() {
            return Err(built.faults.swap_remove(0).error);
        }
        self.window.next += 1;
        self.skipped += built.faults.len();
        Ok(built)
    }

    fn submit_follower(&mut self) {
        if self.failed || !self.window.is_submitted() {
            return;
        }
        if let Some(epoch) = self.ahead.take()
            && let Some(mut other) = self.follower.replace(self.shared.window(epoch))
        {
            self.shared.stop(&mut other);
        }
        if let Some(follower) = &mut self.follower {
            follower.submit(&self.shared);
        }
    }

    fn stop(&mut self) {
        self.shared.stop(&mut self.window);
        if let Some(mut follower) = self.follower.take() {
            self.shared.stop(&mut follower);
        }
    }
}

impl Iterator for Epoch {
    type Item = Result<Batch, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.remaining() == 0 {
            self.submit_follower();
            return None;
        }
        let built = self.build_next();
        if let Err(error) = &built
            && !matches!(error, DataError::StagingExhausted { .. })
        {
            self.failed = true;
            self.stop();
        }
        let plan = &self.window.plan;
        Some(built.map(|built| Batch::new(built, Arc::clone(plan), self.window.next - 1)))
    }

    /// No upper bound while it runs: an exhausted ring adds an error at every call.
    fn size_hint(&self) -> (usize, Option<usize>) {
        let at_least = usize::from(!self.failed && self.remaining() > 0);
        (at_least, if self.failed { Some(0) } else { None })
    }
}

impl FusedIterator for Epoch {}

impl Drop for Epoch {
    fn drop(&mut self) {
        if !self.failed
            && self.remaining() == 0
            && let Some(follower) = self.follower.take()
        {
            self.shared.keep_ahead(follower);
        }
        self.stop();
    }
}

impl fmt::Debug for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Epoch")
            .field("state", &self.state())
            .field("remaining", &self.remaining())
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}
