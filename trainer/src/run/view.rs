//! A training between two steps, as observers see it.

use lowtide_data::Loader;
use lowtide_nn::Parameters;
use lowtide_nn::optim::Stateful;
use lowtide_tensor::Device;

use crate::error::Result;
use crate::files::snapshot::Snapshot;
use crate::files::trained_state::TrainedState;
use crate::plan::Plan;
use crate::run::observer::{Position, Training};
use crate::run::score::Score;
use crate::run::trainer::Trainer;
use crate::run::training::Evaluators;
use crate::task::contract::Task;

impl<T: Task + Clone, O: Stateful + Clone> Training for Trainer<T, O> {
    fn position(&self) -> Position {
        Trainer::position(self)
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn current_plan(&self) -> Option<&Plan> {
        Trainer::current_plan(self)
    }

    fn parameters(&mut self) -> &mut dyn Parameters {
        self.task.parameters()
    }

    fn optimizer(&mut self) -> &mut dyn Stateful {
        &mut self.optimizer
    }

    fn evaluate(&mut self, loader: &Loader) -> Result<Score> {
        self.check_alone()?;
        self.score(loader, Evaluators::ThisRank)
    }

    fn snapshot(&mut self) -> Result<Snapshot> {
        Trainer::snapshot(self)
    }

    fn snapshot_bytes(&mut self) -> usize {
        Trainer::snapshot_bytes(self)
    }

    fn learned_bytes(&mut self) -> [usize; 2] {
        TrainedState::in_size(&mut self.task).bytes()
    }
}
