//! Adds adapters to the linear layers of a model, and removes them.

use std::collections::BTreeMap;

use lowtide_tensor::RandomKey;

use crate::error::{AdapterProblem, Result};
use crate::lora::adapter::Adapter;
use crate::lora::options::LoraOptions;
use crate::lora::targets::Targets;
use crate::module::Parameters;

/// Freezes every parameter of `model` and gives adapters to the layers of [`LoraOptions::targets`].
/// The adapters do not change the outputs yet: B is 0, and A is drawn from `key` like the weights
/// of `torch.nn.Linear`. Adapters are f32, or f64 if the weight is f64. Returns the names of the
/// layers.
///
/// ```
/// use lowtide_nn::{LoraOptions, Parameters, adapt, merge, models::Mlp};
/// use lowtide_tensor::{CpuOptions, Device, RandomKey};
///
/// let (device, key) = (Device::cpu(CpuOptions::default())?, RandomKey::new(0));
/// let mut model = Mlp::new(&device, key, &[4, 8, 2])?;
/// assert_eq!(adapt(&mut model, key, &LoraOptions { rank: 2, ..Default::default() })?, ["0", "2"]);
/// let mut trained = Vec::new();
/// model.visit(&mut |name, parameter| {
///     if !parameter.is_frozen() {
///         trained.push(name.to_owned());
///     }
/// });
/// assert_eq!(trained[..2], ["0.lora_A.weight", "0.lora_B.weight"]);
/// merge(&mut model)?;
/// # Ok::<(), lowtide_nn::NnError>(())
/// ```
///
/// # Errors
/// `Option`; `Adapter` for targets that match no layer (the error lists the layers of the model)
/// and for a layer that has an adapter already; `OutOfMemory`. The model is then as before.
pub fn adapt(
    model: &mut dyn Parameters,
    key: RandomKey,
    options: &LoraOptions,
) -> Result<Vec<String>> {
    options.check()?;
    let names = matched(model, &options.targets)?;
    adapt_layers(model, key, options, &names)?;
    Ok(names)
}

/// Names of the linear layers that match `targets`, in the order of the model.
pub(crate) fn matched(model: &mut dyn Parameters, targets: &Targets) -> Result<Vec<String>> {
    let mut layers = Vec::new();
    model.visit_linears(&mut |name, _| layers.push(name.to_owned()));
    targets.among(&layers)
}

/// [`adapt`] for the layers with these names.
pub(super) fn adapt_layers(
    model: &mut dyn Parameters,
    key: RandomKey,
    options: &LoraOptions,
    names: &[String],
) -> Result<()> {
    let mut adapters = BTreeMap::new();
    let mut outcome = Ok(());
    model.visit_linears(&mut |name, layer| {
        if outcome.is_err() || !names.iter().any(|target| target == name) {
            return;
        }
        let made = match layer.adapter() {
            Some(_) => Err(AdapterProblem::Present { name: name.to_owned() }.into()),
            None => Adapter::new(layer.base(), key.op(name), options),
        };
        match made {
            Ok(adapter) => drop(adapters.insert(name.to_owned(), adapter)),
            Err(error) => outcome = Err(error),
        }
    });
    outcome?;
    model.visit(&mut |_, parameter| parameter.freeze());
    model.visit_linears(&mut |name, layer| {
        if let Some(adapter) = adapters.remove(name) {
            layer.set_adapter(Some(adapter));
        }
    });
    Ok(())
}

/// Names of the layers that have an adapter.
pub fn adapted(model: &mut dyn Parameters) -> Vec<String> {
    let mut names = Vec::new();
    model.visit_linears(&mut |name, layer| {
        if layer.adapter().is_some() {
            names.push(name.to_owned());
        }
    });
    names
}

/// Removes the adapters. The weights are as before [`adapt`], and frozen.
pub fn remove_adapters(model: &mut dyn Parameters) {
    model.visit_linears(&mut |_, layer| layer.set_adapter(None));
}
