//! Reports of a run to its observers, which can end the run.

use lowtide_allocator::OutOfMemory;
use lowtide_data::Loader;
use lowtide_nn::Parameters;
use lowtide_nn::optim::Stateful;
use lowtide_tensor::Device;

use crate::error::Result;
use crate::files::snapshot::Snapshot;
use crate::plan::Plan;
use crate::run::score::Score;

/// Whether a run goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flow {
    /// Go on with the next step.
    #[default]
    Continue,
    /// End the run after this step, in good order.
    Stop,
}

/// The position of a training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Steps committed or skipped.
    pub step: u64,
    /// Epochs finished.
    pub epoch: u64,
    /// Batches of the next epoch that are done.
    pub batch: usize,
}

/// The frame of a run, before its first step.
#[derive(Clone, Debug)]
pub struct RunStart {
    /// The plan of the run.
    pub plan: Plan,
    /// Steps that the training had before.
    pub steps_before: u64,
    /// Steps to come.
    pub step_count: u64,
    /// The number of the last epoch, counted from 1 over the whole training.
    pub epoch_count: u64,
    /// Names of the sets that are evaluated.
    pub sets: Vec<String>,
}

/// A published step.
#[derive(Clone, Debug)]
pub struct StepReport {
    /// Number of the step, counted from 1.
    pub step: u64,
    /// Number of the epoch, counted from 1.
    pub epoch: u64,
    /// Mean loss of the logical batch, before the update; the sum of those of all turns.
    pub loss: f64,
    /// The loss of each turn by model, where there are [turns](crate::Task::turns).
    pub turn_losses: Vec<(String, f64)>,
    /// Step size of the update.
    pub learning_rate: f64,
    /// Length of the gradient of the mean loss, before it was clipped, where it is known: see
    /// [`Options::gradient_norm`](crate::Options::gradient_norm).
    pub gradient_norm: Option<f64>,
    /// Samples of the logical batch.
    pub batch: usize,
    /// Samples on the device at once.
    pub micro_batch: usize,
    /// Whether results that are cheap were computed again: see [`Knobs`](crate::Knobs).
    pub cheap_recomputed: bool,
    /// Blocks of which backward computed the values again: see [`Knobs`](crate::Knobs).
    pub recomputed_blocks: usize,
    /// Blocks whose saved tensors waited on the host: see [`Knobs`](crate::Knobs).
    pub offloaded_blocks: usize,
    /// Whether each parameter was updated as soon as its gradient was complete: see
    /// [`Knobs`](crate::Knobs).
    pub fused_update: bool,
    /// Whether the update was left out because the loss or a gradient was not finite.
    pub skipped: bool,
    /// Samples that could not be read and were left out, as indices of the data set: see
    /// [`OnBadSample`](lowtide_data::OnBadSample).
    pub bad_samples: Vec<usize>,
    /// The attempts that were rolled back, in order.
    pub retries: Vec<Retry>,
    /// Highest reserved bytes of the run so far.
    pub reserved_peak_bytes: usize,
    /// Wall time of the step, with its retries.
    pub seconds: f64,
    /// Whether an evaluation follows, unless an observer ends the run here.
    pub is_evaluated: bool,
}

/// An attempt that was rolled back, and how the step went on.
#[derive(Clone, Debug, PartialEq)]
pub struct Retry {
    /// The failed allocation.
    pub failure: Box<OutOfMemory>,
    /// The rung of the recovery ladder that followed.
    pub recovery: Recovery,
}

