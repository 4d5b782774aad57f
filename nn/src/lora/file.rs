//! Reads and writes adapters in PEFT's folders: `adapter_config.json` and
//! `adapter_model.safetensors`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use lowtide_tensor::{RandomKey, Shape, Tensor};
use safetensors::tensor::SafeTensors;
use serde_json::{Map, Value, json};

use crate::error::{AdapterProblem, NnError, Result, WeightsProblem};
use crate::lora::adapt::{adapt_layers, adapted, remove_adapters};
use crate::lora::options::{LoraOptions, LoraScaling, RANK_MAX};
use crate::lora::targets::Targets;
use crate::module::Parameters;
use crate::parameter::Parameter;
use crate::safetensors::{Entry, dtype_of_file, mapped, parse_safetensors, serialized, write_file};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
/// The prefix of PEFT's parameter names.
const PREFIX: &str = "base_model.model.";

/// Writes the adapters of `model` to `folder` in PEFT's format, for `PeftModel.from_pretrained`.
/// Creates the folder if it does not exist. `base` names the model or path that the weights come
/// from.
///
/// # Errors
/// `Adapter` if the model has no adapters, `File`, and errors of a copy from the device.
pub fn save_adapters(
    model: &mut dyn Parameters,
    options: &LoraOptions,
    base: Option<&str>,
    folder: &Path,
) -> Result<()> {
    let mut entries = BTreeMap::new();
    visit_adapters(model, &mut |name, parameter| {
        entries.insert(format!("{PREFIX}{name}"), Entry::of(parameter.value()));
    });
    if entries.is_empty() {
        return Err(AdapterProblem::Absent.into());
    }
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    let contents = serialized(&entries, &metadata)?;
    let file = |source| NnError::File { path: folder.to_owned(), source };
    fs::create_dir_all(folder).map_err(file)?;
    write_file(&folder.join(WEIGHTS), &contents)?;
    let config = format!("{:#}\n", config_of(options, base));
    write_file(&folder.join(CONFIG), config.as_bytes())
}

/// Reads adapters that [`save_adapters`] or PEFT wrote. Adds the adapters to a model without
/// adapters, or overwrites the values if the model has adapters on the same layers. All other
/// parameters are frozen.
///
/// # Errors
/// `File`, `Format`; `Adapter` for a config with a feature that is not supported; `Weights` for
/// names or shapes that do not fit the model or its adapters; `OutOfMemory`. The model is then as
/// before.
pub fn load_adapters(model: &mut dyn Parameters, folder: &Path) -> Result<LoraOptions> {
    let options = read_config(&folder.join(CONFIG))?;
    options.check()?;
    let path = folder.join(WEIGHTS);
    let mapped = mapped(&path)?;
    let file = parse_safetensors(mapped.bytes(), &path)?;
    let names = layers_of(&file, &path)?;
    check_rank(model, &file, &path, options.rank)?;
    let found = adapted(model);
    let is_new = found.is_empty();
    if is_new {
        let missing = missing_layer(model, &names);
        if let Some(name) = missing {
            let problem = WeightsProblem::Unknown;
            return Err(NnError::Weights { path, name, problem });
        }
    }
    let was_frozen = frozen(model);
    if is_new {
        adapt_layers(model, RandomKey::new(0), &options, &names)?;
    }
    let read = read_into(model, &file, &path);
    if read.is_err() && is_new {
        remove_adapters(model);
        let mut frozen = was_frozen.into_iter();
        model.visit(&mut |_, parameter| {
            if frozen.next() == Some(false) {
                parameter.unfreeze();
            }
        });
    }
    read?;
    let (scale, dropout) = (options.scale(), options.dropout);
    model.visit_linears(&mut |_, layer| {
        if let Some(adapter) = layer.adapter_mut() {
            (adapter.scale, adapter.dropout) = (scale, dropout);
        }
    });
    Ok(options)
}

/// For each parameter, true if it is frozen.
fn frozen(model: &mut dyn Parameters) -> Vec<bool> {
    let mut frozen = Vec::new();
    model.visit(&mut |_, parameter| frozen.push(parameter.is_frozen()));
    frozen
}

/// The first of `names` that is no linear layer of `model`.
fn missing_layer(model: &mut dyn Parameters, names: &[String]) -> Option<String> {
    let mut layers = Vec::new();
    model.visit_linears(&mut |name, _| layers.push(name.to_owned()));
    names.iter().find(|name| !layers.contains(name)).cloned()
}

