//! Low-rank adapters: fine-tuning of a frozen model by two small matrices beside each weight.
//!
//! Hu et al., "LoRA: low-rank adaptation of large language models" (2021); the scale of ranks:
//! Kalajdzievski, "A rank stabilization scaling factor for fine-tuning with LoRA" (2023);
//! magnitudes: Liu et al., "DoRA: weight-decomposed low-rank adaptation" (2024). Names, defaults
//! and files are those of PEFT.

mod adapter;
mod file;
mod targets;

use std::collections::{BTreeMap, BTreeSet};

use lowtide_tensor::{DType, RandomKey, Tensor};
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

pub use adapter::Adapter;
pub use file::{load_adapters, save_adapters};
pub use targets::{Targets, is_output_layer};

pub(crate) use adapter::MergePlan;
use adapter::panel_len;
pub(crate) use targets::matched;

use crate::error::{AdapterProblem, Result};
use crate::module::Parameters;
use crate::optim::check_option;

/// Ranks above are no adapter's: A and B would be larger than the weights.
const RANK_MAX: usize = 1 << 16;

/// How a model is adapted: PEFT's `LoraConfig`.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(deny_unknown_fields, default))]
pub struct LoraOptions {
    /// Rows of A, PEFT's `r`.
    pub rank: usize,
    /// The numerator of the scale.
    pub alpha: f64,
    /// Which linear layers get an adapter.
    pub targets: Targets,
    /// Dropout probability of what A sees, in training.
    pub dropout: f64,
    /// How the scale depends on the rank.
    pub scaling: LoraScaling,
    /// Whether the magnitudes of the weight's rows are trained beside their directions. It costs a
    /// result of the layer for backward, and a product over the whole weight in each pass.
    pub dora: bool,
}

/// How the scale of an adapter depends on its rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "kebab-case"))]
pub enum LoraScaling {
    /// `alpha / rank`
    #[default]
    Plain,
    /// `alpha / √rank`, rsLoRA.
    RankStabilised,
}

impl Default for LoraOptions {
    fn default() -> Self {
        LoraOptions {
            rank: 8,
            alpha: 8.0,
            targets: Targets::AllLinear,
            dropout: 0.0,
            scaling: LoraScaling::Plain,
            dora: false,
        }
    }
}

impl LoraOptions {
    /// The factor of what the adapter adds.
    pub fn scale(&self) -> f64 {
        let rank = self.rank as f64;
        match self.scaling {
            LoraScaling::Plain => self.alpha / rank,
            LoraScaling::RankStabilised => self.alpha / rank.sqrt(),
        }
    }

    fn check(&self) -> Result<()> {
        let is_rank = |_| (1..=RANK_MAX).contains(&self.rank);
        check_option("rank", self.rank as f64, "[1, 65536]", is_rank)?;
        check_option("alpha", self.alpha, "(0, ∞)", |alpha| alpha > 0.0 && alpha.is_finite())?;
        check_option("dropout", self.dropout, "[0, 1)", |p| (0.0..1.0).contains(&p))
    }
}

/// Freezes every parameter of `model` and gives the layers of [`LoraOptions::targets`] adapters,
/// which change nothing yet: B is 0, and A from `key` as `torch.nn.Linear` draws its weights. They
/// are f32, or f64 where the weight is. Returns the names of the layers.
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
/// `Option`; `Adapter` for targets that match no layer, with the layers that there are, and for a
/// layer that has an adapter; `OutOfMemory`. The model is then as before.
pub fn adapt(
    model: &mut dyn Parameters,
    key: RandomKey,
    options: &LoraOptions,
) -> Result<Vec<String>> {
    options.check()?;
    let names = targets::matched(model, &options.targets)?;
    adapt_layers(model, key, options, &names)?;
    Ok(names)
}

/// [`adapt`] of the layers of these names.
fn adapt_layers(
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
            None => Adapter::new(layer, key.op(name), options),
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

/// The names of the layers that have an adapter.
pub fn adapted(model: &mut dyn Parameters) -> Vec<String> {
    let mut names = Vec::new();
    model.visit_linears(&mut |name, layer| {
        if layer.adapter().is_some() {
            names.push(name.to_owned());
        }
    });
    names
}

/// Takes the adapters away; the base is as it was, and frozen.
pub fn remove_adapters(model: &mut dyn Parameters) {
    model.visit_linears(&mut |_, layer| layer.set_adapter(None));
}

/// Adds what the adapters do to the weights, in place and rounded once, and takes them away. It
/// takes `s B` of all layers and a panel of rows, at most 8 MiB of f32 or two rows. Returns the
/// names of the layers.
///
/// # Errors
/// `Adapter` where no layer has an adapter, and for a weight that is another parameter too, such as
/// a tied embedding, or is [quantised](crate::quantize); `Frozen`, `ReadOnly`, `OutOfMemory`. The
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
        match adapter.merge_plan(layer) {
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
        if let (true, Some(plan)) = (outcome.is_ok(), plans.get(name)) {
            outcome = layer.merge(plan, &mut scratch);
        }
    });
    outcome?;
    remove_adapters(model);
    Ok(names)
}

/// `Ok` if no adapted weight is another parameter too.
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
