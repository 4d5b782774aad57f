//! Weights of a folder into a model, in place.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use lowtide_nn::{NnResult, Parameters, WeightsProblem};
use lowtide_tensor::{DType, Device, SimSpec, Tensor};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::Value;

use super::layout::{Layout, Stored};
use super::map::Map;
use super::{FILE, INDEX};
use crate::decoder::{Decoder, DecoderShape, Weights};
use crate::error::{EntryProblem, PretrainedError, Result, WeightProblem};

/// Elements that are converted at a time: 16 MiB of f32, beside the model.
const CHUNK_LEN: usize = 4 << 20;

/// Reads every parameter and buffer of `model` from the weights in `folder`, `model.safetensors` or
/// the files that `model.safetensors.index.json` lists, in whatever float type they are. The files
/// are mapped, and converted in pieces of a few megabytes: no tensor is in memory twice.
///
/// # Errors
/// `File`, `Json`, `Format`; `Weights` with all that is missing, not known, or of another shape or
/// type; `OutOfMemory`. The model is then as before.
pub fn load<M: Stored>(model: &mut M, folder: impl AsRef<Path>) -> Result<()> {
    load_parts(model, folder.as_ref(), Parts::All)
}

/// [`load`] of the body of a model that is trained for something else than the one of the files:
/// what its head has and they have not, or in another shape, stays as it is, and their head is left
/// alone.
///
/// # Errors
/// Those of [`load`].
pub fn load_body<M: Stored>(model: &mut M, folder: impl AsRef<Path>) -> Result<()> {
    load_parts(model, folder.as_ref(), Parts::Body)
}

/// Whether the head of a model may differ from that of its files.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Parts {
    All,
    Body,
}

fn load_parts<M: Stored>(model: &mut M, folder: &Path, parts: Parts) -> Result<()> {
    let files = open(folder)?;
    let parsed = parsed(&files)?;
    let matched = matched(model, &parsed, folder, parts)?;
    fill_all(&tensors_of(model), &matched)
}

/// A decoder of `shape` with the weights in `folder`, made and read part by part; `change` sees
/// each right after.
pub(crate) fn load_by_parts(
    device: &Device,
    (shape, dtype): (&DecoderShape, DType),
    folder: &Path,
    mut change: impl FnMut(&mut dyn Parameters) -> NnResult<()>,
) -> Result<Decoder> {
    let files = open(folder)?;
    let parsed = parsed(&files)?;
    // All names and shapes are compared before anything is allocated.
    let spec = SimSpec { capacity_bytes: isize::MAX as usize, outside_bytes: 0, ..device.spec() };
    let mut outline = Decoder::new(&Device::sim(spec)?, shape.clone(), Weights::Unset, dtype)?;
    let matched = matched(&mut outline, &parsed, folder, Parts::All)?;
    drop(outline);
    Decoder::by_parts(device, shape.clone(), (Weights::Unset, dtype), &mut |part| {
        fill_all(&tensors_of(part), &matched)?;
        Ok(change(part)?)
    })
}

/// The tensors of a model with their names.
fn tensors_of(model: &mut (impl Parameters + ?Sized)) -> Vec<(String, Tensor)> {
    let mut tensors = Vec::new();
    model.visit_tensors(&mut |name, value| tensors.push((name.to_owned(), value.clone())));
    tensors
}

/// The mapped files of a folder.
fn open(folder: &Path) -> Result<Vec<(PathBuf, Map)>> {
    let (one, index) = (folder.join(FILE), folder.join(INDEX));
    let paths = match index.is_file() && !one.is_file() {
        true => shards(folder, &index)?,
        false => vec![one],
    };
    paths
        .into_iter()
        .map(|path| {
            let map = Map::open(&path)?;
            Ok((path, map))
        })
        .collect()
}

