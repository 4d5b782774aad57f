//! Reports of a run to its observers. An observer can end the run.

use lowtide_allocator::OutOfMemory;
use lowtide_data::Loader;
use lowtide_nn::Parameters;
use lowtide_nn::optim::Stateful;
use lowtide_tensor::Device;

use crate::error::Result;
use crate::files::snapshot::Snapshot;
use crate::plan::Plan;
use crate::run::score::Score;

/// The answer of an observer, which continues or ends the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flow {
    /// Go on with the next step.
    #[default]
    Continue,
    /// End the run after this step, without an error.
    Stop,
}

/// The position of a training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Number of steps committed or skipped.
    pub step: u64,
    /// Number of finished epochs.
    pub epoch: u64,
    /// Number of finished batches of the next epoch.
    pub batch: usize,
}

/// The plan and length of a run, before its first step.
#[derive(Clone, Debug)]
pub struct RunStart {
    /// The plan of the run.
    pub plan: Plan,
    /// Number of earlier steps of the training.
    pub steps_before: u64,
    /// Number of steps to come.
    pub step_count: u64,
    /// The number of the last epoch, counted from 1 over the whole training.
    pub epoch_count: u64,
    /// Names of the sets that are evaluated.
    pub sets: Vec<String>,
}

/// A committed or skipped step.
#[derive(Clone, Debug)]
pub struct StepReport {
    /// Number of the step, counted from 1.
    pub step: u64,
    /// Number of the epoch, counted from 1.
    pub epoch: u64,
    /// Mean loss of the logical batch, before the update. With several turns, the sum of their
    /// losses.
    pub loss: f64,
    /// The loss of each model, if the task has [turns](crate::Task::turns).
    pub turn_losses: Vec<(String, f64)>,
    /// Step size of the update.
    pub learning_rate: f64,
    /// Length of the gradient of the mean loss before clipping. Absent if it was not computed, see
    /// [`Options::gradient_norm`](crate::Options::gradient_norm).
    pub gradient_norm: Option<f64>,
    /// Number of samples of the logical batch.
    pub batch: usize,
    /// Number of samples that a pass takes at once.
    pub micro_batch: usize,
    /// True if cheap results were computed again: see [`Knobs`](crate::Knobs).
    pub cheap_recomputed: bool,
    /// Number of blocks that backward computed again: see [`Knobs`](crate::Knobs).
    pub recomputed_blocks: usize,
    /// Number of blocks whose saved tensors waited on the host: see [`Knobs`](crate::Knobs).
    pub offloaded_blocks: usize,
    /// True if each parameter was updated as soon as its gradient was complete: see
    /// [`Knobs`](crate::Knobs).
    pub fused_update: bool,
    /// True if the update was left out because the loss or a gradient was not finite.
    pub skipped: bool,
    /// Indices in the data set of samples that could not be read and were left out: see
    /// [`OnBadSample`](lowtide_data::OnBadSample).
    pub bad_samples: Vec<usize>,
    /// The attempts that were rolled back, in order.
    pub retries: Vec<Retry>,
    /// Highest number of reserved bytes in the run so far.
    pub reserved_peak_bytes: usize,
    /// Wall time of the step, with its retries.
    pub seconds: f64,
    /// True if an evaluation follows, unless an observer ends the run here.
    pub is_evaluated: bool,
}

/// An attempt that was rolled back, and the recovery after it.
#[derive(Clone, Debug, PartialEq)]
pub struct Retry {
    /// The failed allocation.
    pub failure: Box<OutOfMemory>,
    /// The rung of the recovery ladder for the next attempt.
    pub recovery: Recovery,
}

/// The rungs of the recovery ladder.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Recovery {
    /// The caches are dropped and the same plan is tried again. The bits stay the same.
    SamePlan,
    /// Memory has come back and the same plan is tried again. The bits stay the same.
    Waited {
        /// Seconds from the start of the step to the retry.
        seconds: f64,
    },
    /// Backward computes cheap results again, so that they are not kept. The bits stay the same.
    CheapRecomputation,
    /// Backward computes more blocks again, so that fewer values are kept. The bits stay the same.
    MoreRecomputation {
        /// Number of blocks that are recomputed now.
        blocks: usize,
    },
    /// Saved tensors of blocks wait in memory of the host. The bits stay the same.
    Offload {
        /// Number of blocks that are offloaded now.
        blocks: usize,
    },
    /// Each parameter is updated as soon as its gradient is complete. The bits stay the same.
    FusedUpdate,
    /// The micro-batches of the same logical batch are smaller. The numbers stay the same up to the
    /// order of float additions.
    SmallerMicroBatch {
        /// The new number of samples.
        micro_batch: usize,
    },
}

