//! One batch while it is built: its samples are written by whichever thread claims them.

use crate::dataset::{BatchSlot, Dataset, SampleSlot};
use crate::epoch::EpochPlan;
use crate::error::{DataError, IndexOutOfRange};
use crate::rows::{Row, Rows};
use crate::staging::Staging;
use crossbeam_channel::Sender;
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A batch to build. The thread that drops the last handle of it sends the reply.
pub(crate) struct Job {
    pub(crate) plan: Arc<EpochPlan>,
    /// To change the batch as a whole.
    dataset: Arc<dyn Dataset>,
    batch: usize,
    /// The sample of each row.
    indices: Vec<usize>,
    /// `None` only while it is dropped.
    rows: Option<Rows>,
    /// Rows whose sample was written or has failed.
    done: Box<[AtomicBool]>,
    /// Samples that failed, in the order in which it happened.
    faults: Mutex<Vec<Fault>>,
    /// Rows from this one on are not needed: too many below have failed.
    end: AtomicUsize,
    reply: Sender<Reply>,
}

/// A sample that could not be read.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) row: usize,
    pub(crate) index: usize,
    pub(crate) error: DataError,
}

/// A batch as it was built.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) batch: usize,
    pub(crate) built: Built,
}

/// The bytes of a batch, and what is missing of it.
#[derive(Debug)]
pub(crate) struct Built {
    pub(crate) staging: Staging,
    /// The samples that are there, in the order of their rows.
    pub(crate) indices: Vec<usize>,
    /// Those that are not, in order. If there are more than the options allow, rows are missing too
    /// and the batch is of no use.
    pub(crate) faults: Vec<Fault>,
    /// Why the batch as a whole is of no use.
    pub(crate) failure: Option<DataError>,
}

impl Job {
    pub(crate) fn new(
        plan: Arc<EpochPlan>,
        dataset: Arc<dyn Dataset>,
        batch: usize,
        staging: Staging,
        reply: Sender<Reply>,
    ) -> Self {
        let indices = plan.samples(batch);
        let count = indices.len();
        let rows = Some(Rows::new(staging, Arc::clone(&plan.layout), count));
        let done = (0..count).map(|_| AtomicBool::new(false)).collect();
        let (faults, end) = (Mutex::default(), AtomicUsize::new(count));
        Self { plan, dataset, batch, indices, rows, done, faults, end, reply }
    }

    /// Claims the next sample and writes it; whether there was one.
    pub(crate) fn write_next(&self, dataset: &dyn Dataset) -> bool {
        let Some(row) = self.rows.as_ref().and_then(Rows::claim) else { return false };
        let at = row.index();
        // Relaxed is enough: both only save work, and what is left out is thrown away.
        if at >= self.end.load(Ordering::Relaxed) || self.plan.is_cancelled() {
            return false;
        }
        if let Err(error) = self.write(dataset, row) {
            self.add_fault(Fault { row: at, index: self.indices[at], error });
        }
        self.done[at].store(true, Ordering::Relaxed);
        true
    }

    fn write(&self, dataset: &dyn Dataset, row: Row<'_>) -> Result<(), DataError> {
        let index = self.indices[row.index()];
        if index >= dataset.len() {
            let source = IndexOutOfRange { index, len: dataset.len() };
            return Err(DataError::Sample { index, source: source.into() });
        }
        let mut slot = SampleSlot::new(row, &self.plan, index);
        // Unwind safety: the half-written slot is not handed out. The dataset may be left in a
        // state of its own making, as after a panic on any thread that shares it.
        match catch_unwind(AssertUnwindSafe(|| dataset.write(index, &mut slot))) {
            Ok(written) => written
                .and_then(|()| Ok(slot.finish()?))
                .map_err(|source| DataError::Sample { index, source }),
            Err(payload) => Err(DataError::Panicked { index, message: message_of(payload) }),
        }
    }

    /// Rows are claimed from the first on, so all below a failed one are written or being written:
    /// which faults are the lowest does not depend on timing.
    fn add_fault(&self, fault: Fault) {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        faults.push(fault);
        faults.sort_unstable_by_key(|fault| fault.row);
        if let Some(fatal) = faults.get(self.plan.skip_max) {
            self.end.fetch_min(fatal.row + 1, Ordering::Relaxed);
        }
    }

    /// Has the dataset change the batch as a whole; its panic, if there was one.
    fn finish(&self, staging: &mut [u8], indices: &[usize]) -> Option<DataError> {
        let &index = indices.first()?;
        let mut batch = BatchSlot::new(&self.plan, staging, indices, self.batch);
        let finish = AssertUnwindSafe(|| self.dataset.finish_batch(&mut batch));
        // Unwind safety: the batch is not handed out then. This may be a worker's thread, and it
        // must reply.
        let payload = catch_unwind(finish).err()?;
        Some(DataError::Panicked { index, message: message_of(payload) })
    }

    /// How many samples are done, and the first that is not.
    pub(crate) fn progress(&self) -> (usize, Option<usize>) {
        let is_done = |done: &AtomicBool| done.load(Ordering::Relaxed);
        let first = self.done.iter().position(|done| !is_done(done));
        let count = self.done.iter().filter(|done| is_done(done)).count();
        (count, first.map(|row| self.indices[row]))
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let Some(rows) = self.rows.take() else { return };
        let faults = self.faults.get_mut().unwrap_or_else(PoisonError::into_inner);
        let (faults, mut indices) = (std::mem::take(faults), std::mem::take(&mut self.indices));
        let mut staging = rows.into_staging();
        let is_of_use = faults.len() <= self.plan.skip_max && !self.plan.is_cancelled();
        if is_of_use && !faults.is_empty() {
            let is_there = |row: &usize| faults.iter().all(|fault| fault.row != *row);
            let kept: Vec<usize> = (0..indices.len()).filter(is_there).collect();
            self.plan.layout.keep_rows(staging.bytes_mut(), &kept);
            indices = kept.into_iter().map(|row| indices[row]).collect();
        }
        let mut failure = None;
        if is_of_use {
            failure = self.finish(staging.bytes_mut(), &indices);
            self.plan.layout.pack(staging.bytes_mut(), indices.len());
        }
        // Never blocks: the channel has room for every buffer. An error says that the epoch has
        // given up on the batch, and the buffer goes back to the ring.
        let built = Built { staging, indices, faults, failure };
        let _ = self.reply.send(Reply { batch: self.batch, built });
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("batch", &self.batch).finish_non_exhaustive()
    }
}

pub(crate) fn message_of(payload: Box<dyn Any + Send>) -> String {
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