/// The files that an index lists, each once.
fn shards(folder: &Path, index: &Path) -> Result<Vec<PathBuf>> {
    let text = fs::read_to_string(index)
        .map_err(|source| PretrainedError::File { path: index.to_owned(), source })?;
    let json: Value = serde_json::from_str(&text)
        .map_err(|source| PretrainedError::Json { path: index.to_owned(), source })?;
    let problem = |problem| {
        let entry = "weight_map".to_owned();
        PretrainedError::Entry { path: index.to_owned(), entry, problem }
    };
    let Some(map) = json.get("weight_map").and_then(Value::as_object) else {
        return Err(problem(EntryProblem::Missing));
    };
    let mut names = BTreeSet::new();
    for file in map.values() {
        // Names are joined to the folder, so each has to stay in it.
        let name = file.as_str().filter(|name| {
            Path::new(name).file_name().is_some_and(|only| only == *name) && *name != ".."
        });
        let Some(name) = name else {
            let (expected, found) = ("the name of a file beside the index", file.to_string());
            return Err(problem(EntryProblem::Wrong { expected, found }));
        };
        names.insert(name);
    }
    Ok(names.into_iter().map(|name| folder.join(name)).collect())
}

fn parsed(files: &[(PathBuf, Map)]) -> Result<Vec<SafeTensors<'_>>> {
    let parsed = files.iter().map(|(path, map)| {
        let format = |source| PretrainedError::Format { path: path.clone(), source };
        SafeTensors::deserialize(map.bytes()).map_err(format)
    });
    parsed.collect()
}

/// What is to be written to a tensor.
struct Matched<'a> {
    bytes: &'a [u8],
    dtype: DType,
    layout: Layout,
}

/// Finds every tensor in the files, and everything of the files in the model.
fn matched<'a, M: Stored>(
    model: &mut M,
    files: &[SafeTensors<'a>],
    folder: &Path,
    parts: Parts,
) -> Result<BTreeMap<String, Matched<'a>>> {
    let mut stored = BTreeMap::new();
    for file in files {
        for (name, view) in file.iter() {
            stored.insert(renamed(name), view);
        }
    }
    let (mut matched, mut problems) = (BTreeMap::new(), Vec::new());
    let tensors = tensors_of(model);
    let may_differ = |name: &str| parts == Parts::Body && model.is_of_head(name);
    for (name, value) in tensors {
        let own = name.strip_prefix(model.base()).unwrap_or(&name);
        let layout = model.layout(&name);
        let found = stored.remove(&name).or_else(|| stored.remove(own));
        match fitting(found, &value, layout) {
            Ok((bytes, dtype)) => drop(matched.insert(name, Matched { bytes, dtype, layout })),
            Err(_) if may_differ(&name) => {}
            Err(problem) => problems.push(WeightProblem { name, problem }),
        }
    }
    let is_known = |name: &str| model.is_unused(name) || may_differ(name);
    let unknown = stored.into_keys().filter(|name| !is_known(name));
    let problem = WeightsProblem::Unknown;
    problems.extend(unknown.map(|name| WeightProblem { name, problem: problem.clone() }));
    match problems.is_empty() {
        true => Ok(matched),
        false => Err(PretrainedError::Weights { folder: folder.to_owned(), problems }),
    }
}

/// A tensor, and what is to be written to it.
struct Planned<'a> {
    /// As it lies in the file.
    view: Tensor,
    bytes: &'a [u8],
    dtype: DType,
}

/// Writes to each tensor what was matched to its name, or to none of them.
fn fill_all(tensors: &[(String, Tensor)], matched: &BTreeMap<String, Matched<'_>>) -> Result<()> {
    let mut planned = Vec::with_capacity(tensors.len());
    for (name, value) in tensors {
        if let Some(Matched { bytes, dtype, layout }) = matched.get(name) {
            value.check_writable("load")?;
            planned.push(Planned { view: layout.view(value)?, bytes, dtype: *dtype });
        }
    }
    let mut scratch = scratch(&planned)?;
    for Planned { view, bytes, dtype } in planned {
        fill(view, bytes, dtype, &mut scratch)?;
    }
    Ok(())
}

