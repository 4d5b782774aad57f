//! A model's weights into a folder.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use lowtide_nn::WeightsProblem;
use lowtide_tensor::{DType, Tensor};
use safetensors::tensor::{Dtype, View};
use serde_json::{Map, Value, json};

use super::layout::Stored;
use super::quantized::{WrittenPart, written};
use super::{FILE, INDEX, beside, write_beside};
use crate::error::{PretrainedError, Result, WeightProblem};

/// Writes every parameter and buffer of `model` into `folder`, which is made if it is not there, as
/// transformers reads them: `model.safetensors` if they are of at most `shard_bytes_max` together,
/// else files of at most so much, but of at least one tensor, and `model.safetensors.index.json`.
/// Files are written beside their places first, then renamed, the index last. Of all tensors one
/// copy is in memory at a time. Linear layers in NF4 or int8 are written as bitsandbytes has them.
///
/// # Errors
/// `File`; `Weights` for layers in GGUF's formats, which such files do not have; what the device
/// says of a copy, such as `ValueUnavailable` on a simulated one. Files that were there before are
/// then untouched.
pub fn save<M: Stored>(
    model: &mut M,
    folder: impl AsRef<Path>,
    shard_bytes_max: u64,
) -> Result<()> {
    let folder = folder.as_ref();
    let file_error = |path: &Path| {
        let path = path.to_owned();
        move |source| PretrainedError::File { path, source }
    };
    fs::create_dir_all(folder).map_err(file_error(folder))?;
    let shards = shards(entries(model, folder)?, shard_bytes_max);
    let named: Vec<(PathBuf, Vec<Entry>)> = match shards.len() {
        0 | 1 => shards.into_iter().map(|shard| (folder.join(FILE), shard)).collect(),
        count => {
            let name = |at: usize| format!("model-{:05}-of-{count:05}.safetensors", at + 1);
            shards.into_iter().enumerate().map(|(at, it)| (folder.join(name(at)), it)).collect()
        }
    };
    let written = named.iter().try_for_each(|(path, shard)| write(&beside(path), shard));
    if written.is_err() {
        // What could not be finished is of no use, and the error to report is the first one.
        named.iter().for_each(|(path, _)| drop(fs::remove_file(beside(path))));
    }
    written?;
    for (path, _) in &named {
        fs::rename(beside(path), path).map_err(file_error(path))?;
    }
    let stale = match named.len() {
        0 | 1 => INDEX,
        _ => {
            write_beside(&folder.join(INDEX), index(&named).as_bytes())?;
            FILE
        }
    };
    // Of the model that was there before, in the other form: it would be read instead.
    match fs::remove_file(folder.join(stale)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(file_error(&folder.join(stale))(error))
        }
        _ => Ok(()),
    }
}

/// A tensor as the file has it.
struct Entry {
    name: String,
    /// As it lies in the file.
    view: Tensor,
    shape: Vec<usize>,
    dtype: Dtype,
}

fn entries<M: Stored>(model: &mut M, folder: &Path) -> Result<Vec<Entry>> {
    let (mut few_bits, mut outcome) = (BTreeMap::new(), Ok(()));
    model.visit_linears(&mut |layer, linear| {
        let Some(weight) = linear.quantized().filter(|_| outcome.is_ok()) else { return };
        let dtype = linear.weight().value().dtype();
        match weight.map_err(PretrainedError::from).and_then(|it| written(layer, &it, dtype)) {
            Ok(parts) => drop(few_bits.insert(format!("{layer}.weight."), parts)),
            Err(error) => outcome = Err(error),
        }
    });
    outcome?;
    let refused = few_bits.iter().filter(|(_, parts)| parts.is_none());
    let refused = refused.map(|(layer, _)| WeightProblem {
        name: layer.trim_end_matches('.').to_owned(),
        problem: WeightsProblem::Type { found: "NF4 or int8".into(), expected: "blocks".into() },
    });
    let problems: Vec<_> = refused.collect();
    if !problems.is_empty() {
        return Err(PretrainedError::Weights { folder: folder.to_owned(), problems });
    }
    let mut tensors = Vec::new();
    model.visit_tensors(&mut |name, value| tensors.push((name.to_owned(), value.clone())));
    let mut entries = Vec::new();
    for (name, value) in tensors {
        // The tensors of a weight in few bits follow each other.
        let layer = few_bits.keys().find(|layer| name.starts_with(*layer)).cloned();
        match layer.and_then(|layer| few_bits.get_mut(&layer)) {
            Some(parts) => entries.extend(parts.take().into_iter().flatten().map(Entry::of)),
            None => {
                let (layout, dtype) = (model.layout(&name), file_dtype(value.dtype()));
                let (view, shape) = (layout.view(&value)?, layout.file_shape(&value));
                entries.push(Entry { name, view, shape, dtype });
            }
        }
    }
    Ok(entries)
}

