//! Weights to and from safetensors files, under PyTorch's names.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use lowtide_tensor::{DType, Tensor};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use crate::error::{NnError, Result, WeightsProblem};
use crate::module::Parameters;

/// Writes every parameter and every buffer of `model` to `path`: beside it first, then renamed, so
/// that a file of that name is always whole.
///
/// # Errors
/// `File`; a file that was there before is untouched.
pub fn save(model: &mut dyn Parameters, path: &Path) -> Result<()> {
    write_file(path, &to_safetensors(model)?)
}

/// Every parameter and every buffer of `model`, as the contents of a file of [`save`].
///
/// # Errors
/// What the device says of a copy; `ValueUnavailable` on a simulated one.
pub fn to_safetensors(model: &mut dyn Parameters) -> Result<Vec<u8>> {
    let mut entries = Ok(BTreeMap::new());
    model.visit_tensors(&mut |name, value| {
        if let Ok(kept) = &mut entries {
            match Entry::of(value) {
                Ok(entry) => drop(kept.insert(name.to_owned(), entry)),
                Err(error) => entries = Err(error),
            }
        }
    });
    serialized(&entries?, None)
}

/// A tensor in the form of the file: type, shape and bytes.
pub(crate) struct Entry {
    pub(crate) dtype: Dtype,
    pub(crate) dims: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

impl Entry {
    pub(crate) fn of(tensor: &Tensor) -> Result<Self> {
        // Native order is little-endian on every machine this runs on, which the format wants.
        const { assert!(cfg!(target_endian = "little"), "safetensors files are little-endian") };
        let (dtype, dims) = (file_dtype(tensor.dtype()), tensor.shape().to_vec());
        Ok(Entry { dtype, dims, bytes: tensor.to_bytes()? })
    }
}

/// `entries` and `metadata` as the contents of a file.
pub(crate) fn serialized(
    entries: &BTreeMap<String, Entry>,
    metadata: Option<HashMap<String, String>>,
) -> Result<Vec<u8>> {
    let format = |source| NnError::Format { path: PathBuf::new(), source };
    let views = entries.iter().map(|(name, Entry { dtype, dims, bytes })| {
        Ok((name.as_str(), TensorView::new(*dtype, dims.clone(), bytes).map_err(format)?))
    });
    let views = views.collect::<Result<BTreeMap<_, _>>>()?;
    safetensors::serialize(views, metadata).map_err(format)
}

/// Writes the contents of a file beside its place first.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    write_beside(path, bytes).map_err(|source| NnError::File { path: path.to_owned(), source })
}

fn file_dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::F64 => Dtype::F64,
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::I64 => Dtype::I64,
        DType::I32 => Dtype::I32,
        DType::U8 => Dtype::U8,
        DType::Bool => Dtype::BOOL,
        _ => unreachable!("every dtype there is has its like in the format"),
    }
}

/// The type that is stored as `dtype`, if there is one.
pub(crate) fn dtype_of_file(dtype: Dtype) -> Option<DType> {
    DType::ALL.into_iter().find(|&ours| file_dtype(ours) == dtype)
}

fn write_beside(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".partial");
    let write = || {
        let mut file = fs::File::create(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    };
    // What could not be finished is of no use, and the error to report is the first one.
    write().inspect_err(|_| drop(fs::remove_file(&beside)))
}

/// Reads every parameter and every buffer of `model` from `path`, in place.
///
/// # Errors
/// `File`, `Format`, and `Weights` when names, shapes or types differ: the model is then as
/// before.
pub fn load(model: &mut dyn Parameters, path: &Path) -> Result<()> {
    let bytes = fs::read(path).map_err(|source| NnError::File { path: path.to_owned(), source })?;
    from_safetensors(model, &bytes, path)
}

/// Reads every parameter and every buffer of `model` from the contents of a file of [`save`], in
/// place. Errors name `path`.
///
/// # Errors
/// Those of [`load`] but `File`: the model is then as before.
pub fn from_safetensors(model: &mut dyn Parameters, bytes: &[u8], path: &Path) -> Result<()> {
    let format = |source| NnError::Format { path: path.to_owned(), source };
    let file = SafeTensors::deserialize(bytes).map_err(format)?;
    check(model, &file, path)?;
    let mut writable = Ok(());
    model.visit_tensors(&mut |_, value| {
        let check = value.check_writable("load");
        writable = std::mem::replace(&mut writable, Ok(())).and(check);
    });
    writable?;
    let mut result = Ok(());
    model.visit_tensors(&mut |name, value| {
        let view = file.tensor(name).expect("checked to be there");
        let fill = value.set_bytes_(view.data());
        result = std::mem::replace(&mut result, Ok(())).and(fill);
    });
    Ok(result?)
}

fn check(model: &mut dyn Parameters, file: &SafeTensors<'_>, path: &Path) -> Result<()> {
    let mut unknown: Vec<String> = file.names().iter().map(|name| (*name).to_owned()).collect();
    unknown.sort();
    let mut problem: Option<(String, WeightsProblem)> = None;
    model.visit_tensors(&mut |name, value| {
        unknown.retain(|of_file| of_file != name);
        let found = compare(file, name, value);
        problem = problem.take().or(found.map(|found| (name.to_owned(), found)));
    });
    let unknown = unknown.into_iter().next().map(|name| (name, WeightsProblem::Unknown));
    match problem.or(unknown) {
        Some((name, problem)) => Err(NnError::Weights { path: path.to_owned(), name, problem }),
        None => Ok(()),
    }
}

fn compare(file: &SafeTensors<'_>, name: &str, value: &Tensor) -> Option<WeightsProblem> {
    let Ok(view) = file.tensor(name) else { return Some(WeightsProblem::Missing) };
    let dtype = file_dtype(value.dtype());
    if view.dtype() != dtype {
        let (found, expected) = (format!("{:?}", view.dtype()), format!("{dtype:?}"));
        return Some(WeightsProblem::Type { found, expected });
    }
    let (found, expected) = (view.shape().to_vec(), *value.shape());
    (found[..] != expected[..]).then_some(WeightsProblem::Shape { found, expected })
}
