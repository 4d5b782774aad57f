//! What follows a failed allocation: the ladder down, and the way back up.

use std::thread;
use std::time::{Duration, Instant};

use lowtide_data::BatchView;
use lowtide_nn::optim::Stateful;

use crate::error::{DoesNotFit, Result, TrainError};
use crate::options::MicroBatches;
use crate::plan::knobs::Knobs;
use crate::plan::rehearsal::PlannedEvent;
use crate::plan::search::Search;
use crate::run::observer::{Recovery, Retry};
use crate::run::trainer::Trainer;
use crate::run::waiting::Waiting;
use crate::task::Task;

/// How often the same knobs are tried again in a row, as long as a rehearsal says that they fit.
const SAME_PLAN_MAX: usize = 3;

/// What a step waits before it is tried a second time with the same knobs, without being asked to;
/// before a third time four times as long.
const BACK_OFF: Duration = Duration::from_millis(5);

/// Clean steps after which a plan that had to shrink is tried at full size again, at first.
const CLEAN_STEPS_TO_GROW: u64 = 8;

/// The most of them, after one failed growth after another.
const CLEAN_STEPS_MAX: u64 = 512;

/// When a plan that had to shrink grows back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growth {
    /// In a row.
    clean_steps: u64,
    /// After how many of them it is tried.
    wanted_steps: u64,
    /// Whether the last growth has not yet lasted as long.
    is_new: bool,
}

impl Default for Growth {
    fn default() -> Self {
        Growth { clean_steps: 0, wanted_steps: CLEAN_STEPS_TO_GROW, is_new: false }
    }
}

impl Growth {
    /// Counts a step; whether it is time to grow. A growth that ends in a failed step makes the
    /// next one wait twice as long, as one for which there is no room does.
    fn is_due_after(&mut self, is_clean: bool) -> bool {
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
            // It has lasted.
            (self.is_new, self.wanted_steps) = (false, CLEAN_STEPS_TO_GROW);
        }
        self.clean_steps = 0;
        true
    }

    fn back_off(&mut self) {
        self.wanted_steps = (self.wanted_steps * 2).min(CLEAN_STEPS_MAX);
    }
}

impl<T: Task + Clone, O: Stateful + Clone> Trainer<T, O> {
    /// The recovery ladder. As long as a rehearsal from the device's present state fits what is
    /// there: E1, the same knobs without caches, a few times. Then, if that is wanted, waiting for
    /// memory to come back. Then E2, the least more recomputation that fits, or offloading where
    /// that is allowed; M1, the largest smaller micro-batch that does, or a fused update of one as
    /// large.
    ///
    /// # Errors
    /// `failure` itself unless it is out of memory; `DoesNotFit` at the end of the ladder.
    pub(crate) fn recover(
        &mut self,
        failure: TrainError,
        batch: &BatchView<'_>,
        retries: &[Retry],
        started: Instant,
    ) -> Result<Retry> {
        let Some(ledger) = failure.out_of_memory() else { return Err(failure) };
        let ledger = Box::new(ledger.clone());
        self.trim();
        let events = [PlannedEvent::Step(*batch)];
        let is_same =
            |retry: &&Retry| matches!(retry.recovery, Recovery::SamePlan | Recovery::Waited { .. });
        let tried = retries.iter().rev().take_while(is_same).count();
        let knobs = self.knobs;
        let mut fits = self.fits_now(&events, knobs)?;
        if fits && tried < SAME_PLAN_MAX {
            if tried > 0 {
                thread::sleep(BACK_OFF * 4_u32.pow(tried as u32 - 1));
            }
            return Ok(Retry { failure: ledger, recovery: Recovery::SamePlan });
        }
        // The time is one for all attempts at a step.
        let mut waiting = Waiting::new(self.options.wait.saturating_sub(started.elapsed()));
        while waiting.pause() {
            self.trim();
            fits = self.fits_now(&events, knobs)?;
            if fits {
                let recovery = Recovery::Waited { seconds: started.elapsed().as_secs_f64() };
                return Ok(Retry { failure: ledger, recovery });
            }
        }
        let capacity_bytes = self.device.allocator().capacity_bytes();
        let search = || Search::new(self.run_inputs(), &events, capacity_bytes);
        // Fits by rehearsal and fails all the same: little less would not do.
        let is_puzzling = fits || retries.iter().any(|retry| !is_same(&retry));
        let (len, now) = (batch.len(), knobs.micro_batch.min(batch.len()));
        if let Some(more) = search().recompute_more(knobs, is_puzzling)? {
            self.knobs = more;
            return Ok(Retry { failure: ledger, recovery: Recovery::to(more, knobs, now) });
        }
        let max = if is_puzzling { (now / 2).max(1) } else { now };
        match search().find(len, max, self.splitting()) {
            Ok(plan) if plan.knobs.micro_batch < now => {
                self.knobs = plan.knobs;
                Ok(Retry { failure: ledger, recovery: Recovery::to(plan.knobs, knobs, now) })
            }
            // Less each time, so that this comes to an end.
            Ok(plan)
                if plan.knobs.fused_update && !knobs.fused_update
                    || plan.predicted_peak_bytes() < self.needed_bytes(&events, knobs)? =>
            {
                self.knobs = Knobs { micro_batch: knobs.micro_batch, ..plan.knobs };
                Ok(Retry { failure: ledger, recovery: Recovery::to(self.knobs, knobs, now) })
            }
            // It should fit, and has failed all the same: nothing is left to try.
            Ok(_) => Err(failure),
            Err(TrainError::DoesNotFit(error)) => {
                let (step, ledger) = (Some(self.step + 1), Some(ledger));
                Err(Box::new(DoesNotFit { step, ledger, ..*error }).into())
            }
            Err(error) => Err(error),
        }
    }

