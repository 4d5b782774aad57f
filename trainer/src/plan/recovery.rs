//! The recovery ladder: smaller knobs after a failed allocation, and the return to the planned
//! knobs.

use std::time::{Duration, Instant};

use lowtide_data::BatchView;
use lowtide_nn::optim::Stateful;

use crate::error::{DoesNotFit, Result, TrainError};
use crate::plan::Plan;
use crate::plan::events::PlannedEvent;
use crate::plan::knobs::Knobs;
use crate::plan::rehearsal::RunInputs;
use crate::plan::search::{Search, Splitting};
use crate::run::observer::{Recovery, Retry};
use crate::run::waiting::{BackOff, Waiting, had_room};
use crate::task::contract::Task;

/// Largest number of retries in a row with the same knobs after the allocator had no room, provided
/// that a rehearsal says that the knobs fit.
const SAME_PLAN_MAX: usize = 3;

/// Number of clean steps before the first attempt to grow back to the full plan.
const CLEAN_STEPS_TO_GROW: u64 = 8;

/// Largest number of clean steps between two attempts to grow. Each failed attempt doubles the
/// number up to this limit.
const CLEAN_STEPS_MAX: u64 = 512;

/// The decision when a plan that had to shrink grows back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growth {
    /// Number of clean steps in a row.
    clean_steps: u64,
    /// Number of clean steps after which the knobs may grow.
    wanted_steps: u64,
    /// True until the last growth has lasted for `wanted_steps` steps.
    is_new: bool,
}

impl Default for Growth {
    fn default() -> Self {
        Growth { clean_steps: 0, wanted_steps: CLEAN_STEPS_TO_GROW, is_new: false }
    }
}

impl Growth {
    /// Counts a step. Returns true if it is time to grow. The wait doubles if a step fails after a
    /// growth, or if there is no room to grow.
    pub(crate) fn is_due_after(&mut self, is_clean: bool) -> bool {
        if !is_clean {
            if self.is_new {
                self.back_off();
            } else {
                self.wanted_steps = CLEAN_STEPS_TO_GROW;
            }
            (self.clean_steps, self.is_new) = (0, false);
            return false;
        }
        self.clean_steps += 1;
        if self.clean_steps < self.wanted_steps {
            return false;
        }
        if self.is_new {
            // The growth has lasted.
            (self.is_new, self.wanted_steps) = (false, CLEAN_STEPS_TO_GROW);
        }
        self.clean_steps = 0;
        true
    }

    fn back_off(&mut self) {
        self.wanted_steps = (self.wanted_steps * 2).min(CLEAN_STEPS_MAX);
    }
}

/// The attempts at one step.
pub(crate) struct Attempts {
    /// The step, counted from 1.
    pub(crate) step: u64,
    pub(crate) started: Instant,
    /// The knobs before the first attempt.
    pub(crate) knobs: Knobs,
    /// The attempts that were rolled back, in order.
    pub(crate) retries: Vec<Retry>,
    back_off: BackOff,
}

impl Attempts {
    /// Attempts at a step that begins now, with [`Options::wait`](crate::Options::wait).
    pub(crate) fn begin(step: u64, knobs: Knobs, wait: Option<Duration>) -> Attempts {
        let back_off = BackOff::new(wait);
        Attempts { step, started: Instant::now(), knobs, retries: Vec::new(), back_off }
    }
}

fn is_same_plan(retry: &Retry) -> bool {
    matches!(retry.recovery, Recovery::SamePlan | Recovery::Waited { .. })
}

/// The recovery ladder of a step on one batch, from the device's present state.
pub(crate) struct Ladder<'a, T, O> {
    pub(crate) inputs: RunInputs<'a, T, O>,
    pub(crate) batch: BatchView<'a>,
    pub(crate) splitting: Splitting,
}

