//! Weights of a folder for a model: copied into its tensors or, if the folder has quantised
//! weights, used in the mapped files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use lowtide_allocator::Category;
use lowtide_nn::{NnError, NnResult, Parameters, WeightsProblem, parse_safetensors};
use lowtide_tensor::{DType, Device, MappedFile, Quantized, Shape, SimSpec, Tensor};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::Value;

use super::layout::{FILE, INDEX, Layout, Stored};
use super::quantized::{self, StoredWeight};
use crate::decoder::{Decoder, DecoderShape, Weights};
use crate::error::{EntryProblem, PretrainedError, Result, WeightProblem, shortened};
use crate::files::read_text;

/// Number of elements that are converted at a time: 16 MiB of f32, in addition to the model.
const CHUNK_LEN: usize = 4 << 20;

/// Reads every parameter and buffer of `model` from the weights in `folder`: `model.safetensors`,
/// or the files that `model.safetensors.index.json` lists, in any float type. The files are mapped,
/// and converted in pieces of a few megabytes: no tensor is in memory twice. The files must not
/// change meanwhile.
///
/// `File`, `Json`, `Format`; `Weights` with all tensors that are missing, unknown, or of another
/// shape or type; `OutOfMemory`. The model is then unchanged.
pub fn load<M: Stored>(model: &mut M, folder: impl AsRef<Path>) -> Result<()> {
    load_parts(model, folder.as_ref(), Parts::All)
}

/// [`load`] of the body of a model whose head differs from the head in the files. A tensor of the
/// model's head that the files lack, or have in another shape, is unchanged. The head in the files
/// is not read.
///
/// # Errors
/// The errors of [`load`].
pub fn load_body<M: Stored>(model: &mut M, folder: impl AsRef<Path>) -> Result<()> {
    load_parts(model, folder.as_ref(), Parts::Body)
}

/// The parts of the model that the files must match.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Parts {
    All,
    Body,
}

fn load_parts<M: Stored>(model: &mut M, folder: &Path, parts: Parts) -> Result<()> {
    let files = open(folder)?;
    let parsed = parsed(&files)?;
    let Matched { floats, few_bits } = matched(model, &parsed, folder, parts)?;
    let refused = few_bits.into_keys().map(|layer| WeightProblem {
        name: format!("{layer}.weight"),
        problem: WeightsProblem::Type { found: "few bits".into(), expected: "a float".into() },
    });
    let problems: Vec<_> = refused.collect();
    if !problems.is_empty() {
        return Err(PretrainedError::Weights { folder: folder.to_owned(), problems });
    }
    fill_all(&tensors_of(model), &floats)
}

/// A decoder of `shape` with the weights in `folder`, made and read part by part. `change` is
/// called with each part. If the files have quantised weights, only tensors that must be converted
/// are read: all other parameters are parts of the files, and frozen.
pub(crate) fn load_by_parts(
    device: &Device,
    shape: &DecoderShape,
    dtype: DType,
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
    let is_mapped = !matched.few_bits.is_empty();
    let weights = if is_mapped { Weights::Absent } else { Weights::Unset };
    Decoder::by_parts(device, shape.clone(), weights, dtype, &mut |part| {
        if is_mapped {
            map_all(part, device, &matched, &files)?;
        } else {
            fill_all(&tensors_of(part), &matched.floats)?;
        }
        Ok(change(part)?)
    })
}

/// The tensors of a model with their names.
fn tensors_of(model: &mut (impl Parameters + ?Sized)) -> Vec<(String, Tensor)> {
    let mut tensors = Vec::new();
    model.visit_tensors(&mut |name, value| tensors.push((name.to_owned(), value.clone())));
    tensors
}

/// The files with the weights of the model in `folder`: `model.safetensors`, or the files that
/// `model.safetensors.index.json` lists.
///
/// # Errors
/// `File`, `Json`, and `Entry` for an index that does not list files beside it.
pub fn weight_files(folder: impl AsRef<Path>) -> Result<Vec<PathBuf>> {
    let folder = folder.as_ref();
    let (one, index) = (folder.join(FILE), folder.join(INDEX));
    let has_shards = index.is_file() && !one.is_file();
    if has_shards { shards(folder, &index) } else { Ok(vec![one]) }
}

/// The mapped files of a folder. They must stay as they are while they are mapped.
#[expect(unsafe_code, reason = "the one place of this crate that maps files")]
fn open(folder: &Path) -> Result<Vec<(PathBuf, MappedFile)>> {
    let files = weight_files(folder)?.into_iter();
    files
        // SAFETY: this crate changes no file in place, and its documentation asks the same of
        // others. The bytes become numbers, of which every bit pattern is valid, and a header that
        // is parsed into values of its own.
        .map(|path| match unsafe { MappedFile::open(&path) } {
            Ok(file) => Ok((path, file)),
            Err(source) => Err(PretrainedError::File { path, source }),
        })
        .collect()
}

