//! Distillation: a student learns from a teacher.

use std::collections::BTreeSet;

use lowtide_autograd::Pass;
use lowtide_data::BatchView;
use lowtide_nn::{Buffer, Loss, Nodes, Parameters, Visitor};
use lowtide_tensor::{Device, Tensor};

use crate::error::{Result, TrainError};
use crate::run::score::Score;
use crate::task::contract::Task;
use crate::task::outputs::Outputs;

/// Options of a student that learns from a teacher.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DistillationOptions {
    /// The temperature T, by which the logits of student and teacher are divided. A higher
    /// temperature gives more weight to the wrong classes.
    pub temperature: f64,
    /// The weight a of the teacher in the loss, from 0 to 1.
    pub weight: f64,
}

impl Default for DistillationOptions {
    fn default() -> Self {
        DistillationOptions { temperature: 2.0, weight: 0.5 }
    }
}

/// A task whose model, the student, learns from the model of another task, the frozen teacher. The
/// loss is `(1 - a) CE + a T² KL(teacher ‖ student)` (Hinton, Vinyals and Dean, "Distilling the
/// knowledge in a neural network", 2015). CE is the student's own loss; KL compares the softmax of
/// both models' logits divided by T. Counts and scores are the student's; a target that does not
/// count is left out of CE and KL. With a weight of 0 the bits are those of the student's task, and
/// the teacher is not run.
///
/// The teacher runs before the student, in evaluation mode and in its own number types, and saves
/// nothing for backward. The names of its parameters begin with `teacher.`. Plans count them.
/// Checkpoints and files of runs leave out all frozen parameters, also the teacher's: see
/// [`Task::base_is_elsewhere`].
///
/// Both tasks must predict classes: [`Task::outputs`].
#[derive(Clone, Debug)]
pub struct Distillation<S, T> {
    student: S,
    teacher: T,
    options: DistillationOptions,
}

impl<S: Task, T: Task> Distillation<S, T> {
    /// The task of the student with the teacher's help. Freezes the teacher's parameters, also for
    /// all other handles to them.
    ///
    /// # Errors
    /// `Setting` for a temperature that is not above 0, for a weight outside `[0, 1]`, and for a
    /// student that shares parameters with its teacher. Clones share parameters. If
    /// [channels](lowtide_nn::prune::channels) were taken out of a clone, it still shares the
    /// parameters that were left whole.
    pub fn new(mut student: S, mut teacher: T, options: DistillationOptions) -> Result<Self> {
        options.check()?;
        let mut own = BTreeSet::new();
        student.parameters().visit(&mut |_, parameter| _ = own.insert(parameter.id()));
        let mut shared = None;
        teacher.parameters().visit(&mut |name, parameter| {
            if shared.is_none() && own.contains(&parameter.id()) {
                shared = Some(name.to_owned());
            }
        });
        if let Some(place) = shared {
            let problem = "is the student's and the teacher's, which would freeze it".to_owned();
            return Err(TrainError::Setting { place, problem });
        }
        teacher.parameters().visit(&mut |_, parameter| parameter.freeze());
        teacher.parameters().visit_buffers(&mut |_, buffer| {
            *buffer = Buffer::constant(buffer.value().clone());
        });
        Ok(Distillation { student, teacher, options })
    }

    /// The task of the student.
    pub fn student(&self) -> &S {
        &self.student
    }

    /// The task of the teacher.
    pub fn teacher(&self) -> &T {
        &self.teacher
    }
}

impl DistillationOptions {
    /// `Ok` if both numbers are in their ranges.
    ///
    /// # Errors
    /// Errors of [`Distillation::new`].
    pub fn check(&self) -> Result<()> {
        let wrong = |name: &str, problem: String| {
            Err(TrainError::Setting { place: format!("distill.{name}"), problem })
        };
        let &DistillationOptions { temperature, weight } = self;
        if !(temperature > 0.0 && temperature.is_finite()) {
            return wrong("temperature", format!("{temperature} is not above 0"));
        }
        if !(0.0..=1.0).contains(&weight) {
            return wrong("weight", format!("{weight} is not from 0 to 1"));
        }
        Ok(())
    }
}

impl<S: Task, T: Task> Nodes for Distillation<S, T> {
    /// Shows only the teacher's values: every rank has the whole teacher, which saves nothing for
    /// backward and gets no adapters.
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        visitor.field("", self.student.parameters());
        visitor.values("teacher", self.teacher.parameters());
    }
}

impl<S: Task + Clone + 'static, T: Task + Clone + 'static> Task for Distillation<S, T> {
    fn parameters(&mut self) -> &mut dyn Parameters {
        self
    }

    fn count(&self, batch: &BatchView<'_>) -> Result<f64> {
        self.student.count(batch)
    }

    fn loss(&self, pass: &Pass, device: &Device, part: &BatchView<'_>) -> Result<Loss> {
        let DistillationOptions { temperature, weight } = self.options;
        if weight == 0.0 {
            return self.student.loss(pass, device, part);
        }
        let silent = Pass::eval();
        let taught = silent.within("teacher", || self.teacher.outputs(&silent, device, part))?;
        let taught = taught.ok_or_else(|| without_classes("teacher"))?.logits;
        let own = self.student.outputs(pass, device, part)?;
        let own = own.ok_or_else(|| without_classes("student"))?;
        let classes = [own.logits.classes(), taught.classes()];
        if classes[0] != classes[1] {
            let [student, teacher] = classes;
            let problem = format!("has {student} classes, and its teacher {teacher}");
            return Err(TrainError::Setting { place: "student".to_owned(), problem });
        }
        let labels: Tensor = own.labels.clone();
        let soft = own.logits.clone().distillation(taught, &labels, temperature)?;
        let soft = Loss { sum: soft.sum.mul_scalar(weight)?, ..soft };
        if weight == 1.0 {
            return Ok(soft);
        }
        let hard = own.loss()?;
        Ok(Loss { sum: soft.sum.add(hard.sum.mul_scalar(1.0 - weight)?)?, ..hard })
    }

    fn outputs(
        &self,
        pass: &Pass,
        device: &Device,
        part: &BatchView<'_>,
    ) -> Result<Option<Outputs>> {
        self.student.outputs(pass, device, part)
    }

    fn score(&self, device: &Device, part: &BatchView<'_>) -> Result<Score> {
        self.student.score(device, part)
    }

    fn base_is_elsewhere(&self) -> bool {
        true
    }
}

fn without_classes(place: &str) -> TrainError {
    let problem = "its task gives no logits: it is not of classes".to_owned();
    TrainError::Setting { place: place.to_owned(), problem }
}