impl<T: Task + Clone, O: Stateful + Clone> Ladder<'_, T, O> {
    /// Finds the knobs for the next attempt, and the rung of the ladder that leads to them. Every
    /// rung is rehearsed from the present state of the device. E1 tries the same knobs, with empty
    /// caches: a few times, or for some seconds if the allocator had room for the request that
    /// failed. Then the step waits for memory to come back, if the options allow it. E2
    /// adds the least recomputation that fits, or offloads if that is allowed. M1 takes the largest
    /// smaller micro-batch that fits, or a fused update with the same micro-batch.
    ///
    /// # Errors
    /// `failure` itself if it is not out of memory; `DoesNotFit` at the end of the ladder.
    pub(crate) fn recover(
        &self,
        knobs: Knobs,
        failure: TrainError,
        attempts: &mut Attempts,
    ) -> Result<(Knobs, Retry)> {
        let Some(ledger) = failure.out_of_memory() else { return Err(failure) };
        let ledger = Box::new(ledger.clone());
        self.trim();
        let same = attempts.retries.iter().rev().take_while(|retry| is_same_plan(retry));
        let without_room = same.filter(|retry| !had_room(&retry.failure)).count();
        let mut fits = self.fits(knobs)?;
        let may_repeat = fits && (had_room(&ledger) || without_room < SAME_PLAN_MAX);
        if may_repeat && attempts.back_off.pause() {
            return Ok((knobs, Retry { failure: ledger, recovery: Recovery::SamePlan }));
        }
        // All attempts at a step share one wait.
        let waited = attempts.started.elapsed();
        let mut waiting =
            Waiting::new(self.inputs.options.wait.unwrap_or_default().saturating_sub(waited));
        while waiting.pause() {
            self.trim();
            fits = self.fits(knobs)?;
            if fits {
                let seconds = attempts.started.elapsed().as_secs_f64();
                let recovery = Recovery::Waited { seconds };
                return Ok((knobs, Retry { failure: ledger, recovery }));
            }
        }
        // The step has failed although its rehearsal fits, so needing a little less memory is not
        // enough.
        let is_puzzling = fits || !attempts.retries.iter().all(is_same_plan);
        let smaller = self.smaller(knobs, is_puzzling);
        match smaller {
            Ok(Some(smaller)) => {
                let now = knobs.micro_batch.min(self.batch.len());
                let recovery = Recovery::to(smaller, knobs, now);
                Ok((smaller, Retry { failure: ledger, recovery }))
            }
            // The step has failed although its rehearsal fits: no smaller knobs are left to try.
            Ok(None) => Err(failure),
            Err(TrainError::DoesNotFit(error)) => {
                let (step, ledger) = (Some(attempts.step), Some(ledger));
                Err(Box::new(DoesNotFit { step, ledger, ..*error }).into())
            }
            Err(error) => Err(error),
        }
    }

    /// Knobs that fit and need less memory than `knobs`, if there are any. With `is_puzzling`, a
    /// step has failed although its rehearsal fits, so the new knobs must need much less.
    fn smaller(&self, knobs: Knobs, is_puzzling: bool) -> Result<Option<Knobs>> {
        let events = [PlannedEvent::Step(self.batch)];
        let search = || Search::new(self.inputs, &events, self.capacity_bytes());
        if let Some(more) = search().recompute_more(knobs, is_puzzling)? {
            return Ok(Some(more));
        }
        let (len, now) = (self.batch.len(), knobs.micro_batch.min(self.batch.len()));
        let max = if is_puzzling { (now / 2).max(1) } else { now };
        let plan = search().find(len, max, self.splitting)?;
        if plan.knobs.micro_batch < now {
            return Ok(Some(plan.knobs));
        }
        // The need falls each time, so the recovery ends.
        let needs_less = plan.knobs.fused_update && !knobs.fused_update
            || plan.predicted_peak_bytes() < self.inputs.rehearse(&events, knobs)?.peak_bytes;
        Ok(needs_less.then_some(Knobs { micro_batch: knobs.micro_batch, ..plan.knobs }))
    }

    /// True if a step with `knobs` fits into the present capacity of the device.
    ///
    /// # Errors
    /// Errors of a rehearsal.
    pub(crate) fn fits(&self, knobs: Knobs) -> Result<bool> {
        let forecast = self.inputs.rehearse(&[PlannedEvent::Step(self.batch)], knobs)?;
        let host = self.inputs.options.offload.as_ref();
        let host_bytes = host.map_or(usize::MAX, |host| host.allocator().capacity_bytes());
        Ok(forecast.peak_bytes <= self.capacity_bytes()
            && forecast.offloaded_peak_bytes <= host_bytes)
    }

    /// The fastest knobs that fit into the present capacity of the device, with micro-batches of at
    /// most `size_max` samples.
    ///
    /// # Errors
    /// `DoesNotFit`; errors of a rehearsal.
    pub(crate) fn fastest(&self, size_max: usize) -> Result<Knobs> {
        let events = [PlannedEvent::Step(self.batch)];
        let search = Search::new(self.inputs, &events, self.capacity_bytes());
        Ok(search.find(self.batch.len(), size_max, self.splitting)?.knobs)
    }

    /// The knobs to grow back to after a few clean steps: the planned knobs if they fit again, else
    /// the fastest knobs that fit. If the device now has more capacity than the plan had, even
    /// faster knobs are possible.
    pub(crate) fn grow_back(&self, growth: &mut Growth, plan: &Plan, knobs: Knobs) -> Knobs {
        let len = self.batch.len();
        let has_more = self.capacity_bytes() > plan.budget_bytes && len == plan.batch_size;
        // A short batch cannot test micro-batches that are longer than the batch.
        let planned = Knobs { micro_batch: plan.knobs.micro_batch.min(len), ..plan.knobs };
        let largest = match self.splitting {
            Splitting::Shards(leaf) => leaf,
            Splitting::Allowed | Splitting::Forbidden => len,
        };
        let whole = Knobs { micro_batch: largest, ..Knobs::default() };
        let limit = if has_more { whole } else { planned };
        if knobs.is_at_least(&limit) {
            return knobs;
        }
        let target = match self.fits(limit) {
            Ok(true) => limit,
            _ => self.fastest(limit.micro_batch).unwrap_or(knobs),
        };
        if target != knobs && target.is_at_least(&knobs) {
            growth.is_new = true;
            return target;
        }
        growth.back_off();
        knobs
    }

    pub(crate) fn capacity_bytes(&self) -> usize {
        self.inputs.device.allocator().capacity_bytes()
    }

    /// Releases the cached memory of the devices.
    fn trim(&self) {
        let RunInputs { device, options, .. } = self.inputs;
        for device in [device].into_iter().chain(&options.offload) {
            device.allocator().trim();
        }
    }
}

