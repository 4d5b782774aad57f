//! The window of an epoch: the batches that are built ahead.
//!
//! Jobs are submitted in the order of the batches, and each job owns a staging buffer. So the next
//! batch to hand out is always the first batch in the window. If the window is empty, every buffer
//! is held outside. Only then could a wait last for ever.

use crate::error::DataError;
use crate::job::{Built, Job, Reply};
use crate::plan::EpochPlan;
use crate::producer::Producer;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) plan: Arc<EpochPlan>,
    /// Index of the next batch to hand out.
    pub(crate) next: usize,
    /// The submitted batches, from `next` on.
    entries: VecDeque<Entry>,
    reply: Sender<Reply>,
    replies: Receiver<Reply>,
}

#[derive(Debug)]
enum Entry {
    /// A job that has not replied. The handle is weak because dropping the last strong handle of a
    /// job sends its reply.
    Pending(Weak<Job>),
    Built(Built),
}

impl Window {
    /// A window without submitted batches. `slots` is the number of staging buffers, which limits
    /// the number of replies in flight.
    pub(crate) fn new(plan: Arc<EpochPlan>, next: usize, slots: usize) -> Self {
        let (reply, replies) = bounded(slots);
        Self { plan, next, entries: VecDeque::with_capacity(slots), reply, replies }
    }

    /// Number of batches that were not handed out yet.
    pub(crate) fn remaining(&self) -> usize {
        self.plan.end.batch - self.next
    }

    /// Submits a batch for each free staging buffer; without workers, builds one batch.
    pub(crate) fn submit(&mut self, producer: &Producer) {
        let Producer { dataset, ring, pool, .. } = producer;
        let limit = if pool.is_some() { self.remaining() } else { self.remaining().min(1) };
        while self.entries.len() < limit
            && let Some(staging) = ring.take()
        {
            let batch = self.next + self.entries.len();
            let (plan, reply) = (Arc::clone(&self.plan), self.reply.clone());
            let job = Arc::new(Job::new(plan, Arc::clone(dataset), batch, staging, reply));
            self.entries.push_back(Entry::Pending(Arc::downgrade(&job)));
            match pool {
                Some(pool) => pool.submit(job),
                None => while job.write_next(dataset.as_ref()) {},
            }
        }
    }

    /// Waits for the next batch; `None` if none was submitted. The caller hands the batch out by
    /// raising `next`.
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
                    // A job without a strong handle has replied.
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

    /// True if no batch is submitted.
    pub(crate) fn is_idle(&self) -> bool {
        self.entries.is_empty()
    }

    /// True if every remaining batch is submitted.
    pub(crate) fn is_submitted(&self) -> bool {
        self.entries.len() == self.remaining()
    }

    /// Ends the epoch and returns its staging buffers to the ring, except the buffers of samples
    /// that still hang after the timeout.
    pub(crate) fn stop(&mut self, producer: &Producer) {
        self.plan.cancel();
        if let Some(pool) = &producer.pool {
            pool.withdraw(&self.plan);
        }
        let deadline = producer.timeout().map(|timeout| Instant::now() + timeout);
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
        Err(RecvTimeoutError::Disconnected) => unreachable!("the window holds a sender"),
    }
}