/// Copies the values of the file to the adapters: all values, or none after an error.
fn read_into(model: &mut dyn Parameters, file: &SafeTensors<'_>, path: &Path) -> Result<()> {
    let mut values = BTreeMap::new();
    let mut outcome = Ok(());
    let weights = |name: &str, problem| NnError::Weights {
        path: path.to_owned(),
        name: name.to_owned(),
        problem,
    };
    visit_adapters(model, &mut |name, parameter| {
        if outcome.is_err() {
            return;
        }
        let like = parameter.value();
        let read = || {
            let Ok(view) = file.tensor(&format!("{PREFIX}{name}")) else {
                return Err(weights(name, WeightsProblem::Missing));
            };
            let (found, expected) = (view.shape().to_vec(), *like.shape());
            if found[..] != expected[..] {
                return Err(weights(name, WeightsProblem::Shape { found, expected }));
            }
            let Some(dtype) = dtype_of_file(view.dtype()).filter(|dtype| dtype.is_float()) else {
                let (found, expected) = (format!("{:?}", view.dtype()), like.dtype().to_string());
                return Err(weights(name, WeightsProblem::Type { found, expected }));
            };
            let value = Tensor::from_bytes(like.device(), expected, dtype, view.data())?;
            Ok(value.to_dtype(like.dtype())?)
        };
        match read() {
            Ok(value) => drop(values.insert(name.to_owned(), value)),
            Err(error) => outcome = Err(error),
        }
    });
    outcome?;
    let unknown = file
        .names()
        .into_iter()
        .find(|name| name.strip_prefix(PREFIX).is_none_or(|name| !values.contains_key(name)));
    if let Some(name) = unknown {
        return Err(weights(name, WeightsProblem::Unknown));
    }
    let mut outcome = Ok(());
    visit_adapters(model, &mut |_, parameter| {
        let writable = parameter.value().check_writable("load_adapters");
        outcome = std::mem::replace(&mut outcome, Ok(())).and(writable);
    });
    outcome?;
    let mut outcome = Ok(());
    visit_adapters(model, &mut |name, parameter| {
        let copied = parameter.value_mut().copy_(&values[name]);
        outcome = std::mem::replace(&mut outcome, Ok(())).and(copied);
    });
    Ok(outcome?)
}

/// Shows the parameters of the adapters to a visitor, under the names of the model.
fn visit_adapters(model: &mut dyn Parameters, visitor: &mut dyn FnMut(&str, &mut Parameter)) {
    model.visit_linears(&mut |layer, linear| {
        if let Some(adapter) = linear.adapter_mut() {
            adapter.visit(&mut |own, parameter| match layer {
                "" => visitor(own, parameter),
                _ => visitor(&format!("{layer}.{own}"), parameter),
            });
        }
    });
}

/// Names of the layers whose adapters are in the file.
fn layers_of(file: &SafeTensors<'_>, path: &Path) -> Result<Vec<String>> {
    let mut layers = Vec::new();
    for name in file.names() {
        let layer = name.strip_prefix(PREFIX).and_then(|name| name.strip_suffix("lora_A.weight"));
        if let Some(layer) = layer {
            layers.push(layer.strip_suffix('.').unwrap_or(layer).to_owned());
        }
    }
    layers.sort();
    if layers.is_empty() {
        let (path, name) = (path.to_owned(), "lora_A.weight".to_owned());
        Err(NnError::Weights { path, name, problem: WeightsProblem::Missing })
    } else {
        Ok(layers)
    }
}

/// Checks the rank of the adapters in a file against the rank in the config, before memory is
/// allocated.
fn check_rank(
    model: &mut dyn Parameters,
    file: &SafeTensors<'_>,
    path: &Path,
    rank: usize,
) -> Result<()> {
    let mut outcome = Ok(());
    model.visit_linears(&mut |layer, linear| {
        let separator = if layer.is_empty() { "" } else { "." };
        let name = format!("{layer}{separator}lora_A.weight");
        let view = file.tensor(&format!("{PREFIX}{name}"));
        let (true, Ok(view)) = (outcome.is_ok(), view) else { return };
        let expected = Shape::new(&[rank, linear.weight().value().shape()[1]]);
        if view.shape() != &expected[..] {
            let problem = WeightsProblem::Shape { found: view.shape().to_vec(), expected };
            outcome = Err(NnError::Weights { path: path.to_owned(), name, problem });
        }
    });
    outcome
}