impl Entry {
    fn of(part: WrittenPart) -> Self {
        let WrittenPart { name, tensor, shape, dtype } = part;
        Entry { name, view: tensor, shape, dtype }
    }
}

fn file_dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::F64 => Dtype::F64,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::I64 => Dtype::I64,
        _ => Dtype::F32,
    }
}

/// `entries` in order, in files of at most `bytes_max`.
fn shards(entries: Vec<Entry>, bytes_max: u64) -> Vec<Vec<Entry>> {
    let (mut shards, mut bytes) = (Vec::<Vec<Entry>>::new(), 0_u64);
    for entry in entries {
        let own = entry.view.size_bytes() as u64;
        match shards.last_mut().filter(|_| bytes.saturating_add(own) <= bytes_max) {
            Some(shard) => {
                shard.push(entry);
                bytes += own;
            }
            None => {
                shards.push(vec![entry]);
                bytes = own;
            }
        }
    }
    shards
}

/// Which file each tensor is in.
fn index(named: &[(PathBuf, Vec<Entry>)]) -> String {
    let (mut map, mut total) = (Map::new(), 0);
    for (path, shard) in named {
        let file = path.file_name().map(|name| name.to_string_lossy().into_owned());
        for entry in shard {
            map.insert(entry.name.clone(), Value::from(file.clone()));
            total += entry.view.size_bytes();
        }
    }
    json!({ "metadata": { "total_size": total }, "weight_map": map }).to_string()
}

/// An entry that is being written, and where it says that it could not be read.
struct Written<'a> {
    entry: &'a Entry,
    failure: &'a RefCell<Option<PretrainedError>>,
}

impl View for Written<'_> {
    fn dtype(&self) -> Dtype {
        self.entry.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.entry.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        // Native order is little-endian on every machine this runs on, which the format wants.
        const { assert!(cfg!(target_endian = "little"), "safetensors files are little-endian") };
        let bytes = self.entry.view.contiguous().and_then(|tensor| tensor.to_bytes());
        Cow::Owned(bytes.unwrap_or_else(|error| {
            // The first one is reported, and what is written is thrown away.
            self.failure.borrow_mut().get_or_insert(error.into());
            Vec::new()
        }))
    }

    fn data_len(&self) -> usize {
        self.entry.view.size_bytes()
    }
}

fn write(path: &Path, shard: &[Entry]) -> Result<()> {
    let failure = RefCell::new(None);
    let views = shard.iter().map(|entry| (&entry.name, Written { entry, failure: &failure }));
    // Without it, transformers does not know whose tensors these are.
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let file_error = |source| PretrainedError::File { path: path.to_owned(), source };
    // As readable as any new file of the user's, which the library's files are not.
    let permissions = fs::File::create(path).and_then(|file| file.metadata());
    let permissions = permissions.map_err(file_error)?.permissions();
    let written = safetensors::serialize_to_file(views, Some(metadata), path);
    if let Some(error) = failure.into_inner() {
        return Err(error);
    }
    written.map_err(|source| match source {
        safetensors::SafeTensorError::IoError(source) => file_error(source),
        source => PretrainedError::Format { path: path.to_owned(), source },
    })?;
    let file = fs::File::open(path).map_err(file_error)?;
    file.set_permissions(permissions).and_then(|()| file.sync_all()).map_err(file_error)
}
