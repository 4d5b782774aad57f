//! Fields of batches as tensors, and tensor values as numbers.

use lowtide_allocator::Category;
use lowtide_data::{BatchView, Element, ElementType, FieldView, IGNORED_LABEL};
use lowtide_nn::{Loss, Parameters};
use lowtide_tensor::{DType, Device, Tensor};

use crate::error::{Result, TrainError};

/// The field `name` of a batch.
///
/// # Errors
/// `Setting` if there is no such field.
pub fn field<'a>(batch: &BatchView<'a>, name: &str) -> Result<FieldView<'a>> {
    batch.field(name).ok_or_else(|| TrainError::Setting {
        place: format!("field {name:?}"),
        problem: "the dataset has no such field".to_owned(),
    })
}

/// The elements of the field `name` of a batch.
///
/// # Errors
/// `Setting` if there is no such field, or if it has another type.
pub fn values<'a, E: Element>(batch: &BatchView<'a>, name: &str) -> Result<&'a [E]> {
    field(batch, name)?.values::<E>().ok_or_else(|| TrainError::Setting {
        place: format!("field {name:?}"),
        problem: format!("must be {}", std::any::type_name::<E>()),
    })
}

/// Number of labels that count.
pub(crate) fn labels_that_count(labels: &[i64]) -> f64 {
    labels.iter().filter(|&&label| label != IGNORED_LABEL).count() as f64
}

/// Copies a field to a tensor of the same shape on `device`, in the input category. Fields of u16
/// become i64, because tensors have no u16; tokens are i64 as well.
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

/// Copies a field of numbers to a tensor of the type that a model computes with. Bytes are scaled
/// from 0 to 255 to values from 0 to 1, as pixels are.
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

/// The float type that a model computes with: the type of its first float parameter.
pub(crate) fn float_type(model: &mut dyn Parameters) -> DType {
    let mut dtype = None;
    model.visit(&mut |_, parameter| {
        let own = parameter.value().dtype();
        dtype = dtype.or_else(|| own.is_float().then_some(own));
    });
    dtype.unwrap_or(DType::F32)
}

/// The sum of a loss; 0 on a simulated device.
pub(crate) fn sum_of(loss: &Loss) -> Result<f64> {
    let sum = loss.sum.value();
    Ok(match sum.dtype() {
        DType::F32 => f64::from(sum.item_assuming(0.0_f32)?),
        _ => sum.to_dtype(DType::F64)?.item_assuming(0.0)?,
    })
}

/// The values of a tensor; empty on a simulated device.
pub(crate) fn values_of<E: lowtide_tensor::Element>(tensor: &Tensor) -> Result<Vec<E>> {
    if tensor.device().is_simulated() {
        return Ok(Vec::new());
    }
    Ok(tensor.to_vec()?)
}

/// Number of predictions that equal their label, among the labels that count.
pub(crate) fn right_ones(predicted: &Tensor, labels: &[i64]) -> Result<f64> {
    let pairs = values_of::<i64>(predicted)?.into_iter().zip(labels);
    Ok(pairs.filter(|(predicted, label)| predicted == *label).count() as f64)
}
