//! Arrays and tables of numbers for a recipe.

use std::path::Path;

#[cfg(feature = "parquet")]
use lowtide_data::Parquet;
use lowtide_data::{
    Dataset, ElementType, Field, IGNORED_LABEL, Mapped, Npy, SampleError, SampleView, bf16,
};
use lowtide_trainer::Result;
#[cfg(feature = "parquet")]
use lowtide_trainer::TrainError;

use super::NpyRecipe;
#[cfg(feature = "parquet")]
use super::ParquetRecipe;
use super::open::{Opened, Samples, Wants, parts, share};
use crate::recipe::setting;

pub(super) fn npy(data: &NpyRecipe, wants: Wants) -> Result<Opened> {
    let open = |inputs: &Path, targets: &Path| {
        let arrays = Npy::open("inputs", inputs)?.with("targets", targets)?;
        let shape = arrays.fields()[0].shape.to_vec();
        let samples = samples_of_array(&shape, data.classes)?;
        if wants.pixel_labels && !matches!(samples, Samples::Images { .. }) {
            return Err(setting("data.inputs", "has no images, and the model is for images"));
        }
        Ok((samples, samples_from(arrays, samples, wants.pixel_labels, "data.targets")?))
    };
    let train = open(&data.inputs, &data.targets)?;
    let test = data.test.as_ref().map(|[inputs, targets]| open(inputs, targets)).transpose()?;
    in_parts(train, test, data.test_share)
}

/// The training data and the test data. Without `test`, a share of the training data is the test
/// data.
fn in_parts<D: Dataset + 'static>(
    (samples, train): (Samples, D),
    test: Option<(Samples, D)>,
    test_share: f64,
) -> Result<Opened> {
    let Some((of_test, test)) = test else {
        let [train, test] = parts(train, share(test_share)?)?;
        return Ok(Opened::new(samples, train, test));
    };
    if of_test != samples {
        let problem = format!("has samples of another shape: {of_test:?}, not {samples:?}");
        return Err(setting("data.test", &problem));
    }
    Ok(Opened::new(samples, train, test))
}

fn samples_of_array(shape: &[usize], classes: Option<usize>) -> Result<Samples> {
    let image = match *shape {
        [count] => return Ok(Samples::Features { count, classes }),
        [height, width] => [1, height, width],
        [channels, height, width] => [channels, height, width],
        _ => {
            let problem = format!("has samples of shape {shape:?}, which are no rows or images");
            return Err(setting("data.inputs", &problem));
        }
    };
    let needed = || setting("data.classes", "is needed for images");
    Ok(Samples::Images { shape: image, classes: classes.ok_or_else(needed)? })
}

#[cfg(feature = "parquet")]
pub(super) fn parquet(data: &ParquetRecipe) -> Result<Opened> {
    let columns = match data.columns.as_slice() {
        [] => {
            Parquet::columns(&data.file)?.into_iter().filter(|name| *name != data.target).collect()
        }
        columns => columns.to_vec(),
    };
    if columns.is_empty() {
        return Err(setting("data.columns", "has no column of numbers beside the target"));
    }
    let names: Vec<&str> = columns.iter().chain([&data.target]).map(String::as_str).collect();
    let open = |file: &Path| {
        let table = Parquet::open(file, &names)?;
        let inputs = &table.fields()[..columns.len()];
        let count = inputs.iter().map(|field| field.shape.iter().product::<usize>()).sum();
        let samples = Samples::Features { count, classes: data.classes };
        Ok::<_, TrainError>((samples, samples_from(table, samples, false, "data.target")?))
    };
    let train = open(&data.file)?;
    let test = data.test.as_deref().map(open).transpose()?;
    in_parts(train, test, data.test_share)
}

