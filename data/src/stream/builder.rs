//! Fills staging buffers with the samples of a stream.

use crate::dataset::SampleSlot;
use crate::error::DataError;
use crate::job::{Built, Fault};
use crate::panics::message_of;
use crate::plan::EpochPlan;
use crate::rows::Rows;
use crate::staging::Staging;
use crate::stream::{Stream, StreamState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A stream and its position, owned by the thread that reads the stream.
pub(super) struct Builder {
    pub(super) stream: Box<dyn Stream>,
    pub(super) plan: Arc<EpochPlan>,
    pub(super) batch_size: usize,
    pub(super) drops_last: bool,
    /// Number of samples that may still be skipped.
    pub(super) skips_left: usize,
    /// Number of samples that were read or skipped.
    pub(super) sample: u64,
}

/// A batch, and the position of the stream after it.
pub(super) struct StreamReply {
    /// `None` at the end of the stream.
    pub(super) built: Result<Option<Built>, DataError>,
    /// Number of samples that were read or skipped before the position.
    pub(super) sample: u64,
    pub(super) stream: StreamState,
}

impl Builder {
    /// Builds the next batch in `staging`.
    pub(super) fn build(&mut self, staging: Staging) -> StreamReply {
        let built = self.fill(staging);
        let sample = self.sample;
        match catch_unwind(AssertUnwindSafe(|| self.stream.state())) {
            Ok(stream) => StreamReply { built, sample, stream },
            Err(payload) => {
                let built = Err(self.panicked(payload));
                StreamReply { built, sample, stream: StreamState::new(&()) }
            }
        }
    }

    fn fill(&mut self, staging: Staging) -> Result<Option<Built>, DataError> {
        let rows = Rows::new(staging, Arc::clone(&self.plan.layout), self.batch_size);
        let (mut indices, mut kept, mut faults) = (Vec::new(), Vec::new(), Vec::new());
        let mut is_full = true;
        while let Some(row) = rows.claim() {
            if self.plan.is_cancelled() {
                return Ok(None);
            }
            let (at, index) = (row.index(), self.sample as usize);
            let mut slot = SampleSlot::new(row, &self.plan, index);
            // Unwind safety: a stream that has panicked is not read again.
            let written = catch_unwind(AssertUnwindSafe(|| self.stream.write_next(&mut slot)));
            let written = written.map_err(|payload| self.panicked(payload))?;
            match written.and_then(|is_written| Ok(slot.finish().map(|()| is_written)?)) {
                Ok(true) => {
                    indices.push(index);
                    kept.push(at);
                }
                Ok(false) => {
                    is_full = false;
                    break;
                }
                Err(source) => {
                    let error = DataError::Sample { index, source };
                    if self.skips_left == 0 {
                        return Err(error);
                    }
                    self.skips_left -= 1;
                    faults.push(Fault { row: at, index, error });
                }
            }
            self.sample = self.sample.saturating_add(1);
        }
        if indices.is_empty() && !faults.is_empty() {
            return Err(faults.swap_remove(0).error);
        }
        if indices.is_empty() || (!is_full && self.drops_last) {
            return Ok(None);
        }
        let mut staging = rows.into_staging();
        if !faults.is_empty() {
            self.plan.layout.keep_rows(staging.bytes_mut(), &kept);
        }
        self.plan.layout.pack(staging.bytes_mut(), kept.len());
        Ok(Some(Built { staging, indices, faults, failure: None }))
    }

    fn panicked(&self, payload: Box<dyn std::any::Any + Send>) -> DataError {
        DataError::Panicked { index: self.sample as usize, message: message_of(payload) }
    }
}
