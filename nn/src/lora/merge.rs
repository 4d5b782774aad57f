//! Merges adapters into the weights.

use std::collections::{BTreeMap, BTreeSet};

use lowtide_tensor::{DType, Tensor};

use crate::error::{AdapterProblem, Result};
use crate::lora::adapt::{adapted, remove_adapters};
use crate::lora::adapter::{MergePlan, panel_len};
use crate::module::Parameters;

/// Adds the adapters' changes to the weights and removes the adapters. Weights are written in place
/// and rounded once. Takes memory for `s B` of all layers and for a panel of rows, at most 8 MiB of
/// f32 or two rows. Returns the names of the layers.
///
/// # Errors
/// `Adapter` if no layer has an adapter, and for a weight that is [quantised](crate::quantize) or
/// is also another parameter, such as a tied embedding; `Frozen`, `ReadOnly`, `OutOfMemory`. The
/// model is then as before.
pub fn merge(model: &mut dyn Parameters) -> Result<Vec<String>> {
    let names = adapted(model);
    if names.is_empty() {
        return Err(AdapterProblem::Absent.into());
    }
    check_unshared(model)?;
    let mut plans = BTreeMap::new();
    let mut largest: Option<(usize, DType, Tensor)> = None;
    let mut outcome = Ok(());
    model.visit_linears(&mut |name, layer| {
        let (true, Some(adapter)) = (outcome.is_ok(), layer.adapter()) else { return };
        if layer.quantized().is_some() {
            outcome = Err(AdapterProblem::Quantized { name: name.to_owned() }.into());
            return;
        }
        let weight = layer.weight().value();
        let len = panel_len(weight);
        if largest.as_ref().is_none_or(|(most, ..)| *most < len) {
            largest = Some((len, weight.dtype().computed(), weight.clone()));
        }
        match adapter.merge_plan(layer.base()) {
            Ok(plan) => drop(plans.insert(name.to_owned(), plan)),
            Err(error) => outcome = Err(error),
        }
    });
    outcome?;
    let Some((len, dtype, like)) = largest else { return Ok(names) };
    let scaled_len = if plans.values().any(MergePlan::has_factor) { len } else { 0 };
    let mut scratch = [
        Tensor::empty(like.device(), [len], dtype)?,
        Tensor::empty(like.device(), [scaled_len], dtype)?,
    ];
    let mut outcome = Ok(());
    model.visit_linears(&mut |name, layer| {
        if let (true, Some(adapter), Some(plan)) =
            (outcome.is_ok(), layer.adapter(), plans.get(name))
        {
            outcome = adapter.merge_into(layer.base(), plan, &mut scratch);
        }
    });
    outcome?;
    remove_adapters(model);
    Ok(names)
}

/// `Ok` if no adapted weight is also another parameter.
fn check_unshared(model: &mut dyn Parameters) -> Result<()> {
    let mut ids = BTreeMap::new();
    model.visit_linears(&mut |name, layer| {
        if layer.adapter().is_some() {
            ids.insert(layer.weight().id(), name.to_owned());
        }
    });
    let mut seen = BTreeSet::new();
    let mut outcome = Ok(());
    model.visit(&mut |_, parameter| {
        if let (false, Some(name)) = (seen.insert(parameter.id()), ids.get(&parameter.id())) {
            outcome = Err(AdapterProblem::Shared { name: name.clone() }.into());
        }
    });
    outcome
}