/// The files that an index lists, each once.
fn shards(folder: &Path, index: &Path) -> Result<Vec<PathBuf>> {
    /// The largest indices, for thousands of layers of experts, have about 10 MB.
    const INDEX_BYTES_MAX: u64 = 1 << 28;
    let text = read_text(index, INDEX_BYTES_MAX)?;
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
        // Names are joined to the folder, so each name must stay in the folder.
        let name = file.as_str().filter(|name| {
            Path::new(name).file_name().is_some_and(|only| only == *name) && *name != ".."
        });
        let Some(name) = name else {
            let expected = "the name of a file beside the index";
            let found = shortened(&file.to_string());
            return Err(problem(EntryProblem::Wrong { expected, found }));
        };
        names.insert(name);
    }
    Ok(names.into_iter().map(|name| folder.join(name)).collect())
}

fn parsed(files: &[(PathBuf, MappedFile)]) -> Result<Vec<SafeTensors<'_>>> {
    let parsed = files.iter().map(|(path, map)| {
        parse_safetensors(map.bytes(), path).map_err(|error| match error {
            NnError::Format { path, source } => PretrainedError::Format { path, source },
            error => error.into(),
        })
    });
    parsed.collect()
}

/// The tensors of the files that belong to a model.
struct Matched<'a> {
    /// Float tensors, by name.
    floats: BTreeMap<String, StoredFloats<'a>>,
    /// Quantised weights, by the name of the layer.
    few_bits: BTreeMap<String, StoredWeight<'a>>,
}

/// The values of a tensor in a file.
struct StoredFloats<'a> {
    bytes: &'a [u8],
    dtype: DType,
    layout: Layout,
}

/// Finds every tensor of the model in the files, and every tensor of the files in the model.
fn matched<'a, M: Stored>(
    model: &mut M,
    files: &[SafeTensors<'a>],
    folder: &Path,
    parts: Parts,
) -> Result<Matched<'a>> {
    let (mut stored, mut twice) = (BTreeMap::new(), BTreeSet::new());
    for file in files {
        for (name, view) in file.iter() {
            let name = renamed(name);
            if stored.insert(name.clone(), view).is_some() {
                twice.insert(name);
            }
        }
    }
    let problem = WeightsProblem::Twice;
    let twice = twice.into_iter().map(|name| WeightProblem { name, problem: problem.clone() });
    let mut problems: Vec<WeightProblem> = twice.collect();
    let few_bits = few_bits(model, &mut stored, &mut problems);
    let mut floats = BTreeMap::new();
    let tensors = tensors_of(model);
    let may_differ = |name: &str| parts == Parts::Body && model.is_of_head(name);
    let is_in_few_bits =
        |name: &str| name.strip_suffix(".weight").is_some_and(|layer| few_bits.contains_key(layer));
    for (name, value) in tensors.into_iter().filter(|(name, _)| !is_in_few_bits(name)) {
        let own = name.strip_prefix(model.base()).unwrap_or(&name);
        let layout = model.layout(&name);
        let found = stored.remove(&name).or_else(|| stored.remove(own));
        match fitting(found, &value, layout) {
            Ok((bytes, dtype)) => drop(floats.insert(name, StoredFloats { bytes, dtype, layout })),
            Err(_) if may_differ(&name) => {}
            Err(problem) => problems.push(WeightProblem { name, problem }),
        }
    }
    let is_known = |name: &str| model.is_unused(name) || may_differ(name);
    let unknown = stored.into_keys().filter(|name| !is_known(name));
    let problem = WeightsProblem::Unknown;
    problems.extend(unknown.map(|name| WeightProblem { name, problem: problem.clone() }));
    if problems.is_empty() {
        Ok(Matched { floats, few_bits })
    } else {
        Err(PretrainedError::Weights { folder: folder.to_owned(), problems })
    }
}

/// Takes the quantised weights from the tensors of the files, by the name of their layer.
fn few_bits<'a, M: Stored>(
    model: &mut M,
    stored: &mut BTreeMap<String, TensorView<'a>>,
    problems: &mut Vec<WeightProblem>,
) -> BTreeMap<String, StoredWeight<'a>> {
    let (mut taken, base) = (BTreeMap::new(), model.base());
    model.visit_linears(&mut |layer, linear| {
        let shape = *linear.weight().value().shape();
        for own in [layer, layer.strip_prefix(base).unwrap_or(layer)] {
            match quantized::take(stored, own, shape) {
                Ok(None) => {}
                Ok(Some(weight)) => drop(taken.insert(layer.to_owned(), weight)),
                Err(problem) => {
                    let name = format!("{layer}.weight");
                    problems.push(WeightProblem { name, problem });
                }
            }
        }
    });
    taken
}