    /// What a step of `knobs` needs now.
    fn needed_bytes(&self, events: &[PlannedEvent<'_>], knobs: Knobs) -> Result<usize> {
        Ok(self.run_inputs().rehearse(events, knobs)?.peak_bytes)
    }

    /// Whether a step of `knobs` fits what is there now.
    pub(crate) fn fits_now(&self, events: &[PlannedEvent<'_>], knobs: Knobs) -> Result<bool> {
        let forecast = self.run_inputs().rehearse(events, knobs)?;
        let host = self.options.offload.as_ref();
        let host_bytes = host.map_or(usize::MAX, |host| host.allocator().capacity_bytes());
        Ok(forecast.peak_bytes <= self.device.allocator().capacity_bytes()
            && forecast.offloaded_peak_bytes <= host_bytes)
    }

    /// Gives back what the devices keep and do not use.
    fn trim(&self) {
        for device in [&self.device].into_iter().chain(&self.options.offload) {
            device.allocator().trim();
        }
    }

    /// Goes back to the planned knobs after a few clean steps if they fit again, or as far as there
    /// is room; and beyond them where there is more room than was planned for.
    pub(crate) fn grow_back(&mut self, batch: &BatchView<'_>, is_clean: bool) {
        if !self.growth.is_due_after(is_clean) {
            return;
        }
        let Some(plan) = self.current_plan() else { return };
        let (planned, budget_bytes, len) = (plan.knobs, plan.budget_bytes, batch.len());
        let capacity_bytes = self.device.allocator().capacity_bytes();
        let has_more = capacity_bytes > budget_bytes && len == plan.batch_size;
        // A short batch says nothing about parts longer than itself.
        let planned = Knobs { micro_batch: planned.micro_batch.min(len), ..planned };
        let largest = match self.options.micro_batches {
            MicroBatches::Leaves(leaf) => leaf.get(),
            _ => len,
        };
        let whole = Knobs { micro_batch: largest, ..Knobs::default() };
        let limit = if has_more { whole } else { planned };
        if self.knobs.is_at_least(&limit) {
            return;
        }
        let events = [PlannedEvent::Step(*batch)];
        let target = match self.fits_now(&events, limit) {
            Ok(true) => limit,
            _ => {
                let search = Search::new(self.run_inputs(), &events, capacity_bytes);
                match search.find(len, limit.micro_batch, self.splitting()) {
                    Ok(found) => found.knobs,
                    Err(_) => self.knobs,
                }
            }
        };
        if target != self.knobs && target.is_at_least(&self.knobs) {
            self.knobs = target;
            self.growth.is_new = true;
        } else {
            self.growth.back_off();
        }
    }
}

impl Recovery {
    /// The rung that leads to `knobs`, from others with parts of `now` samples.
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

    /// How many clean steps it takes until it is time.
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