/// The bytes and the type of a tensor of a file, if it is what `value` can be filled with.
fn fitting<'a>(
    found: Option<TensorView<'a>>,
    value: &Tensor,
    layout: Layout,
) -> std::result::Result<(&'a [u8], DType), WeightsProblem> {
    let Some(found) = found else { return Err(WeightsProblem::Missing) };
    let expected = layout.file_shape(value);
    if found.shape() != expected {
        let (found, expected) = (found.shape().to_vec(), expected[..].into());
        return Err(WeightsProblem::Shape { found, expected });
    }
    match dtype_of(found.dtype()) {
        Some(dtype) if dtype == value.dtype() || is_converted(dtype, value) => {
            Ok((found.data(), dtype))
        }
        _ => {
            let expected = if value.dtype().is_float() { "a float" } else { "an integer" };
            let found = format!("{:?}", found.dtype());
            Err(WeightsProblem::Type { found, expected: expected.to_owned() })
        }
    }
}

fn is_converted(dtype: DType, value: &Tensor) -> bool {
    dtype.is_float() && value.dtype().is_float()
}

/// The name of a tensor, where it has an older one in the file.
fn renamed(name: &str) -> String {
    let newer = |old: &str, new: &str| name.strip_suffix(old).map(|stem| format!("{stem}{new}"));
    newer("LayerNorm.gamma", "LayerNorm.weight")
        .or_else(|| newer("LayerNorm.beta", "LayerNorm.bias"))
        .unwrap_or_else(|| name.to_owned())
}

fn dtype_of(dtype: Dtype) -> Option<DType> {
    match dtype {
        Dtype::F64 => Some(DType::F64),
        Dtype::F32 => Some(DType::F32),
        Dtype::F16 => Some(DType::F16),
        Dtype::BF16 => Some(DType::BF16),
        Dtype::I64 => Some(DType::I64),
        _ => None,
    }
}

/// The memory of every conversion, allocated before the first one: what comes after cannot fail for
/// want of memory, which would leave a model of two halves.
fn scratch(plan: &[Planned<'_>]) -> Result<BTreeMap<&'static str, Tensor>> {
    let mut lens: BTreeMap<&'static str, (DType, usize, &Tensor)> = BTreeMap::new();
    for Planned { view, dtype, .. } in plan {
        if !is_direct(view, *dtype) {
            let len = slabs(view) * slab_len(view);
            let entry = lens.entry(dtype.name()).or_insert((*dtype, 0, view));
            entry.1 = entry.1.max(len);
        }
    }
    let allocated = lens
        .into_iter()
        .map(|(name, (dtype, len, view))| Ok((name, Tensor::empty(view.device(), [len], dtype)?)));
    allocated.collect()
}

/// Whether the bytes of the file are those of the parameter.
fn is_direct(view: &Tensor, dtype: DType) -> bool {
    view.dtype() == dtype && view.layout().is_contiguous()
}

/// Elements of what is never split.
fn slab_len(view: &Tensor) -> usize {
    view.shape().iter().skip(1).product()
}

/// How many parts along the first dimension are converted at a time.
fn slabs(view: &Tensor) -> usize {
    let count = view.shape().first().copied().unwrap_or(1);
    (CHUNK_LEN / slab_len(view).max(1)).clamp(1, count.max(1))
}

fn fill(
    mut view: Tensor,
    bytes: &[u8],
    dtype: DType,
    scratch: &mut BTreeMap<&'static str, Tensor>,
) -> Result<()> {
    if is_direct(&view, dtype) {
        return Ok(view.set_bytes_(bytes)?);
    }
    let Some(scratch) = scratch.get(dtype.name()) else { return Ok(()) };
    let (count, step, len) = (view.shape()[0], slabs(&view), slab_len(&view));
    for start in (0..count).step_by(step) {
        let taken = step.min(count - start);
        let mut piece = scratch.narrow(0, 0, taken * len)?;
        let from = start * len * dtype.size_bytes();
        piece.set_bytes_(&bytes[from..][..taken * len * dtype.size_bytes()])?;
        let mut to = view.narrow(0, start, taken)?;
        to.copy_(&piece.reshape(*to.shape())?)?;
    }
    Ok(())
}
