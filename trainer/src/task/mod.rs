//! What is trained: a model with a loss, and how well it does.

mod classification;
mod closures;
mod distillation;
mod language;
mod outputs;
mod preference;
mod regression;
mod segmentation;
mod translation;

use lowtide_allocator::Category;
use lowtide_autograd::Pass;
use lowtide_data::{BatchView, Element, ElementType, FieldView, IGNORED_LABEL};
use lowtide_nn::{Loss, Parameters};
use lowtide_tensor::{DType, Device, Tensor};

pub use classification::Classification;
pub use closures::FnTask;
pub use distillation::{Distillation, DistillationOptions};
pub use language::{LanguageModel, TokenModel};
pub use outputs::Outputs;
pub use preference::Preference;
pub use preference::check_beta;
pub use regression::Regression;
pub use segmentation::Segmentation;
pub use translation::Translation;

use crate::error::{Result, TrainError};
use crate::run::score::Score;

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

    /// The logits of a part of a batch and what they should be, for a [`Distillation`], of tasks
    /// that are of classes; `None` of others.
    ///
    /// # Errors
    /// Those of [`Task::loss`].
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
    /// Those of [`Task::count`].
    fn counts(&self, batch: &BatchView<'_>) -> Result<Vec<f64>> {
        Ok(vec![self.count(batch)?])
    }

    /// The terms of the loss of a part of a batch, for [`Task::counts`]; their means are added.
    ///
    /// # Errors
    /// Those of [`Task::loss`].
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

/// The numbers of the field `name` of a batch.
///
/// # Errors
/// `Setting` when there is none, or it has another type.
pub fn values<'a, E: Element>(batch: &BatchView<'a>, name: &str) -> Result<&'a [E]> {
    field(batch, name)?.values::<E>().ok_or_else(|| TrainError::Setting {
        place: format!("field {name:?}"),
        problem: format!("must be {}", std::any::type_name::<E>()),
    })
}

/// How many of these labels count.
fn labels_that_count(labels: &[i64]) -> f64 {
    labels.iter().filter(|&&label| label != IGNORED_LABEL).count() as f64
}

/// A field's bytes as a tensor of its shape on `device`, attributed to input. Fields of u16, which
/// no tensor has, become i64, as tokens are.
///
/// # Errors
/// `OutOfMemory`.
#[track_caller]
pub fn upload(device: &Device, field: FieldView<'_>) -> Result<Tensor> {
    let _scope = device.category(Category::Input);
    let shape = &field.shape()[..];
    let dtype = match field.element() {
        ElementType::F32 => DType::F32,
        ElementType::F64 => DType::F64,
        ElementType::Bf16 => DType::BF16,
        ElementType::I64 => DType::I64,
        ElementType::I32 => DType::I32,
        ElementType::U8 => DType::U8,
        ElementType::Bool => DType::Bool,
        ElementType::U16 => {
            let values = field.values::<u16>().unwrap_or_default();
            let wide: Vec<i64> = values.iter().map(|&value| i64::from(value)).collect();
            return Ok(Tensor::from_slice(device, shape, &wide)?);
        }
    };
    Ok(match field.page_locked() {
        Some(place) => Tensor::from_page_locked(device, shape, dtype, place)?,
        None => Tensor::from_bytes(device, shape, dtype, field.bytes())?,
    })
}

/// A field of numbers as a tensor of the type that a model computes with. Bytes are taken for
/// values from 0 to 255 and become those from 0 to 1, as pixels are.
///
/// # Errors
/// `OutOfMemory`.
#[track_caller]
pub fn upload_as(device: &Device, field: FieldView<'_>, dtype: DType) -> Result<Tensor> {
    let tensor = upload(device, field)?;
    if tensor.dtype() == dtype {
        return Ok(tensor);
    }
    let _scope = device.category(Category::Input);
    let mut converted = tensor.to_dtype(dtype)?;
    if tensor.dtype() == DType::U8 {
        converted.mul_scalar_(1.0 / 255.0)?;
    }
    Ok(converted)
}

/// The type that a model computes with: that of its first parameter of a float type.
fn float_type(model: &mut dyn Parameters) -> DType {
    let mut dtype = None;
    model.visit(&mut |_, parameter| {
        let own = parameter.value().dtype();
        dtype = dtype.or_else(|| own.is_float().then_some(own));
    });
    dtype.unwrap_or(DType::F32)
}

/// The sum of a loss; 0 on a simulated device.
fn sum_of(loss: &Loss) -> Result<f64> {
    let sum = loss.sum.value();
    Ok(match sum.dtype() {
        DType::F32 => f64::from(sum.item_assuming(0.0_f32)?),
        _ => sum.to_dtype(DType::F64)?.item_assuming(0.0)?,
    })
}

/// Values of a tensor; none on a simulated device.
fn values_of<E: lowtide_tensor::Element>(tensor: &Tensor) -> Result<Vec<E>> {
    if tensor.device().is_simulated() {
        return Ok(Vec::new());
    }
    Ok(tensor.to_vec()?)
}

/// How many of the predictions are the label, where it counts.
fn right_ones(predicted: &Tensor, labels: &[i64]) -> Result<f64> {
    let pairs = values_of::<i64>(predicted)?.into_iter().zip(labels);
    Ok(pairs.filter(|(predicted, label)| predicted == *label).count() as f64)
}
