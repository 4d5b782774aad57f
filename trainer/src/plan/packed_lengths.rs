//! Admission of batches of packed samples, whose memory grows with the length of the samples. A
//! step on a batch that is longer than all earlier batches is rehearsed first, and gets smaller
//! knobs if necessary.

use lowtide_data::BatchView;
use lowtide_nn::optim::Stateful;

use crate::error::{Result, TrainError};
use crate::plan::knobs::Knobs;
use crate::plan::recovery::Ladder;
use crate::step::context::{is_packed, micro_batches};
use crate::task::contract::Task;

/// The longest micro-batches that were rehearsed and fit.
#[derive(Debug, Default)]
pub(crate) struct PackedLengths {
    knobs: Knobs,
    capacity_bytes: usize,
    /// Number of items of each field.
    lens: Vec<usize>,
}

impl PackedLengths {
    /// The knobs for a step on a batch: smaller ones if a rehearsal shows that the batch does not
    /// fit with `knobs`. If no knobs fit, `knobs` are returned; the step then waits for memory or
    /// reports the lack.
    ///
    /// # Errors
    /// Errors of a rehearsal.
    pub(crate) fn admit<T: Task + Clone, O: Stateful + Clone>(
        &mut self,
        ladder: &Ladder<'_, T, O>,
        knobs: Knobs,
    ) -> Result<Knobs> {
        let batch = &ladder.batch;
        if !is_packed(batch) {
            return Ok(knobs);
        }
        let capacity_bytes = ladder.capacity_bytes();
        let lens = longest_micro_batch(batch, knobs.micro_batch);
        let is_known = (self.knobs, self.capacity_bytes) == (knobs, capacity_bytes)
            && self.lens.len() == lens.len();
        if is_known && lens.iter().zip(&self.lens).all(|(len, admitted)| len <= admitted) {
            return Ok(knobs);
        }
        if ladder.fits(knobs)? {
            *self = PackedLengths { knobs, capacity_bytes, lens };
            return Ok(knobs);
        }
        match ladder.fastest(knobs.micro_batch.min(batch.len())) {
            Err(TrainError::DoesNotFit(_)) => Ok(knobs),
            smaller => smaller,
        }
    }
}

/// Number of items of each field in the longest micro-batch.
fn longest_micro_batch(batch: &BatchView<'_>, micro_batch: usize) -> Vec<usize> {
    let mut lens = Vec::new();
    for part in micro_batches(batch.len(), micro_batch) {
        let part = batch.slice(part);
        for (index, field) in part.fields().enumerate() {
            let len = field.shape().first().copied().unwrap_or(1);
            match lens.get_mut(index) {
                Some(longest) => *longest = len.max(*longest),
                None => lens.push(len),
            }
        }
    }
    lens
}
