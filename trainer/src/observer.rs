//! What a run tells the outside, and how the outside can end it.

use lowtide_allocator::OutOfMemory;

use crate::error::Result;
use crate::plan::Plan;
use crate::task::Score;

/// Whether a run goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flow {
    /// On with the next step.
    #[default]
    Continue,
    /// End the run after this step, in good order.
    Stop,
}

/// The frame of a run, before its first step.
#[derive(Clone, Debug)]
pub struct RunStart {
    /// How it will run.
    pub plan: Plan,
    /// Steps that the training had before.
    pub steps_before: u64,
    /// Steps to come.
    pub step_count: u64,
    /// The number of the last epoch, counted from 1 over the whole training.
    pub epoch_count: u64,
}

/// A published step.
#[derive(Clone, Debug)]
pub struct StepReport {
    /// Counted from 1.
    pub step: u64,
    /// Counted from 1.
    pub epoch: u64,
    /// Mean loss of the logical batch, before the update.
    pub loss: f64,
    /// Step size of the update.
    pub learning_rate: f64,
    /// Samples of the logical batch.
    pub batch: usize,
    /// Samples on the device at once.
    pub micro_batch: usize,
    /// Whether the update was left out because the loss or a gradient was not finite.
    pub skipped: bool,
    /// The attempts that were rolled back, in order.
    pub retries: Vec<Retry>,
    /// Highest reserved bytes of the run so far.
    pub reserved_peak_bytes: usize,
    /// Wall time of the step, with its retries.
    pub seconds: f64,
}

/// An attempt that was rolled back, and how the step went on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The failed allocation.
    pub failure: Box<OutOfMemory>,
    /// The rung of the recovery ladder that followed.
    pub recovery: Recovery,
}

/// The rungs of the recovery ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Recovery {
    /// Caches dropped, the same plan again: the same bits.
    SamePlan,
    /// Smaller micro-batches of the same logical batch: the same numbers up to the order of
    /// float additions.
    SmallerMicroBatch {
        /// The new size.
        micro_batch: usize,
    },
}

/// A finished epoch.
#[derive(Clone, Copy, Debug)]
pub struct EpochReport {
    /// Counted from 1.
    pub epoch: u64,
    /// Steps so far.
    pub step: u64,
    /// Score on the test data.
    pub test: Score,
}

/// Someone who is told. Every method may be left out.
pub trait Observer {
    /// Before the first step.
    ///
    /// # Errors
    /// Ends the run.
    fn on_start(&mut self, _start: &RunStart) -> Result<()> {
        Ok(())
    }

    /// In a step, when a phase begins: `forward`, `backward` or `optimizer`.
    fn on_phase(&mut self, _step: u64, _phase: &'static str) {}

    /// After a step has been committed.
    ///
    /// # Errors
    /// Ends the run; the step stays committed.
    fn on_step(&mut self, _report: &StepReport) -> Result<Flow> {
        Ok(Flow::Continue)
    }

    /// After an epoch has been evaluated.
    ///
    /// # Errors
    /// Ends the run.
    fn on_epoch(&mut self, _report: &EpochReport) -> Result<Flow> {
        Ok(Flow::Continue)
    }

    /// After the last step, however the run ended, unless with an error.
    ///
    /// # Errors
    /// Ends the run with this error.
    fn on_end(&mut self) -> Result<()> {
        Ok(())
    }
}

/// One that may be absent.
impl<T: Observer> Observer for Option<T> {
    fn on_start(&mut self, start: &RunStart) -> Result<()> {
        self.as_mut().map_or(Ok(()), |observer| observer.on_start(start))
    }

    fn on_phase(&mut self, step: u64, phase: &'static str) {
        if let Some(observer) = self {
            observer.on_phase(step, phase);
        }
    }

    fn on_step(&mut self, report: &StepReport) -> Result<Flow> {
        self.as_mut().map_or(Ok(Flow::Continue), |observer| observer.on_step(report))
    }

    fn on_epoch(&mut self, report: &EpochReport) -> Result<Flow> {
        self.as_mut().map_or(Ok(Flow::Continue), |observer| observer.on_epoch(report))
    }

    fn on_end(&mut self) -> Result<()> {
        self.as_mut().map_or(Ok(()), Observer::on_end)
    }
}
