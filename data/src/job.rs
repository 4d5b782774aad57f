//! A batch that is being built. Each sample is written by the thread that claims it.

use crate::dataset::{BatchSlot, Dataset, SampleSlot};
use crate::error::{DataError, IndexOutOfRange};
use crate::panics::message_of;
use crate::plan::EpochPlan;
use crate::rows::{Row, Rows};
use crate::staging::Staging;
use crossbeam_channel::Sender;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A batch to build. Dropping its last handle sends the reply.
pub(crate) struct Job {
    pub(crate) plan: Arc<EpochPlan>,
    /// The dataset that finishes the batch as a whole.
    dataset: Arc<dyn Dataset>,
    batch: usize,
    /// The index of the sample in each row.
    indices: Vec<usize>,
    /// `None` only during drop.
    rows: Option<Rows>,
    /// For each row, true once its sample was written or has failed.
    done: Box<[AtomicBool]>,
    /// Failed samples, in the order of their rows.
    faults: Mutex<Vec<Fault>>,
    /// The first row that is not needed, because too many rows before it have failed.
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

/// The reply of a job.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) batch: usize,
    pub(crate) built: Built,
}

/// A built batch.
#[derive(Debug)]
pub(crate) struct Built {
    pub(crate) staging: Staging,
    /// The indices of the samples in the batch, in the order of their rows.
    pub(crate) indices: Vec<usize>,
    /// The samples that could not be read, in order. If there are more than the options allow, the
    /// batch is incomplete and must not be used.
    pub(crate) faults: Vec<Fault>,
    /// The error of the batch as a whole, if there is one.
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

    /// Claims the next sample and writes it. Returns false if no sample was left.
    pub(crate) fn write_next(&self, dataset: &dyn Dataset) -> bool {
        let Some(row) = self.rows.as_ref().and_then(Rows::claim) else { return false };
        let at = row.index();
        // Relaxed is enough: both checks only save work on a batch that will not be used.
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
        // Unwind safety: the half-written slot is not handed out. The dataset is in the state in
        // which a panic on any thread would leave it.
        match catch_unwind(AssertUnwindSafe(|| dataset.write(index, &mut slot))) {
            Ok(written) => written
                .and_then(|()| Ok(slot.finish()?))
                .map_err(|source| DataError::Sample { index, source }),
            Err(payload) => Err(DataError::Panicked { index, message: message_of(payload) }),
        }
    }

    /// Adds a failed sample. Rows are claimed in order, so all rows before a failed one are written
    /// or being written, and the lowest faults do not depend on timing.
    fn add_fault(&self, fault: Fault) {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        faults.push(fault);
        faults.sort_unstable_by_key(|fault| fault.row);
        if let Some(fatal) = faults.get(self.plan.skip_max) {
            self.end.fetch_min(fatal.row + 1, Ordering::Relaxed);
        }
    }

    /// Lets the dataset change the batch as a whole. Returns the error if it panics.
    fn finish(&self, staging: &mut [u8], indices: &[usize]) -> Option<DataError> {
        let &index = indices.first()?;
        let mut batch = BatchSlot::new(&self.plan, staging, indices, self.batch);
        let finish = AssertUnwindSafe(|| self.dataset.finish_batch(&mut batch));
        // Unwind safety: after a panic the batch is not handed out. The panic is caught because
        // this may be a worker's thread, which must reply.
        let payload = catch_unwind(finish).err()?;
        Some(DataError::Panicked { index, message: message_of(payload) })
    }

    /// The number of samples that are done, and the index of the first sample that is not done.
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
        let is_usable = faults.len() <= self.plan.skip_max && !self.plan.is_cancelled();
        if is_usable && !faults.is_empty() {
            let is_good = |row: &usize| faults.iter().all(|fault| fault.row != *row);
            let kept: Vec<usize> = (0..indices.len()).filter(is_good).collect();
            self.plan.layout.keep_rows(staging.bytes_mut(), &kept);
            indices = kept.into_iter().map(|row| indices[row]).collect();
        }
        let mut failure = None;
        if is_usable {
            failure = self.finish(staging.bytes_mut(), &indices);
            self.plan.layout.pack(staging.bytes_mut(), indices.len());
        }
        // Sending never blocks: the channel has room for every buffer. Sending fails if the epoch
        // has given up on the batch; dropping the reply then returns the buffer to the ring.
        let built = Built { staging, indices, faults, failure };
        let _ = self.reply.send(Reply { batch: self.batch, built });
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("batch", &self.batch).finish_non_exhaustive()
    }
}
