//! The contract of a task: a model with a loss, and a score.

use lowtide_autograd::Pass;
use lowtide_data::BatchView;
use lowtide_nn::{Loss, Parameters};
use lowtide_tensor::Device;

use crate::error::Result;
use crate::run::score::Score;
use crate::task::outputs::Outputs;

/// A model together with what it should learn. Clones share their parameters.
///
/// The planner runs a task on a simulated device too, with the tensors of [`Task::parameters`]
/// exchanged for simulated ones: it makes the same allocations and has no values to read (see
/// `Tensor::item_assuming`). So a task uses the device that it is given, and keeps no tensor from
/// one call for the next but in parameters and buffers. What couples the samples of a batch says so
/// to the pass ([`Pass::couple_samples`]), and the batch is never split.
///
/// A `Box<dyn Task>` is a task, too.
pub trait Task: CloneTask {
    /// The model's parameters.
    fn parameters(&mut self) -> &mut dyn Parameters;

    /// How many targets of `batch` count (or the sum of their weights): what the loss of the
    /// whole batch is divided by, known before the first micro-batch.
    ///
    /// # Errors
    /// A field that is missing or of another type.
    fn count(&self, batch: &BatchView<'_>) -> Result<f64>;

    /// The loss of a part of a batch.
    ///
    /// # Errors
    /// Anything; out of memory is recovered from.
    fn loss(&self, pass: &Pass, device: &Device, part: &BatchView<'_>) -> Result<Loss>;

    /// How well the model does on a part of a batch.
    ///
    /// # Errors
    /// Anything; out of memory is recovered from.
    fn score(&self, device: &Device, part: &BatchView<'_>) -> Result<Score>;

    /// The logits of a part of a batch and their targets, for a
    /// [`Distillation`](crate::Distillation), of tasks that are of classes; `None` of others.
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
    /// "generator"]`, by what their parameters' names begin with. Each turn has a forward and a
    /// backward pass, whose [`Pass::turn`] says which model is trained, and an update by the
    /// model's own optimizer of [`ByModel`](lowtide_nn::optim::ByModel); later turns see it. All of
    /// them are one transaction, with the same batch. Without any (the default) one loss trains
    /// everything.
    fn turns(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether the frozen parameters come from a file that stays, such as that of a pretrained
    /// model: checkpoints, files of runs and hashes are then of the others alone, and who goes on
    /// from one makes the task with the same weights. By default they hold everything.
    fn base_is_elsewhere(&self) -> bool {
        false
    }

    /// The counts of a loss of several terms, each of which is divided by its own count of the
    /// whole batch; then [`Task::losses`] gives as many. By default the one of [`Task::count`].
    ///
    /// # Errors
    /// Errors of [`Task::count`].
    fn counts(&self, batch: &BatchView<'_>) -> Result<Vec<f64>> {
        Ok(vec![self.count(batch)?])
    }

    /// The terms of the loss of a part of a batch, for [`Task::counts`]; their means are added.
    ///
    /// # Errors
    /// Errors of [`Task::loss`].
    fn losses(&self, pass: &Pass, device: &Device, part: &BatchView<'_>) -> Result<Vec<Loss>> {
        Ok(vec![self.loss(pass, device, part)?])
    }
}

/// Tasks that can be cloned behind a box: all that can be cloned.
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
