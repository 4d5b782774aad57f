//! What follows a failed allocation: the ladder down, and the way back up.

use lowtide_data::BatchView;
use lowtide_nn::optim::Stateful;

use crate::error::{DoesNotFit, Result, TrainError};
use crate::knobs::Knobs;
use crate::observer::{Recovery, Retry};
use crate::rehearsal::PlannedEvent;
use crate::search::Search;
use crate::task::Task;
use crate::trainer::Trainer;

/// Clean steps after which a plan that had to shrink is tried at full size again.
const CLEAN_STEPS_TO_GROW: u64 = 8;

impl<T: Task + Clone, O: Stateful + Clone> Trainer<T, O> {
    /// The recovery ladder: E1, the same plan without caches, if a rehearsal from the device's
    /// present state fits what is there; E2, the fewest more recomputed blocks with which one does;
    /// M1, the largest smaller micro-batch that does.
    ///
    /// # Errors
    /// `failure` itself unless it is out of memory; `DoesNotFit` at the end of the ladder.
    pub(crate) fn recover(
        &mut self,
        failure: TrainError,
        batch: &BatchView<'_>,
        retry_count: usize,
    ) -> Result<Retry> {
        let Some(ledger) = failure.out_of_memory() else { return Err(failure) };
        let ledger = Box::new(ledger.clone());
        self.device.allocator().trim();
        let capacity_bytes = self.device.allocator().capacity_bytes();
        let events = [PlannedEvent::Step(*batch)];
        let search = || Search::new(self.run_inputs(), &events, capacity_bytes);
        let fits = || -> Result<bool> {
            let forecast = self.run_inputs().rehearse(&events, self.knobs)?;
            Ok(forecast.peak_bytes <= capacity_bytes)
        };
        if retry_count == 0 && fits()? {
            return Ok(Retry { failure: ledger, recovery: Recovery::SamePlan });
        }
        // What fits by rehearsal and failed all the same is not tried by halves again.
        let wants_all = retry_count > 0;
        if let Some(knobs) = search().recompute_more(self.knobs, wants_all)? {
            self.knobs = knobs;
            let recovery = Recovery::MoreRecomputation { blocks: knobs.recomputed_blocks };
            return Ok(Retry { failure: ledger, recovery });
        }
        let (len, now) = (batch.len(), self.knobs.micro_batch.min(batch.len()));
        let max = if retry_count == 0 { now } else { (now - 1).max(1) };
        match search().find(len, max, self.splitting()) {
            Ok(plan) if plan.knobs.micro_batch < now => {
                self.knobs = plan.knobs;
                let Knobs { micro_batch, .. } = plan.knobs;
                let recovery = Recovery::SmallerMicroBatch { micro_batch };
                Ok(Retry { failure: ledger, recovery })
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

    /// Returns to the planned knobs after a few clean steps, if they fit again.
    pub(crate) fn grow_back(&mut self, batch: &BatchView<'_>, clean: bool) {
        self.clean_steps = if clean { self.clean_steps + 1 } else { 0 };
        let planned = self.current_plan().map_or(self.knobs, |plan| plan.knobs);
        // A short batch says nothing about parts longer than itself.
        let larger = Knobs { micro_batch: planned.micro_batch.min(batch.len()), ..planned };
        let is_back = larger.micro_batch <= self.knobs.micro_batch
            && larger.recomputed_blocks >= self.knobs.recomputed_blocks;
        if self.clean_steps < CLEAN_STEPS_TO_GROW || is_back {
            return;
        }
        self.clean_steps = 0;
        let capacity_bytes = self.device.allocator().capacity_bytes();
        let forecast = self.run_inputs().rehearse(&[PlannedEvent::Step(*batch)], larger);
        if forecast.is_ok_and(|forecast| forecast.peak_bytes <= capacity_bytes) {
            self.knobs = larger;
        }
    }
}
