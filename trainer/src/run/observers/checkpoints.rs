//! The observer that writes checkpoints.

use super::{CheckpointEvery, Watched};
use crate::error::Result;
use crate::files::checkpoint_folder::CheckpointFolder;
use crate::run::observer::{EvaluationReport, Flow, Observer, RunStart, StepReport, Training};

/// Writes checkpoints at an interval, and optionally the best one.
pub struct Checkpoints {
    folder: CheckpointFolder,
    every: CheckpointEvery,
    best: Option<Watched>,
    /// True if a checkpoint is to be written after the evaluation of this step.
    is_due: bool,
}

impl Checkpoints {
    /// Writes checkpoints into `folder`.
    pub fn new(folder: CheckpointFolder, every: CheckpointEvery) -> Self {
        Checkpoints { folder, every, best: None, is_due: false }
    }

    /// Also writes and keeps a checkpoint after the evaluation with the best value of `watched`.
    #[must_use]
    pub fn keep_best(self, watched: Watched) -> Self {
        Checkpoints { folder: self.folder.keep_best(), best: Some(watched), ..self }
    }

    /// The folder of the checkpoints, for example to write one more.
    pub fn folder_mut(&mut self) -> &mut CheckpointFolder {
        &mut self.folder
    }
}

impl Observer for Checkpoints {
    fn on_start(&mut self, start: &RunStart, training: &mut dyn Training) -> Result<()> {
        let end = start.steps_before + start.step_count;
        let is_never = matches!(self.every, CheckpointEvery::Steps(steps) if steps > end);
        self.folder.open(start, training, !is_never)
    }

    fn on_step(&mut self, report: &StepReport, training: &mut dyn Training) -> Result<Flow> {
        let is_due = self.every.is_due(training.position(), self.folder.written_at());
        // If an evaluation follows, the checkpoint is written after it, so that a resumed run does
        // not repeat the evaluation.
        self.is_due = is_due && report.is_evaluated;
        if is_due && !report.is_evaluated {
            self.folder.write(training);
        }
        Ok(Flow::Continue)
    }

    fn on_evaluation(
        &mut self,
        report: &EvaluationReport,
        training: &mut dyn Training,
    ) -> Result<Flow> {
        if std::mem::take(&mut self.is_due) {
            self.folder.write(training);
        }
        if let Some(cost) = self.best.as_ref().and_then(|watched| watched.cost(report)) {
            self.folder.write_if_best(cost, training);
        }
        Ok(Flow::Continue)
    }

    fn on_end(&mut self, training: &mut dyn Training) -> Result<()> {
        if std::mem::take(&mut self.is_due) {
            self.folder.write(training);
        }
        self.folder.wait();
        Ok(())
    }
}
