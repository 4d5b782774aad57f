//! Answers of a search: the plan that it found, or the reason why there is none.

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
    /// bytes for that; or of one that does not, and 0, if it stays within the budget only then.
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

    /// As many samples as can be evaluated at once without needing more than `forecast` does,
    /// beside as much that is copied ahead, and the forecast with them. Evaluations keep nothing
    /// for backward.
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
        // A score has the bits of the parts that it is made of: those of deterministic shards are
        // the same on any number of ranks.
        let may_grow = Summation::of(self.inputs.options) == Summation::Sequential;
        sizes.retain(|&size| size > knobs.micro_batch && may_grow);
        let mut best = (knobs.micro_batch, forecast.clone());
        // From the largest on; those from `end` on are too small to be of interest.
        let (mut begin, mut end) = (0, sizes.len());
        while begin < end {
            // The whole is likely, and then it is the answer.
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

    /// The plan that was found for batches of `batch_size`.
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

    /// Why there is no plan: what needs least, and what would help.
    pub(super) fn does_not_fit(mut self, splitting: Splitting) -> Result<Box<DoesNotFit>> {
        let Candidate { knobs, forecast } = self.least().clone();
        let Forecast { peak_bytes: needed_bytes, category_peaks, coupling, .. } = forecast;
        // Parts would help, if they were allowed.
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
