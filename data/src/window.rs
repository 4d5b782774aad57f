//! The batches of an epoch that are being built ahead.
//!
//! Jobs are submitted in the order of the batches, each with a staging buffer in its hands. So the
//! next batch to hand out is always the first in the window, and if the window is empty then every
//! buffer is held outside: the one case in which waiting could be for ever.

use crate::epoch::EpochPlan;
use crate::error::DataError;
use crate::job::{Built, Job, Reply};
use crate::loader::Shared;
use crate::pool::Pool;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) plan: Arc<EpochPlan>,
    /// Index of the next batch to hand out.
    pub(crate) next: usize,
    /// The batches `next..` that were submitted.
    entries: VecDeque<Entry>,
    reply: Sender<Reply>,
    replies: Receiver<Reply>,
}

#[derive(Debug)]
enum Entry {
    /// Not replied to yet. Weak, as the last handle of a job sends the reply.
    Pending(Weak<Job>),
    Built(Built),
}

impl Window {
    /// `slots` is the number of staging buffers, each of which can be in one reply.
    pub(crate) fn new(plan: Arc<EpochPlan>, next: usize, slots: usize) -> Self {
        let (reply, replies) = bounded(slots);
        Self { plan, next, entries: VecDeque::with_capacity(slots), reply, replies }
    }

    /// Batches that were not handed out.
    pub(crate) fn remaining(&self) -> usize {
        self.plan.end.batch - self.next
    }

    /// Begins as many batches as there are free staging buffers, or with no workers builds one.
    pub(crate) fn submit(&mut self, shared: &Shared) {
        let limit = if shared.pool.is_some() { self.remaining() } else { self.remaining().min(1) };
        while self.entries.len() < limit
            && let Some(staging) = shared.ring.take()
        {
            let batch = self.next + self.entries.len();
            let (plan, reply) = (Arc::clone(&self.plan), self.reply.clone());
            let dataset = Arc::clone(&shared.dataset);
            let job = Arc::new(Job::new(plan, dataset, batch, staging, reply));
            self.entries.push_back(Entry::Pending(Arc::downgrade(&job)));
            match &shared.pool {
                Some(pool) => pool.submit(job),
                None => while job.write_next(shared.dataset.as_ref()) {},
            }
        }
    }

    /// Waits for the next batch; `None` if none was submitted. It counts as handed out once the
    /// caller has raised `next`.
    pub(crate) fn receive(
        &mut self,
        timeout: Option<Duration>,
    ) -> Option<Result<Built, DataError>> {
        let mut seen_count = 0;
        loop {
            match self.entries.front()? {
                Entry::Built(_) => break,
                Entry::Pending(job) => {
                    if let Some(reply) = receive(&self.replies, timeout) {
                        let at = reply.batch - self.next;
                        self.entries[at] = Entry::Built(reply.built);
                        continue;
                    }
                    // A job without a handle has replied.
                    let Some(job) = job.upgrade() else { continue };
                    let (done_count, first) = job.progress();
                    if let (Some(index), Some(timeout)) = (first, timeout)
                        && done_count == seen_count
                    {
                        return Some(Err(DataError::Timeout { index, timeout }));
                    }
                    seen_count = done_count;
                }
            }
        }
        match self.entries.pop_front()? {
            Entry::Built(built) => Some(Ok(built)),
            Entry::Pending(_) => None,
        }
    }

    /// Whether no batch is being built.
    pub(crate) fn is_idle(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether every batch was begun.
    pub(crate) fn is_submitted(&self) -> bool {
        self.entries.len() == self.remaining()
    }

    /// Ends the epoch with every staging buffer back in the ring, but for those of samples that
    /// still hang after `timeout`.
    pub(crate) fn stop(&mut self, pool: Option<&Pool>, timeout: Option<Duration>) {
        self.plan.cancel();
        if let Some(pool) = pool {
            pool.withdraw(&self.plan);
        }
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let is_pending = |entry: &&Entry| matches!(entry, Entry::Pending(_));
        for _ in 0..self.entries.iter().filter(is_pending).count() {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if receive(&self.replies, left).is_none() {
                break;
            }
        }
        self.entries.clear();
    }
}

/// The next reply; `None` if there is none within `timeout`.
fn receive(replies: &Receiver<Reply>, timeout: Option<Duration>) -> Option<Reply> {
    let received = match timeout {
        None => replies.recv().map_err(RecvTimeoutError::from),
        Some(timeout) => replies.recv_timeout(timeout),
    };
    match received {
        Ok(reply) => Some(reply),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => unreachable!("the window holds a sender itself"),
    }
}