/// The rungs of the recovery ladder.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Recovery {
    /// Caches dropped, the same plan again: the same bits.
    SamePlan,
    /// Memory had come back, the same plan again: the same bits.
    Waited {
        /// Since the step began.
        seconds: f64,
    },
    /// Results that are cheap not kept for backward, which computes them again: the same bits.
    CheapRecomputation,
    /// Fewer values kept for backward, which computes them again: the same bits.
    MoreRecomputation {
        /// Blocks that are recomputed now.
        blocks: usize,
    },
    /// Tensors that blocks keep for backward wait in memory of the host: the same bits.
    Offload {
        /// Blocks that are offloaded now.
        blocks: usize,
    },
    /// Each parameter updated as soon as its gradient is complete: the same bits.
    FusedUpdate,
    /// Smaller micro-batches of the same logical batch: the same numbers up to the order of
    /// float additions.
    SmallerMicroBatch {
        /// The new size.
        micro_batch: usize,
    },
}

/// An evaluation, of one set or several.
#[derive(Clone, Debug)]
pub struct EvaluationReport {
    /// The epoch that it ends or lies in, counted from 1.
    pub epoch: u64,
    /// Whether it ends the epoch.
    pub ends_epoch: bool,
    /// Steps so far.
    pub step: u64,
    /// Each set's name and score, in the order in which they were given.
    pub scores: Vec<(String, Score)>,
    /// Wall time of the evaluation.
    pub seconds: f64,
}

impl EvaluationReport {
    /// A value by the names of its set and metric (`loss` is one), such as `("test", "accuracy")`.
    pub fn value(&self, set: &str, metric: &str) -> Option<f64> {
        let (_, score) = self.scores.iter().find(|(name, _)| name == set)?;
        score.value(metric)
    }
}

/// A training between two steps, as observers see it: they may look at all of it, save it, and set
/// the learning rate.
pub trait Training {
    /// Where the training is.
    fn position(&self) -> Position;

    /// Where it computes; its allocator tells of the memory.
    fn device(&self) -> &Device;

    /// How it runs.
    fn current_plan(&self) -> Option<&Plan>;

    /// The model's parameters and buffers.
    fn parameters(&mut self) -> &mut dyn Parameters;

    /// The optimizer, for instance to set its learning rate.
    fn optimizer(&mut self) -> &mut dyn Stateful;

    /// The score of everything in `loader`, by the averages of the parameters if there are any, of
    /// this rank alone.
    ///
    /// # Errors
    /// Errors of an evaluation.
    fn evaluate(&mut self, loader: &Loader) -> Result<Score>;

    /// Everything that the next step depends on, to be written as a checkpoint, now or by another
    /// thread: see [`Trainer::snapshot`](crate::Trainer::snapshot).
    ///
    /// # Errors
    /// Errors of [`Trainer::snapshot`](crate::Trainer::snapshot).
    fn snapshot(&mut self) -> Result<Snapshot>;

    /// Bytes that a snapshot takes at most, once the optimizer has its state.
    fn snapshot_bytes(&mut self) -> usize;

    /// Bytes of a snapshot for the tensors of the model, and bytes for their names.
    fn learned_bytes(&mut self) -> [usize; 2];
}

/// A receiver of the reports of a run, which may act between two steps. Every method does nothing
/// by default. Plans do not count memory of the device that an observer takes.
pub trait Observer {
    /// Before the first step.
    ///
    /// # Errors
    /// Ends the run.
    fn on_start(&mut self, _start: &RunStart, _training: &mut dyn Training) -> Result<()> {
        Ok(())
    }

    /// In a step, when a phase begins: `forward`, `backward` or `optimizer`.
    fn on_phase(&mut self, _step: u64, _phase: &'static str) {}

    /// After a step has been committed.
    ///
    /// # Errors
    /// Ends the run; the step stays committed.
    fn on_step(&mut self, _report: &StepReport, _training: &mut dyn Training) -> Result<Flow> {
        Ok(Flow::Continue)
    }

    /// After an evaluation.
    ///
    /// # Errors
    /// Ends the run.
    fn on_evaluation(
        &mut self,
        _report: &EvaluationReport,
        _training: &mut dyn Training,
    ) -> Result<Flow> {
        Ok(Flow::Continue)
    }

    /// After the last step, however the run ended, unless with an error.
    ///
    /// # Errors
    /// Ends the run with this error.
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
