//! Building a batch, on the consumer's thread or on a worker's: the same function on both.

use crate::dataset::{Dataset, SampleSlot};
use crate::epoch::Plan;
use crate::error::{DataError, IndexOutOfRange};
use crate::staging::Staging;
use crossbeam_channel::{Receiver, Sender, bounded};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

/// One batch to build.
pub(crate) struct Job {
    pub(crate) plan: Arc<Plan>,
    pub(crate) batch: usize,
    pub(crate) staging: Staging,
    pub(crate) reply: Sender<Reply>,
}

/// A batch as it was built, or the first error among its samples.
pub(crate) struct Reply {
    pub(crate) batch: usize,
    pub(crate) built: Result<Staging, DataError>,
}

/// Worker threads; dropping the pool joins them.
#[derive(Debug)]
pub(crate) struct Pool {
    /// `None` only while the pool is dropped: closing the channel ends the workers.
    jobs: Option<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Room for `slots` jobs: each carries a staging buffer, so there are never more.
    pub(crate) fn new(
        workers: usize,
        slots: usize,
        dataset: &Arc<dyn Dataset>,
    ) -> Result<Self, DataError> {
        let (jobs, queue) = bounded(slots);
        let mut pool = Self { jobs: Some(jobs), threads: Vec::with_capacity(workers) };
        for worker in 0..workers {
            let (queue, dataset) = (queue.clone(), Arc::clone(dataset));
            let thread = Builder::new()
                .name(format!("lowtide-data-{worker}"))
                .spawn(move || work(&queue, dataset.as_ref()))
                .map_err(|source| DataError::Io { what: "starting a loader thread", source })?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    pub(crate) fn submit(&self, job: Job) {
        let jobs = self.jobs.as_ref().expect("the channel is closed only by drop");
        assert!(jobs.send(job).is_ok(), "workers end only when the channel is closed");
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // A worker catches the panics of the dataset, so there is nothing to learn here.
            let _ = thread.join();
        }
    }
}

fn work(queue: &Receiver<Job>, dataset: &dyn Dataset) {
    for Job { plan, batch, staging, reply } in queue {
        let built = build(dataset, &plan, batch, staging);
        // An epoch takes all replies before it goes, so this send does not fail.
        let _ = reply.send(Reply { batch, built });
    }
}

/// Writes the samples of `batch`, in order, so that the first error is the same on any thread.
pub(crate) fn build(
    dataset: &dyn Dataset,
    plan: &Plan,
    batch: usize,
    mut staging: Staging,
) -> Result<Staging, DataError> {
    let bytes = staging.bytes_mut();
    for (row, &index) in plan.samples(batch).iter().enumerate() {
        if index >= dataset.len() {
            let source = IndexOutOfRange { index, len: dataset.len() };
            return Err(DataError::Sample { index, source: source.into() });
        }
        let mut slot = SampleSlot::new(&plan.layout, row, bytes, &plan.cancelled);
        if slot.is_cancelled() {
            break; // The epoch throws the batch away.
        }
        // Unwind safety: the half-written slot is not handed out. The dataset may be left in a
        // state of its own making, as after a panic on any thread that shares it.
        match catch_unwind(AssertUnwindSafe(|| dataset.write(index, &mut slot))) {
            Ok(Ok(())) => {
                slot.check().map_err(|source| DataError::Sample { index, source: source.into() })?
            }
            Ok(Err(source)) => return Err(DataError::Sample { index, source }),
            Err(payload) => {
                return Err(DataError::Panicked { index, message: message_of(payload) });
            }
        }
    }
    Ok(staging)
}

fn message_of(payload: Box<dyn Any + Send>) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        return (*text).to_owned();
    }
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => {
            // A payload of the dataset's own type may panic again when it is dropped, which would
            // end the worker and leave the consumer waiting. Leaked instead.
            std::mem::forget(payload);
            "payload is not text".to_owned()
        }
    }
}