/// Samples with the field names and types of tasks. The last field of `dataset` is the target; the
/// fields before it are joined into the input. A single input of bytes stays bytes, for pixels.
/// Errors call the target `target_key`.
fn samples_from<D: Dataset + 'static>(
    dataset: D,
    samples: Samples,
    has_pixel_labels: bool,
    target_key: &str,
) -> Result<impl Dataset + use<D>> {
    let mut elements: Vec<ElementType> =
        dataset.fields().iter().map(|field| field.element).collect();
    let target = elements.pop().expect("a target");
    let keeps_bytes = elements == [ElementType::U8];
    let element = if keeps_bytes { ElementType::U8 } else { ElementType::F32 };
    let (name, shape, classes) = match samples {
        Samples::Images { shape, classes } => ("images", shape.to_vec(), Some(classes)),
        Samples::Features { count, classes } => ("inputs", vec![count], classes),
        Samples::Tokens { .. } | Samples::Preferences { .. } => {
            unreachable!("numbers are no tokens")
        }
    };
    let target_shape = if has_pixel_labels { &shape[1..] } else { &[] };
    let found = &dataset.fields()[elements.len()].shape;
    if found[..] != *target_shape && (has_pixel_labels || found[..] != [1]) {
        let problem = format!("has {found:?} values for each sample, not {target_shape:?}");
        return Err(setting(target_key, &problem));
    }
    let is_float = matches!(target, ElementType::F32 | ElementType::F64 | ElementType::Bf16);
    if classes.is_some() && is_float {
        return Err(setting(target_key, &format!("holds {target}, which are no classes")));
    }
    let target_field = match classes {
        Some(_) => Field::new("labels", ElementType::I64, target_shape),
        None => Field::new("targets", ElementType::F32, &[1]),
    };
    let fields = vec![Field::new(name, element, &shape), target_field];
    Ok(Mapped::new(dataset, fields, move |_, sample, slot| {
        if keeps_bytes {
            slot.bytes(0).copy_from_slice(sample.bytes(0));
        } else {
            let mut rest = slot.values::<f32>(0);
            for (field, &element) in elements.iter().enumerate() {
                let len = sample.bytes(field).len() / element.size_bytes();
                let out;
                (out, rest) = rest.split_at_mut(len);
                convert(sample, (field, element), out, |value| Ok(value as f32))?;
            }
        }
        let target = (elements.len(), target);
        let Some(classes) = classes else {
            return convert(sample, target, slot.values::<f32>(1), |value| Ok(value as f32));
        };
        convert(sample, target, slot.values::<i64>(1), |value| {
            let label = value as i64;
            if (0..classes as i64).contains(&label) || label == IGNORED_LABEL {
                Ok(label)
            } else {
                Err(format!("the label {label} is none of {classes} classes").into())
            }
        })
    })?)
}

/// The values of a field, each converted. Integers of more than 53 bits are rounded.
fn convert<O>(
    sample: &SampleView<'_>,
    (field, element): (usize, ElementType),
    out: &mut [O],
    into: impl Fn(f64) -> Result<O, SampleError>,
) -> Result<(), SampleError> {
    let mut fill = |values: &mut dyn Iterator<Item = f64>| {
        out.iter_mut().zip(values).try_for_each(|(out, value)| {
            *out = into(value)?;
            Ok(())
        })
    };
    match element {
        ElementType::F64 => fill(&mut sample.values::<f64>(field).iter().copied()),
        ElementType::F32 => fill(&mut sample.values::<f32>(field).iter().map(|&v| f64::from(v))),
        ElementType::Bf16 => fill(&mut sample.values::<bf16>(field).iter().map(|v| v.to_f64())),
        ElementType::I64 => fill(&mut sample.values::<i64>(field).iter().map(|&v| v as f64)),
        ElementType::I32 => fill(&mut sample.values::<i32>(field).iter().map(|&v| f64::from(v))),
        ElementType::U16 => fill(&mut sample.values::<u16>(field).iter().map(|&v| f64::from(v))),
        ElementType::U8 => fill(&mut sample.values::<u8>(field).iter().map(|&v| f64::from(v))),
        ElementType::Bool => fill(&mut sample.values::<bool>(field).iter().map(|&v| f64::from(v))),
    }
}
