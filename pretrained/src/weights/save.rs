//! Writing a model's weights into a folder.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use lowtide_nn::WeightsProblem;
use lowtide_tensor::{DType, Tensor};
use safetensors::tensor::{Dtype, View};
use serde_json::{Map, Value, json};

use super::layout::{FILE, INDEX, Stored};
use super::quantized::{WrittenPart, written};
use crate::error::{PretrainedError, Result, WeightProblem};
use crate::files::{Partial, beside, in_folder, remove};

/// Writes every parameter and buffer of `model` into `folder`, which is made if it does not exist,
/// in the format of transformers. The file is `model.safetensors` if all tensors have at most
/// `shard_bytes_max` bytes. Otherwise there are files of at most that size, each with at least one
/// tensor, and `model.safetensors.index.json`. Files are written under temporary names first, then
/// renamed, the index last. A copy of one tensor at a time is in memory. Linear layers in NF4 or
/// int8 are written in the format of bitsandbytes.
///
/// # Errors
/// `File`; `Weights` for layers in GGUF's formats, which these files do not have; errors of the
/// device for a copy, such as `ValueUnavailable` on a simulated device. Earlier files are then
/// untouched.
pub fn save<M: Stored>(
    model: &mut M,
    folder: impl AsRef<Path>,
    shard_bytes_max: u64,
) -> Result<()> {
    let folder = folder.as_ref();
    let shards = shards(entries(model, folder)?, shard_bytes_max);
    let named: Vec<(PathBuf, Vec<Entry>)> = match shards.len() {
        0 | 1 => shards.into_iter().map(|shard| (folder.join(FILE), shard)).collect(),
        count => {
            let name = |at: usize| format!("model-{:05}-of-{count:05}.safetensors", at + 1);
            shards.into_iter().enumerate().map(|(at, it)| (folder.join(name(at)), it)).collect()
        }
    };
    in_folder(folder, || {
        let written = named.iter().map(|(path, shard)| write(path, shard));
        let written = written.collect::<Result<_>>()?;
        publish(folder, &named, written, &mut |partial| partial.publish())
    })
}

/// Puts files in their places by `rename`. A process that ends in between leaves a complete model,
/// or none.
fn publish(
    folder: &Path,
    named: &[(PathBuf, Vec<Entry>)],
    written: Vec<Partial<'_>>,
    rename: &mut dyn FnMut(Partial<'_>) -> Result<()>,
) -> Result<()> {
    let index_path = folder.join(INDEX);
    if named.len() <= 1 {
        written.into_iter().try_for_each(rename)?;
        // Removes the index of an earlier model with several files.
        return remove(&index_path);
    }
    let index = Partial::write(&index_path, |file| file.write(index(named).as_bytes()))?;
    // The earlier index would list files of two models.
    if named.iter().any(|(path, _)| path.exists()) {
        remove(&index_path)?;
    }
    written.into_iter().try_for_each(&mut *rename)?;
    rename(index)?;
    // An earlier single file would be read instead of the new files.
    remove(&folder.join(FILE))
}

/// A tensor as it is written.
struct Entry {
    name: String,
    /// The tensor in the layout of the file.
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
        // The tensors of a quantised weight follow each other.
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

/// The index of the files: the file of each tensor.
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

/// A tensor that is being written, and the place for the error if it cannot be read.
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
        // The format needs little-endian bytes, which is the native order of all supported
        // machines.
        const { assert!(cfg!(target_endian = "little"), "safetensors files are little-endian") };
        let bytes = self.entry.view.contiguous().and_then(|tensor| tensor.to_bytes());
        Cow::Owned(bytes.unwrap_or_else(|error| {
            // The first error is reported, and the written file is discarded.
            self.failure.borrow_mut().get_or_insert(error.into());
            Vec::new()
        }))
    }

    fn data_len(&self) -> usize {
        self.entry.view.size_bytes()
    }
}

