//! Reads and writes optimizer states in safetensors files.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use lowtide_allocator::Category;
use lowtide_tensor::{CpuOptions, Device, RANK_MAX, Shape, Tensor};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

use crate::error::{NnError, Result, WeightsProblem};
use crate::module::Parameters;
use crate::optim::optimizer::{OptimizerState, Pace, Stateful};
use crate::optim::part::Part;
use crate::optim::parts::Parts;
use crate::parallel::features::shard::Shard;
use crate::safetensors::{Entry, dtype_of_file, mapped, parse_safetensors, serialized, write_file};

/// Prefix of a parameter's name, as in PyTorch's `state_dict` of an optimizer by name.
const PREFIX: &str = "state.";
/// Suffix of a parameter's name, for PyTorch's count of updates.
const STEP: &str = ".step";
const STEPS: &str = "steps";
const LEARNING_RATE: &str = "learning_rate";

/// Writes the state of `optimizer` to `path`. The file is written under another name and then
/// renamed, so that a file at `path` is always complete.
///
/// The names of tensors are `state.{parameter}.{state}`, with PyTorch's names for states, and
/// `state.{parameter}.step`, as `torch.distributed.checkpoint.state_dict` flattens them. The
/// metadata holds the exact `steps` and `learning_rate`, and with several models also
/// `{model}.steps` and `{model}.learning_rate`.
///
/// # Errors
/// `File`, `Format`, `Swapped`; a file that was at `path` before is unchanged.
pub fn save_state(
    optimizer: &dyn Stateful,
    parameters: &mut dyn Parameters,
    path: &Path,
) -> Result<()> {
    write_file(path, &state_to_safetensors(optimizer, parameters)?)
}

/// The state of `optimizer`, in the format of a file of [`save_state`].
///
/// # Errors
/// `Swapped`; errors of a copy from the device.
pub fn state_to_safetensors(
    optimizer: &dyn Stateful,
    parameters: &mut dyn Parameters,
) -> Result<Vec<u8>> {
    optimizer.state(parameters)?.to_safetensors(parameters)
}

impl OptimizerState {
    /// This state in the format of a file of [`save_state`], for an optimizer of `parameters`.
    ///
    /// # Errors
    /// Errors of a copy from the device.
    pub fn to_safetensors(&self, parameters: &mut dyn Parameters) -> Result<Vec<u8>> {
        let mut entries = BTreeMap::new();
        parameters.visit(&mut |name, _| {
            let own = format!("{name}.");
            if self.tensors.keys().any(|key| key.starts_with(&own)) {
                let model = name.split('.').next().and_then(|model| self.models.get(model));
                let steps = model.map_or(self.steps, |pace| pace.steps);
                entries.insert(format!("{PREFIX}{name}{STEP}"), Entry::scalar(steps as f32));
            }
        });
        for (name, tensor) in &self.tensors {
            entries.insert(format!("{PREFIX}{name}"), Entry::of(tensor));
        }
        let models = self.models.iter().map(|(model, pace)| (format!("{model}."), *pace));
        let paces = std::iter::once((String::new(), self.pace())).chain(models);
        let metadata = paces.flat_map(|(model, Pace { steps, learning_rate })| {
            [(STEPS, steps.to_string()), (LEARNING_RATE, learning_rate.to_string())]
                .map(|(name, value)| (format!("{model}{name}"), value))
        });
        serialized(&entries, &metadata.collect())
    }
}

/// Reads the state of `optimizer` from `path`. A file without metadata, such as one made from a
/// PyTorch state, must have the same count for all parameters; the learning rate then stays.
///
/// # Errors
/// `File`, `Format`, `OutOfMemory` (the new state is made while the old one exists), and `Weights`
/// with the name of the first tensor that does not fit the parameters and options. The optimizer is
/// then as before.
pub fn load_state(
    optimizer: &mut dyn Stateful,
    parameters: &mut dyn Parameters,
    path: &Path,
) -> Result<()> {
    state_from_safetensors(optimizer, parameters, mapped(path)?.bytes(), path)
}

/// Reads the state of `optimizer` from the contents of a file, as [`load_state`] does. Errors name
/// `path`.
///
/// # Errors
/// The errors of [`load_state`] except `File`. The optimizer is then as before.
pub fn state_from_safetensors(
    optimizer: &mut dyn Stateful,
    parameters: &mut dyn Parameters,
    bytes: &[u8],
    path: &Path,
) -> Result<()> {
    set_state(optimizer, parameters, bytes, path, None)
}

/// [`state_from_safetensors`] for an optimizer that updates a [part](Part) of these parameters.
/// Reads only that part of each state.
///
/// # Errors
/// The errors of [`state_from_safetensors`], and `Strided` for parameters that are not contiguous.
/// The optimizer is then as before.
pub fn part_of_state_from_safetensors(
    optimizer: &mut dyn Stateful,
    parameters: &mut dyn Parameters,
    part: Part,
    bytes: &[u8],
    path: &Path,
) -> Result<()> {
    set_state(optimizer, &mut Parts::new(parameters, part)?, bytes, path, Some(part))
}