/// An evaluation, of one set or several.
#[derive(Clone, Debug)]
pub struct EvaluationReport {
    /// The epoch of the evaluation, counted from 1.
    pub epoch: u64,
    /// True if the evaluation is at the end of the epoch.
    pub ends_epoch: bool,
    /// Number of steps so far.
    pub step: u64,
    /// The name and score of each set, in the order of [`Fit::evaluate`](crate::Fit::evaluate).
    pub scores: Vec<(String, Score)>,
    /// Wall time of the evaluation.
    pub seconds: f64,
}

impl EvaluationReport {
    /// The value of a metric of a set, such as `("test", "accuracy")`. `loss` is a metric too.
    pub fn value(&self, set: &str, metric: &str) -> Option<f64> {
        let (_, score) = self.scores.iter().find(|(name, _)| name == set)?;
        score.value(metric)
    }
}

/// A training between two steps, as observers see it. An observer may read all of it, save it, and
/// set the learning rate.
pub trait Training {
    /// The position of the training: its step, epoch and batch.
    fn position(&self) -> Position;

    /// The device of the training, whose allocator has the memory statistics.
    fn device(&self) -> &Device;

    /// The plan of the run.
    fn current_plan(&self) -> Option<&Plan>;

    /// The model's parameters and buffers.
    fn parameters(&mut self) -> &mut dyn Parameters;

    /// The optimizer, for instance to set its learning rate.
    fn optimizer(&mut self) -> &mut dyn Stateful;

    /// The score of everything in `loader`, computed on this rank alone. If the optimizer keeps
    /// averages of the parameters, the score uses them.
    ///
    /// # Errors
    /// Errors of an evaluation.
    fn evaluate(&mut self, loader: &Loader) -> Result<Score>;

    /// A copy of everything that the next step depends on. A checkpoint can be written from it, now
    /// or by another thread: see [`Trainer::snapshot`](crate::Trainer::snapshot).
    ///
    /// # Errors
    /// Errors of [`Trainer::snapshot`](crate::Trainer::snapshot).
    fn snapshot(&mut self) -> Result<Snapshot>;

    /// Largest bytes of a snapshot, which include the optimizer's state.
    fn snapshot_bytes(&mut self) -> usize;

    /// Bytes of a snapshot for the tensors of the model, and for their names.
    fn learned_bytes(&mut self) -> [usize; 2];
}

/// A receiver of the reports of a run, which may act between two steps. Every method does nothing
/// by default. Plans do not count device memory that an observer allocates.
pub trait Observer {
    /// Called before the first step.
    ///
    /// # Errors
    /// An error ends the run.
    fn on_start(&mut self, _start: &RunStart, _training: &mut dyn Training) -> Result<()> {
        Ok(())
    }

    /// Called when a phase of a step begins: `forward`, `backward` or `optimizer`.
    fn on_phase(&mut self, _step: u64, _phase: &'static str) {}

    /// Called after a step has been committed.
    ///
    /// # Errors
    /// An error ends the run; the step stays committed.
    fn on_step(&mut self, _report: &StepReport, _training: &mut dyn Training) -> Result<Flow> {
        Ok(Flow::Continue)
    }

    /// Called after an evaluation.
    ///
    /// # Errors
    /// An error ends the run.
    fn on_evaluation(
        &mut self,
        _report: &EvaluationReport,
        _training: &mut dyn Training,
    ) -> Result<Flow> {
        Ok(Flow::Continue)
    }

    /// Called after the last step of a run that ends without an error.
    ///
    /// # Errors
    /// The run ends with this error.
    fn on_end(&mut self, _training: &mut dyn Training) -> Result<()> {
        Ok(())
    }
}

/// An observer that may be absent.
impl<T: Observer> Observer for Option<T> {
    fn on_start(&mut self, start: &RunStart, training: &mut dyn Training) -> Result<()> {
        self.as_mut().map_or(Ok(()), |observer| observer.on_start(start, training))
    }

    fn on_phase(&mut self, step: u64, phase: &'static str) {
        if let Some(observer) = self {
            observer.on_phase(step, phase);
        }
    }

    fn on_step(&mut self, report: &StepReport, training: &mut dyn Training) -> Result<Flow> {
        let observer = self.as_mut();
        observer.map_or(Ok(Flow::Continue), |observer| observer.on_step(report, training))
    }

    fn on_evaluation(
        &mut self,
        report: &EvaluationReport,
        training: &mut dyn Training,
    ) -> Result<Flow> {
        let observer = self.as_mut();
        observer.map_or(Ok(Flow::Continue), |observer| observer.on_evaluation(report, training))
    }

    fn on_end(&mut self, training: &mut dyn Training) -> Result<()> {
        self.as_mut().map_or(Ok(()), |observer| observer.on_end(training))
    }
}