impl Recovery {
    /// The rung that leads from the knobs `before`, with micro-batches of `now` samples, to
    /// `knobs`.
    fn to(knobs: Knobs, before: Knobs, now: usize) -> Recovery {
        let Knobs { micro_batch, recomputed_blocks, offloaded_blocks, .. } = knobs;
        if micro_batch < now {
            return Recovery::SmallerMicroBatch { micro_batch };
        }
        if knobs.fused_update && !before.fused_update {
            return Recovery::FusedUpdate;
        }
        if offloaded_blocks > before.offloaded_blocks {
            return Recovery::Offload { blocks: offloaded_blocks };
        }
        match recomputed_blocks {
            0 => Recovery::CheapRecomputation,
            blocks => Recovery::MoreRecomputation { blocks },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CLEAN_STEPS_MAX, Growth};

    /// Counts clean steps until the knobs may grow.
    fn steps_until_due(growth: &mut Growth) -> u64 {
        let mut steps = 1;
        while !growth.is_due_after(true) {
            steps += 1;
        }
        steps
    }

    #[test]
    fn growth_that_fails_waits_twice_as_long_until_one_lasts() {
        let mut growth = Growth::default();
        for wanted in [8, 16, 32, 64, 128, 256, 512, CLEAN_STEPS_MAX] {
            assert_eq!(steps_until_due(&mut growth), wanted);
            growth.is_new = true;
            assert!(!growth.is_due_after(false));
        }
        assert_eq!(steps_until_due(&mut growth), CLEAN_STEPS_MAX);
        growth.is_new = true;
        assert_eq!(steps_until_due(&mut growth), CLEAN_STEPS_MAX, "it has lasted");
        assert_eq!(steps_until_due(&mut growth), 8);
        growth.back_off();
        assert!(!growth.is_due_after(true));
        assert!(!growth.is_due_after(false), "memory was taken anew");
        assert_eq!(steps_until_due(&mut growth), 8);
    }
}
