//! One epoch: an iterator over its batches in order.

use crate::batch::Batch;
use crate::error::DataError;
use crate::job::Built;
use crate::shared::Shared;
use crate::state::LoaderState;
use crate::window::Window;
use std::fmt;
use std::iter::FusedIterator;
use std::sync::Arc;

/// The batches of one epoch, in order; made by [`Loader::epoch`](crate::Loader::epoch).
///
/// With workers, batches are built ahead from the first call of `next` on.
///
/// An error or panic of a sample, or a timeout, ends the epoch. [`state`](Self::state) then names
/// the batch that failed, so that [`Loader::resume`](crate::Loader::resume) can try it again. Other
/// epochs are not affected. [`DataError::StagingExhausted`] does not end the epoch: the next batch
/// follows once a batch is dropped.
///
/// Dropping an epoch waits for the samples that are being read, not for whole batches. The loader's
/// timeout, if there is one, limits this wait.
pub struct Epoch {
    shared: Arc<Shared>,
    window: Window,
    /// The epoch to build ahead once all batches of the present epoch are begun.
    ahead: Option<u64>,
    /// The window of the epoch that is built ahead.
    follower: Option<Window>,
    /// Number of samples skipped so far.
    skipped: usize,
    failed: bool,
}

impl Epoch {
    pub(crate) fn new(shared: Arc<Shared>, window: Window) -> Self {
        Self { shared, window, ahead: None, follower: None, skipped: 0, failed: false }
    }

    /// The position before the next batch. Batches that were built ahead but not handed out are
    /// still to come.
    #[must_use]
    pub fn state(&self) -> LoaderState {
        LoaderState { batch: self.window.next, ..self.window.plan.end }
    }

    /// Number of batches that are still to come.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.window.remaining()
    }

    /// Number of samples that were skipped so far, as
    /// [`OnBadSample::Skip`](crate::OnBadSample::Skip) allows.
    #[must_use]
    pub fn skipped(&self) -> usize {
        self.skipped
    }

    /// Builds the first batches of `epoch` ahead, in buffers that this epoch no longer needs. The
    /// next call of [`Loader::epoch`](crate::Loader::epoch) with `epoch` gets these batches if this
    /// epoch has handed out its last batch by then. Without workers nothing is built ahead.
    pub fn build_ahead(&mut self, epoch: u64) {
        self.ahead = self.shared.producer.pool.is_some().then_some(epoch);
    }

    /// Builds the next batch, or waits for it.
    fn build_next(&mut self) -> Result<Built, DataError> {
        let producer = &self.shared.producer;
        self.window.submit(producer);
        if self.window.is_idle() && self.shared.drop_ahead() {
            self.window.submit(producer);
        }
        let exhausted = DataError::StagingExhausted { slots: producer.ring.slots };
        let timeout = producer.timeout();
        self.submit_follower();
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
            other.stop(&self.shared.producer);
        }
        if let Some(follower) = &mut self.follower {
            follower.submit(&self.shared.producer);
        }
    }

    fn stop(&mut self) {
        self.window.stop(&self.shared.producer);
        if let Some(mut follower) = self.follower.take() {
            follower.stop(&self.shared.producer);
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

    /// There is no upper bound while the epoch runs: an exhausted ring adds an error at every call.
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
