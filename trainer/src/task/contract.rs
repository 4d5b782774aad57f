//! The contract of a task: a model with a loss, and a score.

use lowtide_autograd::Pass;
use lowtide_data::BatchView;
use lowtide_nn::{Loss, Parameters};
use lowtide_tensor::Device;

use crate::error::Result;
use crate::run::score::Score;
use crate::task::outputs::Outputs;

/// A model together with its training goal. Clones share their parameters.
///
/// The planner also runs a task on a simulated device, with simulated tensors in place of
/// [`Task::parameters`]. The task makes the same allocations, and has no values to read (see
/// `Tensor::item_assuming`). So a task uses the device that it is given, and keeps no tensor
/// between calls except in parameters and buffers. An operation that couples the samples of a batch
/// reports this to the pass ([`Pass::couple_samples`]); the batch is then never split.
///
/// `Box<dyn Task>` implements `Task` too.
pub trait Task: CloneTask {
    /// The model's parameters.
    fn parameters(&mut self) -> &mut dyn Parameters;

    /// The number of targets of `batch` that count, or the sum of their weights. The loss of the
    /// whole batch is divided by this number, so it must be known before the first micro-batch.
    ///
    /// # Errors
    /// `Setting` for a field that is missing or of another type.
    fn count(&self, batch: &BatchView<'_>) -> Result<f64>;

    /// The loss of a part of a batch.
    ///
    /// # Errors
    /// Any error. After an out-of-memory error the step is tried again.
    fn loss(&self, pass: &Pass, device: &Device, part: &BatchView<'_>) -> Result<Loss>;

    /// The score of the model on a part of a batch.
    ///
    /// # Errors
    /// Any error. After an out-of-memory error the evaluation is tried again.
    fn score(&self, device: &Device, part: &BatchView<'_>) -> Result<Score>;

    /// The logits of a part of a batch and their targets, for a
    /// [`Distillation`](crate::Distillation). `None` for tasks that predict no classes.
    ///
    /// # Errors
    /// Errors of [`Task::loss`].
    fn outputs(
        &self,
        _pass: &Pass,
        _device: &Device,
        _part: &BatchView<'_>,
    ) -> Result<Option<Outputs>> {
        Ok(None)
    }

    /// The models that are trained in turn within one step, such as `["discriminator",
    /// "generator"]`. A model is named by the first part of its parameters' names. Each turn has a
    /// forward and a backward pass, whose [`Pass::turn`] names the trained model, and an update by
    /// this model's optimizer in [`ByModel`](lowtide_nn::optim::ByModel). Later turns see the
    /// updates of earlier turns. All turns use the same batch and are one transaction. By default
    /// there are no turns, and one loss trains all parameters.
    fn turns(&self) -> Vec<String> {
        Vec::new()
    }

    /// True if the frozen parameters come from a file that stays, such as the file of a pretrained
    /// model. Checkpoints, files of runs and hashes then leave these parameters out, and a run that
    /// continues from a checkpoint must make its task with the same weights. By default nothing is
    /// left out.
    fn base_is_elsewhere(&self) -> bool {
        false
    }

    /// The counts of a loss of several terms. Each term is divided by its own count over the whole
    /// batch, and [`Task::losses`] returns a loss for each count. By default there is one term,
    /// with the count of [`Task::count`].
    ///
    /// # Errors
    /// Errors of [`Task::count`].
    fn counts(&self, batch: &BatchView<'_>) -> Result<Vec<f64>> {
        Ok(vec![self.count(batch)?])
    }

    /// The terms of the loss of a part of a batch, one for each of [`Task::counts`]. The means of
    /// the terms are added.
    ///
    /// # Errors
    /// Errors of [`Task::loss`].
    fn losses(&self, pass: &Pass, device: &Device, part: &BatchView<'_>) -> Result<Vec<Loss>> {
        Ok(vec![self.loss(pass, device, part)?])
    }
}

/// Tasks that can be cloned behind a box. Every task that is `Clone` implements this trait.
pub trait CloneTask {
    /// A clone behind a box.
    fn boxed_clone(&self) -> Box<dyn Task>;
}

impl<T: Task + Clone + 'static> CloneTask for T {
    fn boxed_clone(&self) -> Box<dyn Task> {
        Box::new(self.clone())
    }
}

impl Clone for Box<dyn Task> {
    fn clone(&self) -> Self {
        (**self).boxed_clone()
    }
}

impl Task for Box<dyn Task> {
    fn parameters(&mut self) -> &mut dyn Parameters {
        (**self).parameters()
    }

    fn count(&self, batch: &BatchView<'_>) -> Result<f64> {
        (**self).count(batch)
    }

    fn loss(&self, pass: &Pass, device: &Device, part: &BatchView<'_>) -> Result<Loss> {
        (**self).loss(pass, device, part)
    }

    fn score(&self, device: &Device, part: &BatchView<'_>) -> Result<Score> {
        (**self).score(device, part)
    }

    fn outputs(
        &self,
        pass: &Pass,
        device: &Device,
        part: &BatchView<'_>,
    ) -> Result<Option<Outputs>> {
        (**self).outputs(pass, device, part)
    }

    fn turns(&self) -> Vec<String> {
        (**self).turns()
    }

    fn base_is_elsewhere(&self) -> bool {
        (**self).base_is_elsewhere()
    }

    fn counts(&self, batch: &BatchView<'_>) -> Result<Vec<f64>> {
        (**self).counts(batch)
    }

    fn losses(&self, pass: &Pass, device: &Device, part: &BatchView<'_>) -> Result<Vec<Loss>> {
        (**self).losses(pass, device, part)
    }
}
