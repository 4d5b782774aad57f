//! What is trained: a model with a loss, and how good it is.

use lowtide_allocator::Category;
use lowtide_autograd::Pass;
use lowtide_data::{BatchView, ElementType, FieldView};
use lowtide_nn::{Loss, Module, Parameters, cross_entropy};
use lowtide_tensor::{DType, Device, Tensor};

use crate::error::{Result, TrainError};

/// A model together with what it should learn. Clones share their parameters.
///
/// The planner runs a task on a simulated device too, with the tensors of [`Task::parameters`]
/// exchanged for simulated ones: it makes the same allocations and has no values to read (see
/// `Tensor::item_assuming`). So a task uses the device that it is given, and keeps no tensor from
/// one call for the next but in parameters and buffers. What couples the samples of a batch says so
/// to the pass ([`Pass::couple_samples`]), and the batch is never split.
pub trait Task: Clone {
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
}

/// Sums over evaluated samples; parts add up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    /// Sum of the losses.
    pub loss_sum: f64,
    /// How many targets counted.
    pub count: f64,
    /// How many of them were predicted right.
    pub correct: f64,
}

impl Score {
    /// Loss per target; NaN without targets.
    pub fn loss(&self) -> f64 {
        self.loss_sum / self.count
    }

    /// The fraction predicted right; NaN without targets.
    pub fn accuracy(&self) -> f64 {
        self.correct / self.count
    }

    pub(crate) fn add(&mut self, other: Score) {
        self.loss_sum += other.loss_sum;
        self.count += other.count;
        self.correct += other.correct;
    }
}

/// Images to classes by cross-entropy: fields `images` `[B, C, H, W]` of f32 and `labels` `[B]` of
/// i64. A label of -100 does not count, as in PyTorch; any other that names no class is an error of
/// the step.
#[derive(Clone, Debug)]
pub struct Classification<M> {
    model: M,
}

/// Labels that do not count, PyTorch's `ignore_index`.
const IGNORED_LABEL: i64 = -100;

impl<M: Module + Clone> Classification<M> {
    /// The task of training `model`, which returns logits [B, classes].
    pub fn new(model: M) -> Self {
        Classification { model }
    }

    /// The model.
    pub fn model(&self) -> &M {
        &self.model
    }
}

impl<M: Module + Clone> Task for Classification<M> {
    fn parameters(&mut self) -> &mut dyn Parameters {
        &mut self.model
    }

    fn count(&self, batch: &BatchView<'_>) -> Result<f64> {
        let labels = labels(batch)?;
        Ok(labels.iter().filter(|&&label| label != IGNORED_LABEL).count() as f64)
    }

    fn loss(&self, pass: &Pass, device: &Device, part: &BatchView<'_>) -> Result<Loss> {
        let images = upload(device, field(part, "images")?)?;
        let labels = upload(device, field(part, "labels")?)?;
        let logits = self.model.forward(pass, pass.constant(images))?;
        Ok(cross_entropy(logits, &labels)?)
    }

    fn score(&self, device: &Device, part: &BatchView<'_>) -> Result<Score> {
        let pass = Pass::eval();
        let images = upload(device, field(part, "images")?)?;
        let labels_here = upload(device, field(part, "labels")?)?;
        let logits = self.model.forward(&pass, pass.constant(images))?;
        let predicted = logits.value().argmax()?;
        let loss = cross_entropy(logits, &labels_here)?;
        let correct = if device.is_simulated() {
            0.0
        } else {
            let pairs = predicted.to_vec::<i64>()?.into_iter().zip(labels(part)?);
            pairs.filter(|(predicted, label)| predicted == *label).count() as f64
        };
        let loss_sum = f64::from(loss.sum.value().item_assuming(0.0f32)?);
        Ok(Score { loss_sum, count: self.count(part)?, correct })
    }
}

/// The field `name` of a batch.
///
/// # Errors
/// `Setting` when there is none.
pub fn field<'a>(batch: &BatchView<'a>, name: &str) -> Result<FieldView<'a>> {
    batch.field(name).ok_or_else(|| TrainError::Setting {
        place: format!("field {name:?}"),
        problem: "the dataset has no such field".to_owned(),
    })
}

fn labels<'a>(batch: &BatchView<'a>) -> Result<&'a [i64]> {
    field(batch, "labels")?.values::<i64>().ok_or_else(|| TrainError::Setting {
        place: "field \"labels\"".to_owned(),
        problem: "must be i64".to_owned(),
    })
}

/// A field's bytes as a tensor of its shape on `device`, attributed to input.
///
/// # Errors
/// `OutOfMemory`.
#[track_caller]
pub fn upload(device: &Device, field: FieldView<'_>) -> Result<Tensor> {
    let _scope = device.category(Category::Input);
    let dtype = match field.element() {
        ElementType::F32 => DType::F32,
        ElementType::F64 => DType::F64,
        ElementType::I64 => DType::I64,
        _ => DType::U8,
    };
    Ok(Tensor::from_bytes(device, &field.shape()[..], dtype, field.bytes())?)
}