/// Replaces the placeholders of a part by parts of the files; see [`load_by_parts`].
fn map_all(
    part: &mut dyn Parameters,
    device: &Device,
    matched: &Matched<'_>,
    files: &[(PathBuf, MappedFile)],
) -> Result<()> {
    let _scope = device.category(Category::Parameter);
    let mut outcome = Ok(());
    part.visit_linears(&mut |name, layer| {
        if let (Ok(()), Some(weight)) = (&outcome, matched.few_bits.get(name)) {
            let quantized = few_bits_in(device, weight, files);
            outcome = quantized.and_then(|weight| Ok(layer.set_quantized(&weight)?));
        }
    });
    outcome?;
    let (mut values, mut copied) = (BTreeMap::new(), Vec::new());
    for (name, value) in tensors_of(part) {
        let Some(StoredFloats { bytes, dtype, layout }) = matched.floats.get(&name) else {
            continue;
        };
        let is_same = *dtype == value.dtype() && *layout == Layout::Same;
        let mapped =
            if is_same { mapped(device, *value.shape(), *dtype, bytes, files)? } else { None };
        let value = match mapped {
            Some(mapped) => mapped,
            None => {
                let value = Tensor::empty(device, *value.shape(), value.dtype())?;
                copied.push((name.clone(), value.clone()));
                value
            }
        };
        values.insert(name, value);
    }
    fill_all(&copied, &matched.floats)?;
    part.visit_tensors(&mut |name, value| {
        if let Some(read) = values.get(name) {
            value.clone_from(read);
        }
    });
    part.visit(&mut |_, parameter| parameter.freeze());
    Ok(())
}

/// A weight whose tensors are parts of the files, or copies if the file has another layout.
fn few_bits_in(
    device: &Device,
    weight: &StoredWeight<'_>,
    files: &[(PathBuf, MappedFile)],
) -> Result<Quantized> {
    let StoredWeight { format, shape, parts } = weight;
    let parts = format.parts(*shape)?.into_iter().zip(parts).map(|(part, bytes)| {
        match mapped(device, part.shape, part.dtype, bytes, files)? {
            Some(mapped) => Ok(mapped),
            None => Ok(Tensor::from_bytes(device, part.shape, part.dtype, bytes)?),
        }
    });
    Ok(Quantized::from_parts(*format, *shape, parts.collect::<Result<_>>()?)?)
}

/// The tensor of `bytes`, if the bytes lie in one of the files and are aligned.
fn mapped(
    device: &Device,
    shape: Shape,
    dtype: DType,
    bytes: &[u8],
    files: &[(PathBuf, MappedFile)],
) -> Result<Option<Tensor>> {
    let from = bytes.as_ptr().addr();
    for (_, file) in files {
        let start = file.bytes().as_ptr().addr();
        if (start..start + file.bytes().len()).contains(&from) {
            let offset_bytes = from - start;
            if !offset_bytes.is_multiple_of(dtype.size_bytes()) {
                return Ok(None);
            }
            return Ok(Some(Tensor::from_mapped(device, shape, dtype, file, offset_bytes)?));
        }
    }
    Ok(None)
}

/// A tensor, and the bytes to write to it.
struct Planned<'a> {
    /// The tensor in the layout of the file.
    view: Tensor,
    bytes: &'a [u8],
    dtype: DType,
}

/// Fills each tensor with the floats of the same name. If a check fails, no tensor is changed.
fn fill_all(
    tensors: &[(String, Tensor)],
    floats: &BTreeMap<String, StoredFloats<'_>>,
) -> Result<()> {
    let mut planned = Vec::with_capacity(tensors.len());
    for (name, value) in tensors {
        if let Some(StoredFloats { bytes, dtype, layout }) = floats.get(name) {
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

/// The bytes and the type of a tensor of a file, if `value` can be filled with them.
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

/// The present name of a tensor that has another name in older files.
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

/// The scratch memory of all conversions, allocated before the first one, so that no later step can
/// run out of memory and leave a half-loaded model.
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

/// True if the file's bytes are the parameter's bytes.
fn is_direct(view: &Tensor, dtype: DType) -> bool {
    view.dtype() == dtype && view.layout().is_contiguous()
}

/// Number of elements of a slab, which is never split.
fn slab_len(view: &Tensor) -> usize {
    view.shape().iter().skip(1).product()
}

/// Number of parts along the first dimension that are converted at a time.
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