fn write<'a>(path: &'a Path, shard: &[Entry]) -> Result<Partial<'a>> {
    let failure = RefCell::new(None);
    let views = shard.iter().map(|entry| (&entry.name, Written { entry, failure: &failure }));
    // Without this entry, transformers does not know the framework of the tensors.
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let file_error = |source| PretrainedError::File { path: path.to_owned(), source };
    let beside = beside(path);
    // The file gets the permissions of a new file of the user, which the library's files do not
    // have.
    let partial = Partial::write(path, |_| Ok(()))?;
    let permissions = fs::metadata(&beside).map_err(file_error)?.permissions();
    let written = safetensors::serialize_to_file(views, Some(metadata), &beside);
    if let Some(error) = failure.into_inner() {
        return Err(error);
    }
    written.map_err(|source| match source {
        safetensors::SafeTensorError::IoError(source) => file_error(source),
        source => PretrainedError::Format { path: path.to_owned(), source },
    })?;
    let file = fs::File::open(&beside).map_err(file_error)?;
    file.set_permissions(permissions).and_then(|()| file.sync_all()).map_err(file_error)?;
    Ok(partial)
}

#[cfg(test)]
mod tests {
    use std::io;

    use lowtide_tensor::{CpuOptions, Device, RandomKey};

    use super::*;
    use crate::config::Config;
    use crate::decoder::Decoder;

    const CONFIG: &str = r#"{"architectures": ["LlamaForCausalLM"], "vocab_size": 5,
        "hidden_size": 2, "intermediate_size": 3, "num_hidden_layers": 2,
        "num_attention_heads": 1, "hidden_act": "silu"}"#;

    fn decoder(seed: u64) -> Result<Decoder> {
        let device = Device::cpu(CpuOptions { threads: Some(1), ..CpuOptions::default() })?;
        Config::from_text("tiny", CONFIG)?.decoder(&device, RandomKey::new(seed), DType::F32)
    }

    fn bits(model: &mut Decoder) -> Result<Vec<Vec<u8>>> {
        let (mut tensors, mut bits) = (Vec::new(), Vec::new());
        lowtide_nn::Parameters::visit_tensors(model, &mut |_, value| tensors.push(value.clone()));
        for tensor in tensors {
            bits.push(tensor.to_bytes()?);
        }
        Ok(bits)
    }

    /// [`save`] of several files, interrupted before rename number `nth` from 0 on. Returns the
    /// number of renames.
    fn save_up_to(nth: usize, model: &mut Decoder, folder: &Path, bytes_max: u64) -> Result<usize> {
        let shards = shards(entries(model, folder)?, bytes_max);
        let name = |at: usize| format!("model-{:05}-of-{:05}.safetensors", at + 1, shards.len());
        let places: Vec<_> = (0..shards.len()).map(|at| folder.join(name(at))).collect();
        let named: Vec<_> = places.into_iter().zip(shards).collect();
        let written = named.iter().map(|(path, shard)| write(path, shard));
        let (written, mut renames) = (written.collect::<Result<_>>()?, 0);
        let published = publish(folder, &named, written, &mut |partial| {
            renames += 1;
            let cut = io::Error::from(io::ErrorKind::Interrupted);
            if renames > nth {
                Err(PretrainedError::File { path: folder.to_owned(), source: cut })
            } else {
                partial.publish()
            }
        });
        assert_eq!(published.is_ok(), renames <= nth);
        Ok(renames)
    }

    #[test]
    fn model_in_place_of_another_is_one_of_them_or_none_whenever_it_is_cut_off() -> Result<()> {
        let [mut earlier, mut new] = [decoder(1)?, decoder(2)?];
        let [was, will_be] = [bits(&mut earlier)?, bits(&mut new)?];
        for earlier_bytes_max in [100, 200, 1 << 20] {
            let mut found = [0; 3];
            for nth in 0.. {
                let folder = tempfile::tempdir().expect("a folder");
                save(&mut earlier, folder.path(), earlier_bytes_max)?;
                let renames = save_up_to(nth, &mut new, folder.path(), 100)?;
                let mut read = decoder(3)?;
                let index = match crate::load(&mut read, folder.path()) {
                    // No model: the error names the missing file.
                    Err(PretrainedError::File { .. }) => 2,
                    Err(error) => panic!("{nth}: {error}"),
                    Ok(()) if bits(&mut read)? == was => 0,
                    Ok(()) => {
                        assert!(bits(&mut read)? == will_be, "{nth}: a mixture");
                        1
                    }
                };
                found[index] += 1;
                if renames <= nth {
                    break;
                }
            }
            assert_eq!(found[1], 1, "{found:?}");
            // Files with other names stay valid until the index changes.
            assert!(found[2] == 0 || earlier_bytes_max == 100, "{found:?}");
        }
        Ok(())
    }
}