/// Reads the state of an optimizer of these parameters from a file, or only a `part` of each state.
/// States of parameters that are [elsewhere](crate::Parameter::is_elsewhere) are skipped. Of a
/// state that ranks [share](crate::parallel::share_layers), only the shard of this rank is read.
fn set_state(
    optimizer: &mut dyn Stateful,
    parameters: &mut dyn Parameters,
    bytes: &[u8],
    path: &Path,
    part: Option<Part>,
) -> Result<()> {
    let format = |source| NnError::Format { path: path.to_owned(), source };
    let file = parse_safetensors(bytes, path)?;
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(format)?;
    let present = optimizer.state(parameters)?;
    let text = |name: &str| header.metadata().as_ref()?.get(name);
    let steps_of = |model: &str| text(&format!("{model}{STEPS}"))?.parse::<u64>().ok();
    let rate_of = |model: &str| text(&format!("{model}{LEARNING_RATE}"))?.parse::<f64>().ok();
    let exact = steps_of("");
    let learning_rate = rate_of("").unwrap_or(present.learning_rate);
    // A model that the file does not name is an error of the optimizer.
    let models = present.models.keys().filter_map(|model| {
        let own = format!("{model}.");
        let pace = Pace { steps: steps_of(&own)?, learning_rate: rate_of(&own)? };
        Some((model.clone(), pace))
    });
    let models: BTreeMap<String, Pace> = models.collect();

    let (mut device, mut elsewhere, mut shards) = (None, BTreeSet::new(), BTreeMap::new());
    parameters.visit(&mut |name, parameter| {
        device = Some(parameter.value().device().clone());
        if parameter.is_elsewhere() {
            elsewhere.insert(name.to_owned());
        }
        shards.extend(parameter.shard().map(|shard| (name.to_owned(), shard.clone())));
    });
    let wrong = |name: &str, problem| {
        Err(NnError::Weights { path: path.to_owned(), name: name.to_owned(), problem })
    };
    let (mut tensors, mut steps) = (BTreeMap::new(), exact);
    let mut views = file.tensors();
    views.sort_by(|(a, _), (b, _)| a.cmp(b));
    for (name, view) in &views {
        let (Some(key), Some(device)) = (name.strip_prefix(PREFIX), &device) else {
            return wrong(name, WeightsProblem::Unknown);
        };
        let parameter = key.rsplit_once('.').map_or("", |(parameter, _)| parameter);
        if elsewhere.contains(parameter) {
            continue;
        }
        if key.ends_with(STEP) {
            let count = step_count(view)
                .filter(|count| exact.is_some() || steps.is_none_or(|s| s == *count));
            let Some(count) = count else { return wrong(name, WeightsProblem::Steps) };
            steps = steps.or(Some(count));
        } else {
            // A state has a type and a rank that a tensor can have.
            let shard = shards.get(parameter).filter(|shard| view.shape() == &**shard.shape());
            match read(device, view, part, shard)? {
                Some(tensor) => tensors.insert(key.to_owned(), tensor),
                None => return wrong(name, WeightsProblem::Unknown),
            };
        }
    }
    let steps = steps.unwrap_or(0);
    let state = OptimizerState { steps, learning_rate, tensors, models };
    optimizer.set_state(parameters, state).map_err(|error| match error {
        NnError::State { name, problem } => {
            NnError::Weights { path: path.to_owned(), name: format!("{PREFIX}{name}"), problem }
        }
        other => other,
    })
}

/// A count in PyTorch's form: one f32.
fn step_count(view: &TensorView<'_>) -> Option<u64> {
    let bytes = <[u8; 4]>::try_from(view.data()).ok().filter(|_| view.dtype() == Dtype::F32)?;
    let count = f32::from_le_bytes(bytes);
    (count >= 0.0 && count.fract() == 0.0).then_some(count as u64)
}

/// The tensor of a file on `device`, or a part or shard of it. `None` if tensors cannot have its
/// type or rank.
fn read(
    device: &Device,
    view: &TensorView<'_>,
    part: Option<Part>,
    shard: Option<&Shard>,
) -> Result<Option<Tensor>> {
    let dtype = dtype_of_file(view.dtype()).filter(|_| view.shape().len() <= RANK_MAX);
    let Some(dtype) = dtype else { return Ok(None) };
    let _scope = device.category(Category::OptimizerState);
    let shape = Shape::new(view.shape());
    if let Some(shard) = shard {
        // The device may be too small for the whole tensor.
        let host = Device::cpu(CpuOptions { threads: Some(1), ..CpuOptions::default() })?;
        let own = shard.own_of(&Tensor::from_bytes(&host, shape, dtype, view.data())?)?;
        return Ok(Some(own.to_device(device, Category::OptimizerState)?));
    }
    let (shape, bytes) = match part.map(|part| part.range(shape.element_count())) {
        Some(Range { start, end }) => {
            let size = dtype.size_bytes();
            (Shape::new(&[end - start]), &view.data()[start * size..end * size])
        }
        None => (shape, view.data()),
    };
    Ok(Some(Tensor::from_bytes(device, shape, dtype, bytes)?))
}
