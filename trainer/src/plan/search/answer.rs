//! Results of a search: the plan that it found, or the reason why there is none.

use lowtide_nn::optim::Stateful;

use super::{Candidate, Search, Splitting, part_sizes, preference};
use crate::error::{DoesNotFit, Result};
use crate::plan::Plan;
use crate::plan::events::{PlannedEvent, bytes_ahead_of};
use crate::plan::forecast::Forecast;
use crate::plan::knobs::Knobs;
use crate::plan::rehearsal::RunInputs;
use crate::step::summation::Summation;
use crate::task::contract::Task;

impl<T: Task + Clone, O: Stateful + Clone> Search<'_, T, O> {
    /// The forecast of a run that [copies the next batch ahead](Plan::copy_ahead_bytes), and the
    /// bytes for the copy. If the copy does not fit into the budget: the forecast without the copy,
    /// and 0.
    pub(super) fn copying_ahead(&self, without: &Candidate) -> Result<(Forecast, usize)> {
        let Candidate { knobs, forecast } = without;
        let bytes = if self.inputs.copies_ahead && self.fits_device(without) {
            bytes_ahead_of(self.events, knobs.micro_batch)
        } else {
            0
        };
        if bytes > 0 {
            let ahead = self.forecasts.of(&self.inputs, self.events, *knobs, bytes)?;
            if ahead.peak_bytes <= self.budget_bytes {
                return Ok((ahead, bytes));
            }
        }
        Ok((forecast.clone(), 0))
    }

    /// The largest number of samples that an evaluation can take at once without exceeding the peak
    /// of `forecast`, with the same bytes copied ahead. Also returns the forecast of the run with
    /// this number. Evaluations may be larger than micro-batches because they save nothing for
    /// backward.
    fn evaluation(
        &self,
        knobs: Knobs,
        forecast: &Forecast,
        copy_ahead_bytes: usize,
    ) -> Result<(usize, Forecast)> {
        let lens = self.events.iter().map(|event| match event {
            PlannedEvent::Evaluate(batch) => batch.len(),
            PlannedEvent::Step(_) => 0,
        });
        let whole = lens.max().unwrap_or(0);
        let mut sizes = part_sizes(whole.max(1));
        // The bits of a score depend on the parts of the batch. Parts that are deterministic shards
        // give the same bits on any number of ranks, so they may not grow.
        let may_grow = Summation::of(self.inputs.options) == Summation::Sequential;
        sizes.retain(|&size| size > knobs.micro_batch && may_grow);
        let mut best = (knobs.micro_batch, forecast.clone());
        // Sizes fall with the index. Sizes from index `end` on are smaller than a size that fits.
        let (mut begin, mut end) = (0, sizes.len());
        while begin < end {
            // The whole set at once is tried first: it often fits, and is then the answer.
            let middle = if begin == 0 && end == sizes.len() { 0 } else { begin.midpoint(end) };
            let inputs = RunInputs { evaluation_batch: Some(sizes[middle]), ..self.inputs };
            let own = self.forecasts.of(&inputs, self.events, knobs, copy_ahead_bytes)?;
            if own.peak_bytes <= forecast.peak_bytes {
                best = (sizes[middle], own);
                end = middle;
            } else {
                begin = middle + 1;
            }
        }
        Ok(best)
    }

    /// The plan for batches of `batch_size` with the candidate that was found.
    ///
    /// # Errors
    /// Errors of a rehearsal.
    pub(super) fn plan(self, batch_size: usize, found: Candidate) -> Result<Plan> {
        let knobs = found.knobs;
        let (forecast, copy_ahead_bytes) = self.copying_ahead(&found)?;
        let (evaluation_batch, forecast) = self.evaluation(knobs, &forecast, copy_ahead_bytes)?;
        let is_rejected = |candidate: &&Candidate| !self.fits(candidate);
        let mut rejected: Vec<(Knobs, usize)> = self
            .tried
            .iter()
            .filter(is_rejected)
            .map(|candidate| (candidate.knobs, candidate.forecast.peak_bytes))
            .collect();
        rejected.sort_by_key(|(knobs, _)| preference(knobs));
        Ok(Plan {
            batch_size,
            knobs,
            evaluation_batch,
            budget_bytes: self.budget_bytes,
            checkpoint_copy_bytes: self.inputs.held_bytes,
            copy_ahead_bytes,
            staging_bytes: 0,
            data_bytes: 0,
            forecast,
            rejected,
        })
    }

    /// The reason why there is no plan: the candidate that needs least memory, and remedies.
    pub(super) fn does_not_fit(mut self, splitting: Splitting) -> Result<Box<DoesNotFit>> {
        let Candidate { knobs, forecast } = self.least().clone();
        let Forecast { peak_bytes: needed_bytes, category_peaks, coupling, .. } = forecast;
        // Splitting would be possible, but is forbidden.
        let can_split = splitting == Splitting::Forbidden && coupling.is_none();
        let remedies = self.remedies(knobs, needed_bytes, can_split)?;
        let budget_bytes = self.budget_bytes;
        Ok(Box::new(DoesNotFit {
            budget_bytes,
            needed_bytes,
            knobs,
            category_peaks,
            coupling,
            step: None,
            ledger: None,
            remedies,
        }))
    }
}
