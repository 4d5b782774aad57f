//! Facts of a step that all of its turns share.

use std::ops::Range;

use lowtide_data::BatchView;

use crate::plan::knobs::Knobs;

/// Facts of a step that all of its turns share.
pub(crate) struct StepContext<'a> {
    pub(crate) batch: &'a BatchView<'a>,
    /// Number of samples of the logical batch that come before the samples of `batch`.
    pub(crate) samples_before: usize,
    pub(crate) knobs: Knobs,
    /// Divisors of the loss, one for each of its terms.
    pub(crate) counts: Vec<f64>,
    /// The first count that is not 0.
    pub(crate) count: f64,
    /// The initial gradient for backward of a micro-batch.
    pub(crate) seed: f64,
}

impl<'a> StepContext<'a> {
    /// The context of a step whose loss has these counts over the whole logical batch, and this
    /// scale.
    pub(crate) fn new(
        batch: &'a BatchView<'a>,
        samples_before: usize,
        knobs: Knobs,
        counts: Vec<f64>,
        loss_scale: f32,
    ) -> Self {
        // If nothing in a batch counts, the gradient is 0 and not 0 / 0.
        let count = counts.iter().copied().find(|&count| count > 0.0).unwrap_or(0.0);
        let seed = if count > 0.0 { f64::from(loss_scale) / count } else { 0.0 };
        StepContext { batch, samples_before, knobs, counts, count, seed }
    }

    pub(crate) fn micro_batch_count(&self) -> usize {
        self.batch.len().div_ceil(self.knobs.micro_batch)
    }

    /// The sample range of each micro-batch, in order.
    pub(crate) fn micro_batches(&self) -> impl Iterator<Item = Range<usize>> {
        micro_batches(self.batch.len(), self.knobs.micro_batch)
    }

    /// The sample range of the last micro-batch.
    pub(crate) fn last_micro_batch(&self) -> Range<usize> {
        let before = self.micro_batch_count().saturating_sub(1) * self.knobs.micro_batch;
        before..self.batch.len()
    }
}

/// The sample range of each micro-batch in a batch of `len` samples. The last one may be shorter.
pub(crate) fn micro_batches(len: usize, micro_batch: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(micro_batch).map(move |start| start..len.min(start + micro_batch))
}

/// True if batches with the same number of samples may differ in size.
pub(crate) fn is_packed(batch: &BatchView<'_>) -> bool {
    batch.fields().any(|field| field.offsets().is_some())
}
