//! The worker threads of a loader. All workers share the samples of one batch at a time.

use crate::dataset::Dataset;
use crate::error::DataError;
use crate::job::Job;
use crate::plan::EpochPlan;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// The worker threads. Dropping the pool joins the threads.
#[derive(Debug)]
pub(crate) struct Pool {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
    /// Disconnected once every worker has ended.
    ended: Receiver<()>,
    /// Longest wait for a sample, and for the workers to end.
    pub(crate) timeout: Option<Duration>,
}

/// Batches with samples that no worker has claimed, in the order of the epoch.
#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    jobs: VecDeque<Arc<Job>>,
    is_closed: bool,
}

impl Pool {
    pub(crate) fn new(
        workers: usize,
        timeout: Option<Duration>,
        dataset: &Arc<dyn Dataset>,
    ) -> Result<Self, DataError> {
        let (alive, ended) = bounded(0);
        let queue = Arc::<Queue>::default();
        let mut pool = Self { queue, threads: Vec::with_capacity(workers), ended, timeout };
        for worker in 0..workers {
            let (queue, dataset) = (Arc::clone(&pool.queue), Arc::clone(dataset));
            let alive: Sender<()> = alive.clone();
            let thread = Builder::new()
                .name(format!("lowtide-data-{worker}"))
                .spawn(move || {
                    let _alive = alive;
                    queue.work(dataset.as_ref());
                })
                .map_err(|source| DataError::Io { what: "starting a loader thread", source })?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    pub(crate) fn submit(&self, job: Arc<Job>) {
        self.queue.lock().jobs.push_back(job);
        // Every worker can claim a sample of the batch.
        self.queue.wake.notify_all();
    }

    /// Takes back the batches of an epoch that no worker has begun.
    pub(crate) fn withdraw(&self, plan: &Arc<EpochPlan>) {
        let is_of_epoch = |job: &Arc<Job>| Arc::ptr_eq(&job.plan, plan);
        let mut queue = self.queue.lock();
        let jobs = std::mem::take(&mut queue.jobs);
        let (withdrawn, kept): (VecDeque<_>, _) = jobs.into_iter().partition(is_of_epoch);
        queue.jobs = kept;
        // Unlocked first: dropping the last handle of a job sends its reply.
        drop(queue);
        drop(withdrawn);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.queue.lock().is_closed = true;
        self.queue.wake.notify_all();
        if let Some(timeout) = self.timeout
            && self.ended.recv_timeout(timeout) == Err(RecvTimeoutError::Timeout)
        {
            // A thread whose dataset hangs keeps the dataset's memory until the call of the dataset
            // returns.
            self.threads.retain(JoinHandle::is_finished);
        }
        for thread in self.threads.drain(..) {
            // A worker catches the panics of the dataset, so the result of `join` is always `Ok`.
            let _ = thread.join();
        }
    }
}

impl Queue {
    fn work(&self, dataset: &dyn Dataset) {
        while let Some(job) = self.first() {
            while job.write_next(dataset) {}
            self.remove(&job);
        }
    }

    /// Waits for a batch; `None` once the queue is closed.
    fn first(&self) -> Option<Arc<Job>> {
        let mut state = self.lock();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(job) = state.jobs.front() {
                return Some(Arc::clone(job));
            }
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Removes a batch without unclaimed samples, unless another worker has removed it.
    fn remove(&self, done: &Arc<Job>) {
        let mut state = self.lock();
        let is_first = state.jobs.front().is_some_and(|job| Arc::ptr_eq(job, done));
        let job = if is_first { state.jobs.pop_front() } else { None };
        // Unlocked first: see `withdraw`.
        drop(state);
        drop(job);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