/// PEFT's config with every field that changes the function of the adapters.
fn config_of(options: &LoraOptions, base: Option<&str>) -> Value {
    let targets = match &options.targets {
        Targets::AllLinear => json!("all-linear"),
        Targets::Endings(endings) => json!(endings),
        Targets::Pattern(pattern) => json!(pattern),
    };
    json!({
        "peft_type": "LORA",
        "task_type": null,
        "base_model_name_or_path": base,
        "inference_mode": true,
        "r": options.rank,
        "lora_alpha": number(options.alpha),
        "target_modules": targets,
        "lora_dropout": options.dropout,
        "use_rslora": options.scaling == LoraScaling::RankStabilised,
        "use_dora": options.dora,
        "bias": "none",
        "fan_in_fan_out": false,
        "init_lora_weights": true,
        "modules_to_save": null,
        "layers_to_transform": null,
        "layers_pattern": null,
        "rank_pattern": {},
        "alpha_pattern": {},
    })
}

/// A JSON number. Whole numbers are integers, as in PEFT.
fn number(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 1e15 { json!(value as i64) } else { json!(value) }
}

/// Fields that must be empty, since the features that they turn on are not supported.
/// `fan_in_fan_out` may have any value: it describes how the base stores its weights, and A and B
/// do not depend on that.
const EMPTY: [&str; 9] = [
    "modules_to_save",
    "layers_to_transform",
    "rank_pattern",
    "alpha_pattern",
    "layer_replication",
    "target_parameters",
    "trainable_token_indices",
    "lora_bias",
    "alora_invocation_tokens",
];

fn read_config(path: &Path) -> Result<LoraOptions> {
    let mapped = mapped(path)?;
    let config: Map<String, Value> = serde_json::from_slice(mapped.bytes())
        .map_err(|source| AdapterProblem::Json { path: path.to_owned(), source })?;
    let is = |field: &'static str, value: Option<&Value>, fits: bool| -> Result<()> {
        const SHOWN_MAX: usize = 60;
        if fits {
            return Ok(());
        }
        let value = value.map_or_else(|| "missing".to_owned(), Value::to_string);
        let value = value.chars().take(SHOWN_MAX).collect();
        Err(AdapterProblem::Unsupported { path: path.to_owned(), field, value }.into())
    };
    for field in EMPTY {
        let value = config.get(field);
        let is_empty = match value {
            None | Some(Value::Null | Value::Bool(false)) => true,
            Some(Value::Array(items)) => items.is_empty(),
            Some(Value::Object(items)) => items.is_empty(),
            Some(_) => false,
        };
        is(field, value, is_empty)?;
    }
    let kind = config.get("peft_type");
    is("peft_type", kind, kind.and_then(Value::as_str) == Some("LORA"))?;
    let bias = config.get("bias");
    is("bias", bias, bias.is_none_or(|bias| bias.as_str() == Some("none")))?;
    // Other initialisations change the base.
    let start = config.get("init_lora_weights");
    let is_plain = start.is_none_or(|start| start.is_boolean() || start == "gaussian");
    is("init_lora_weights", start, is_plain)?;
    let defaults = LoraOptions::default();
    let float = |field: &'static str, default: f64, fits: fn(f64) -> bool| -> Result<f64> {
        let Some(value) = config.get(field) else { return Ok(default) };
        is(field, Some(value), value.as_f64().is_some_and(fits))?;
        Ok(value.as_f64().unwrap_or(default))
    };
    let flag = |field: &'static str| -> Result<bool> {
        let Some(value) = config.get(field) else { return Ok(false) };
        is(field, Some(value), value.is_boolean())?;
        Ok(value.as_bool().unwrap_or(false))
    };
    let rank = config.get("r").map_or(Some(defaults.rank as u64), Value::as_u64);
    let is_rank = |rank: u64| (1..=RANK_MAX as u64).contains(&rank);
    is("r", config.get("r"), rank.is_some_and(is_rank))?;
    let targets = match config.get("target_modules") {
        Some(Value::String(text)) => Targets::from(text.as_str()),
        Some(Value::Array(items)) => {
            let ending = |item: &Value| item.as_str().map(str::to_owned);
            let endings: Option<Vec<String>> = items.iter().map(ending).collect();
            is("target_modules", config.get("target_modules"), endings.is_some())?;
            Targets::Endings(endings.unwrap_or_default())
        }
        other => {
            is("target_modules", other, matches!(other, None | Some(Value::Null)))?;
            Targets::AllLinear
        }
    };
    Ok(LoraOptions {
        rank: rank.map_or(defaults.rank, |rank| rank as usize),
        alpha: float("lora_alpha", defaults.alpha, |alpha| alpha > 0.0)?,
        targets,
        dropout: float("lora_dropout", defaults.dropout, |p| (0.0..1.0).contains(&p))?,
        scaling: if flag("use_rslora")? { LoraScaling::RankStabilised } else { LoraScaling::Plain },
        dora: flag("use_dora")?,
    })
}
