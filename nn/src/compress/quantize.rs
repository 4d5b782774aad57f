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

/// Puts the weights of the layers of `targets` in few bits, one after the other, so that a layer's
/// floats are there twice at most: as f32 on the host, and as codes. Biases stay. Quantised weights
/// have no gradient and are buffers, `{layer}.weight.codes` and the like. Layers that are
/// quantised already are left alone. Returns the names of the layers.
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
/// `Adapter` for targets that match no layer, with the layers that there are, and `Shape` for one
/// whose rows are no whole blocks: then nothing was changed. `OutOfMemory`: the layers before are
/// quantised.
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

/// Puts every weight of a model in few bits that is not to be trained any more: those of all linear
/// layers, as [`quantize`] does, and convolutions, tables of embeddings and all else that has rows,
/// which are decoded as a whole when they are used. Biases and norms stay, as do weights that the
/// format has no whole blocks for, and those that others are computed from, as in
/// [`WeightNorm`](crate::WeightNorm). Returns the names of what is quantised now.
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
    // One that stands in several places is encoded once.
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

/// Sets what the linear layers multiply whose weights are in [`QuantFormat::Int8Rows`]; all else,
/// such as convolutions, decodes its weights as before. Files of weights do not keep it. Returns
/// the names of these layers: none where no such weight is.
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

/// Puts a parameter in few bits, if it has rows; what is encoded already is taken from there.
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

/// A weight as a matrix of a row for each position of its first dimension; `None` if it has no rows
/// that `format` has blocks for.
fn rows(weight: &Tensor, format: QuantFormat) -> Result<Option<Tensor>> {
    let Some((&rows, others)) = weight.shape().split_first() else { return Ok(None) };
    let shape = Shape::new(&[rows, others.iter().product()]);
    let fits = weight.dtype().is_float() && rows > 1 && shape[1] > 1;
    if !fits || format.parts(shape).is_err() {
        return Ok(None);
    }
    Ok(Some(weight.contiguous()?.reshape(shape)?))
}
