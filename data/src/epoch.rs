//! One pass over the samples: an iterator that hands out batches in order.
//!
//! Jobs are submitted in the order of the batches, each with a staging buffer in its hands. So the
//! next batch to hand out is always the first in the window, and if the window is empty then every
//! buffer is held outside: the one case in which waiting could be for ever.

use crate::batch::Batch;
use crate::error::DataError;
use crate::layout::Layout;
use crate::loader::Shared;
use crate::pool::{Job, Pool, Reply, build};
use crate::staging::Staging;
use crate::state::LoaderState;
use crossbeam_channel::{Receiver, Sender, bounded};
use std::collections::VecDeque;
use std::fmt;
use std::iter::FusedIterator;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What is known of an epoch before its first sample is read.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) layout: Arc<Layout>,
    /// The state after the last batch.
    pub(crate) end: LoaderState,
    /// Set once, when no other batch will be taken.
    pub(crate) cancelled: AtomicBool,
    order: Vec<usize>,
}

impl Plan {
    pub(crate) fn new(layout: Arc<Layout>, end: LoaderState, order: Vec<usize>) -> Self {
        Self { layout, end, cancelled: AtomicBool::new(false), order }
    }

    /// The indexes of the samples of `batch`.
    pub(crate) fn samples(&self, batch: usize) -> &[usize] {
        let start = batch * self.end.batch_size;
        &self.order[start..self.order.len().min(start.saturating_add(self.end.batch_size))]
    }
}

/// The batches of one epoch, in order; made by [`Loader::epoch`](crate::Loader::epoch).
///
/// With workers, batches are built ahead from the first call of `next` on. After a sample's error
/// or panic the epoch is over; [`state`](Self::state) still names the batch that failed, so that
/// it can be tried again with [`Loader::resume`](crate::Loader::resume), and other epochs are not
/// affected. After [`DataError::StagingExhausted`] the same epoch goes on once a batch is dropped.
///
/// Dropping it waits for the samples that are being read at that moment, not for whole batches.
pub struct Epoch {
    shared: Arc<Shared>,
    plan: Arc<Plan>,
    /// Index of the next batch to hand out.
    next: usize,
    /// The batches `next..` that were submitted; `None` until the reply has come.
    window: VecDeque<Option<Result<Staging, DataError>>>,
    reply: Sender<Reply>,
    replies: Receiver<Reply>,
    failed: bool,
}

impl Epoch {
    pub(crate) fn new(shared: Arc<Shared>, plan: Plan, next: usize) -> Self {
        let slots = shared.ring.slots;
        let (reply, replies) = bounded(slots);
        let window = VecDeque::with_capacity(slots);
        Self { shared, plan: Arc::new(plan), next, window, reply, replies, failed: false }
    }

    /// The position before the next batch: the batches handed out so far are behind it, those
    /// built ahead are not.
    #[must_use]
    pub fn state(&self) -> LoaderState {
        LoaderState { batch: self.next, ..self.plan.end }
    }

    /// Batches that are still to come.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.plan.end.batch - self.next
    }

    /// The next batch, or why there is none.
    fn build_next(&mut self) -> Result<Staging, DataError> {
        let shared = Arc::clone(&self.shared);
        let exhausted = DataError::StagingExhausted { slots: shared.ring.slots };
        match &shared.pool {
            None => {
                let staging = shared.ring.take().ok_or(exhausted)?;
                build(shared.dataset.as_ref(), &self.plan, self.next, staging)
            }
            Some(pool) => {
                self.submit_ahead(pool);
                self.receive_first().ok_or(exhausted)?
            }
        }
    }

    /// Gives every free staging buffer to the workers.
    fn submit_ahead(&mut self, pool: &Pool) {
        while self.window.len() < self.remaining()
            && let Some(staging) = self.shared.ring.take()
        {
            let (plan, reply) = (Arc::clone(&self.plan), self.reply.clone());
            let batch = self.next + self.window.len();
            pool.submit(Job { plan, batch, staging, reply });
            self.window.push_back(None);
        }
    }

    /// Waits for the first batch of the window; `None` if the window is empty.
    fn receive_first(&mut self) -> Option<Result<Staging, DataError>> {
        while self.window.front()?.is_none() {
            let Reply { batch, built } = self.receive();
            self.window[batch - self.next] = Some(built);
        }
        self.window.pop_front()?
    }

    fn receive(&self) -> Reply {
        self.replies.recv().expect("the epoch holds a sender itself")
    }

    /// Ends the epoch with every staging buffer back in the ring.
    fn stop(&mut self) {
        self.plan.cancelled.store(true, Ordering::Relaxed);
        let outstanding = self.window.iter().filter(|built| built.is_none()).count();
        for _ in 0..outstanding {
            drop(self.receive());
        }
        self.window.clear();
    }
}

impl Iterator for Epoch {
    type Item = Result<Batch, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.remaining() == 0 {
            return None;
        }
        let built = self.build_next();
        match &built {
            Ok(_) => self.next += 1,
            Err(DataError::StagingExhausted { .. }) => {}
            Err(_) => {
                self.failed = true;
                self.stop();
            }
        }
        Some(built.map(|staging| Batch::new(staging, Arc::clone(&self.plan), self.next - 1)))
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
