//! A teacher for a recipe: the model of another run.

use std::path::PathBuf;

use lowtide_tensor::Device;
use lowtide_trainer::{Distillation, DistillationOptions, Result, Task, TrainedState};

use super::options::options;
use super::{Recipe, Samples};
use crate::run_dir::RunDir;

options! {
    /// A teacher whose outputs the model learns, besides its data.
    DistillRecipe {
        /// The folder of the teacher's run.
        teacher: PathBuf = PathBuf::from("runs/teacher"),
        /// The temperature, by which the logits of student and teacher are divided.
        temperature: f64 = 2.0,
        /// The weight of the teacher in the loss, 0.0 to 1.0.
        weight: f64 = 0.5,
    }
}

impl DistillRecipe {
    /// # Errors
    /// `Setting` for a number out of its range.
    pub(super) fn check(&self) -> Result<()> {
        self.options().check()
    }

    fn options(&self) -> DistillationOptions {
        let &DistillRecipe { temperature, weight, .. } = self;
        DistillationOptions { temperature, weight }
    }

    /// The task of a student with the teacher of the run. On a simulated device it has no weights.
    ///
    /// # Errors
    /// Errors of the run's files; `Setting` for a teacher that cannot use these samples;
    /// `OutOfMemory`.
    pub(super) fn task(
        &self,
        student: Box<dyn Task>,
        device: &Device,
        samples: Samples,
    ) -> Result<Box<dyn Task>> {
        let run_dir = RunDir::open(&self.teacher)?;
        let recipe = Recipe::of_run(&run_dir)?;
        let mut teacher = recipe.task(device, samples)?;
        if !device.is_simulated() {
            recipe.read_model(&run_dir, &mut TrainedState::of(&mut teacher))?;
        }
        Ok(Box::new(Distillation::new(student, teacher, self.options())?))
    }
}
