//! Frozen linear layers in 8 or 4 bits.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use lowtide_autograd::LeafId;
use lowtide_tensor::{QuantFormat, Shape, Tensor};

use crate::compress::quantized_weight::{Activations, QuantizedWeight};
use crate::error::Result;
use crate::layers::linear::Linear;
use crate::lora::adapt::matched;
use crate::lora::targets::Targets;
use crate::module::Parameters;
use crate::parameter::Parameter;

/// Quantises the weights of the linear layers in `targets`, one layer after the other. Only the
/// layer at hand is in memory twice: as f32 on the host and as codes. Biases stay. Quantised
/// weights have no gradient and are buffers with names such as `{layer}.weight.codes`. A layer that
/// is quantised already stays as it is. Returns the names of the layers.
///
/// ```
/// use lowtide_nn::{LoraOptions, Parameters, Targets, adapt, models::Mlp, quantize};
/// use lowtide_tensor::{CpuOptions, Device, QuantFormat, RandomKey};
///
/// let (device, key) = (Device::cpu(CpuOptions::default())?, RandomKey::new(0));
/// let mut model = Mlp::new(&device, key, &[64, 128, 2])?;
/// quantize(&mut model, &Targets::AllLinear, QuantFormat::Nf4 { double: true })?;
/// adapt(&mut model, key, &LoraOptions::default())?; // QLoRA
/// let mut names = Vec::new();
/// model.visit_buffers(&mut |name, _| names.push(name.to_owned()));
/// assert_eq!(names[..2], ["0.weight.codes", "0.weight.scales"]);
/// # Ok::<(), lowtide_nn::NnError>(())
/// ```
///
/// # Errors
/// `Adapter` for targets that match no layer; the error lists the layers of the model. `Shape` for
/// a layer whose rows are not a whole number of blocks. After both, nothing has changed.
/// `OutOfMemory`: the layers before are quantised.
pub fn quantize(
    model: &mut dyn Parameters,
    targets: &Targets,
    format: QuantFormat,
) -> Result<Vec<String>> {
    let names = matched(model, targets)?;
    let mut outcome = Ok(());
    let mut check = |name: &str, layer: &mut Linear| {
        if outcome.is_ok() && names.iter().any(|target| target == name) {
            outcome = format.parts(*layer.weight().value().shape()).map(drop);
        }
    };
    model.visit_linears(&mut check);
    outcome?;
    let mut outcome = Ok(());
    model.visit_linears(&mut |name, layer| {
        if outcome.is_ok() && names.iter().any(|target| target == name) {
            outcome = layer.quantize(format);
        }
    });
    outcome?;
    Ok(names)
}

/// Quantises every weight of a model, for a model that is not trained any more. Linear layers are
/// quantised as by [`quantize`]. Convolutions, embedding tables and other parameters with rows are
/// quantised too, and decoded as a whole when they are used. Biases and norms keep their type, as
/// do weights whose rows are not a whole number of blocks and weights that other weights are
/// computed from, as in [`WeightNorm`](crate::WeightNorm). Returns the names of the quantised
/// weights.
///
/// # Errors
/// `OutOfMemory`: the weights before are quantised.
pub fn quantize_all(model: &mut dyn Parameters, format: QuantFormat) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let mut outcome = Ok(());
    model.visit_linears(&mut |name, layer| {
        let fits = format.parts(*layer.weight().value().shape()).is_ok();
        if outcome.is_ok() && fits {
            outcome = layer.quantize(format);
            names.push(if name.is_empty() { "weight".into() } else { format!("{name}.weight") });
        }
    });
    outcome?;
    // A parameter in several places of the model is encoded once.
    let mut encoded = BTreeMap::new();
    let mut outcome = Ok(());
    model.visit(&mut |name, parameter| {
        if outcome.is_ok() && !name.contains("parametrizations.") {
            match quantize_once(parameter, format, &mut encoded) {
                Ok(true) => names.push(name.to_owned()),
                Ok(false) => {}
                Err(error) => outcome = Err(error),
            }
        }
    });
    outcome.map(|()| names)
}

/// Sets the number type of products in linear layers with weights in [`QuantFormat::Int8Rows`].
/// Other layers, such as convolutions, still decode their weights. Weights files do not store this
/// setting. Returns the names of the layers with such weights.
///
/// ```
/// use lowtide_autograd::Pass;
/// use lowtide_nn::{Activations, Module, models::Mlp, quantize_all, set_activations};
/// use lowtide_tensor::{CpuOptions, DType, Device, QuantFormat, RandomKey, Tensor};
///
/// let device = Device::cpu(CpuOptions::default())?;
/// let mut model = Mlp::new(&device, RandomKey::new(0), &[64, 128, 2])?;
/// quantize_all(&mut model, QuantFormat::Int8Rows)?;
/// assert_eq!(set_activations(&mut model, Activations::Int8), ["0", "2"]);
/// let pass = Pass::eval();
/// let y = model.forward(&pass, pass.constant(Tensor::ones(&device, [8, 64], DType::F32)?))?;
/// assert_eq!(y.shape()[..], [8, 2]);
/// # Ok::<(), lowtide_nn::NnError>(())
/// ```
pub fn set_activations(model: &mut dyn Parameters, activations: Activations) -> Vec<String> {
    let mut names = Vec::new();
    model.visit_linears(&mut |name, layer| {
        if layer.format() == Some(QuantFormat::Int8Rows) {
            layer.set_activations(activations).expect("the format is the one for both");
            names.push(name.to_owned());
        }
    });
    names
}

/// Quantises a parameter, if its shape has rows that fit the format. A parameter in `encoded` is
/// not encoded again.
fn quantize_once(
    parameter: &mut Parameter,
    format: QuantFormat,
    encoded: &mut BTreeMap<LeafId, QuantizedWeight>,
) -> Result<bool> {
    let weight = match encoded.entry(parameter.id()) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(new) => match rows(parameter.value(), format)? {
            Some(rows) => new.insert(QuantizedWeight::encode(&rows, format)?),
            None => return Ok(false),
        },
    };
    parameter.set_quantized(weight.clone())?;
    Ok(true)
}

/// A weight as a matrix with a row for each position of its first dimension; `None` if `format` has
/// no blocks for such rows.
fn rows(weight: &Tensor, format: QuantFormat) -> Result<Option<Tensor>> {
    let Some((&rows, others)) = weight.shape().split_first() else { return Ok(None) };
    let shape = Shape::new(&[rows, others.iter().product()]);
    let fits = weight.dtype().is_float() && rows > 1 && shape[1] > 1;
    if !fits || format.parts(shape).is_err() {
        return Ok(None);
    }
    Ok(Some(weight.contiguous()?.reshape(shape)?))
}
