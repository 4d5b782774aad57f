//! Reads and writes weights in safetensors files, under PyTorch's names.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use lowtide_allocator::files;
use lowtide_tensor::{DType, MappedFile, Tensor};
use safetensors::tensor::{Dtype, SafeTensors, TensorInfo};

use crate::error::{NnError, Result, WeightsProblem};
use crate::module::Parameters;

/// Writes every parameter and every buffer of `model` to `path`. The file is written under another
/// name and then renamed, so that a file at `path` is always complete.
///
/// # Errors
/// `File`; a file that was at `path` before is unchanged.
pub fn save(model: &mut dyn Parameters, path: &Path) -> Result<()> {
    write_file(path, &to_safetensors(model)?)
}

/// Every parameter and every buffer of `model`, in the format of a file of [`save`]. In addition to
/// the result, takes twice the bytes of the largest tensor for a moment.
///
/// # Errors
/// Errors of a copy from the device; `ValueUnavailable` on a simulated device; `Divided`.
pub fn to_safetensors(model: &mut dyn Parameters) -> Result<Vec<u8>> {
    let mut divided = None;
    model.visit(&mut |name, parameter| {
        if parameter.part().is_some() || parameter.shard().is_some() {
            divided.get_or_insert_with(|| name.to_owned());
        }
    });
    if let Some(name) = divided {
        return Err(NnError::Divided { name });
    }
    let mut entries = BTreeMap::new();
    model.visit_tensors(&mut |name, value| {
        entries.insert(name.to_owned(), Entry::of(value));
    });
    serialized(&entries, &BTreeMap::new())
}

/// A tensor in the form of the file: type, shape and content.
pub(crate) struct Entry {
    dtype: Dtype,
    dims: Vec<usize>,
    content: Content,
}

enum Content {
    Bytes(Vec<u8>),
    /// A tensor that is copied when the file is written. Only one copy exists at a time.
    Tensor(Tensor),
}

impl Entry {
    pub(crate) fn of(tensor: &Tensor) -> Self {
        // The format is little-endian, and so is every supported machine.
        const { assert!(cfg!(target_endian = "little"), "safetensors files are little-endian") };
        let (dtype, dims) = (file_dtype(tensor.dtype()), tensor.shape().to_vec());
        Entry { dtype, dims, content: Content::Tensor(tensor.clone()) }
    }

    /// A tensor of one number.
    pub(crate) fn scalar(value: f32) -> Self {
        let content = Content::Bytes(value.to_le_bytes().to_vec());
        Entry { dtype: Dtype::F32, dims: Vec::new(), content }
    }

    fn data_len(&self) -> usize {
        match &self.content {
            Content::Bytes(bytes) => bytes.len(),
            Content::Tensor(tensor) => tensor.size_bytes(),
        }
    }
}

/// `entries` and `metadata` in the format of a safetensors file. The same content gives the same
/// bytes, unlike by the library of the format, whose metadata are in the order of a hash map.
pub(crate) fn serialized(
    entries: &BTreeMap<String, Entry>,
    metadata: &BTreeMap<String, String>,
) -> Result<Vec<u8>> {
    /// Unit of the length of a header, in which it is filled with blanks.
    const HEADER_UNIT_BYTES: usize = 8;
    let json = |text: serde_json::Result<String>| text.expect("names and numbers");
    // Wider elements come first, so that all are aligned.
    let mut entries: Vec<(&String, &Entry)> = entries.iter().collect();
    entries.sort_by_key(|(_, entry)| Reverse(entry.dtype));
    let mut members = Vec::with_capacity(entries.len() + 1);
    if !metadata.is_empty() {
        members.push(format!("\"__metadata__\":{}", json(serde_json::to_string(metadata))));
    }
    let mut end = 0;
    for (name, entry) in &entries {
        let start = end;
        end += entry.data_len();
        let info = TensorInfo {
            dtype: entry.dtype,
            shape: entry.dims.clone(),
            data_offsets: (start, end),
        };
        let [name, info] = [serde_json::to_string(name), serde_json::to_string(&info)].map(json);
        members.push(format!("{name}:{info}"));
    }
    let header = format!("{{{}}}", members.join(","));
    let header_bytes = header.len().next_multiple_of(HEADER_UNIT_BYTES);
    let mut file = Vec::with_capacity(size_of::<u64>() + header_bytes + end);
    file.extend((header_bytes as u64).to_le_bytes());
    file.extend(header.into_bytes());
    file.resize(size_of::<u64>() + header_bytes, b' ');
    for (_, entry) in entries {
        match &entry.content {
            Content::Bytes(bytes) => file.extend(bytes),
            Content::Tensor(tensor) => file.extend(tensor.to_bytes()?),
        }
    }
    Ok(file)
}

/// Writes a whole file to `path`; if that fails, an earlier file stays.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    files::write_file(path, bytes).map_err(|source| NnError::File { path: path.to_owned(), source })
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

/// The element type that a file stores as `dtype`, if there is one.
pub(crate) fn dtype_of_file(dtype: Dtype) -> Option<DType> {
    DType::ALL.into_iter().find(|&ours| file_dtype(ours) == dtype)
}

/// Reads every parameter and every buffer of `model` from `path`, in place. The file must not
/// change meanwhile.
///
/// # Errors
/// `File`, `Format`, and `Weights` if names, shapes or types differ. The model is then as before.
pub fn load(model: &mut dyn Parameters, path: &Path) -> Result<()> {
    from_safetensors(model, mapped(path)?.bytes(), path)
}

/// Maps the file `path` into memory. Pages are read only when they are used, so a check of the
/// header can refuse a file that is larger than memory. The file must stay as it is while it is
/// mapped.
///
/// # Errors
/// `File`.
#[expect(unsafe_code, reason = "the one place of this crate that maps a file")]
pub(crate) fn mapped(path: &Path) -> Result<MappedFile> {
    // SAFETY: the file is not changed by this crate, which replaces files by a rename. Functions
    // that read a file ask their caller for the same. Its bytes become numbers, of which every bit
    // pattern is valid, and a header that is parsed into values of its own.
    unsafe { MappedFile::open(path) }
        .map_err(|source| NnError::File { path: path.to_owned(), source })
}

/// The tensors of a safetensors file. The header is checked: lengths, offsets and shapes agree with
/// each other and with the contents, and no name occurs twice. Errors name `path`.
///
/// # Errors
/// `Format`; `Weights` for a name that occurs twice.
pub fn parse_safetensors<'a>(bytes: &'a [u8], path: &Path) -> Result<SafeTensors<'a>> {
    let format = |source| NnError::Format { path: path.to_owned(), source };
    let file = SafeTensors::deserialize(bytes).map_err(format)?;
    let (header_len, _) = SafeTensors::read_metadata(bytes).map_err(format)?;
    match name_twice(&bytes[size_of::<u64>()..][..header_len]) {
        None => Ok(file),
        Some(name) => {
            let problem = WeightsProblem::Twice;
            Err(NnError::Weights { path: path.to_owned(), name, problem })
        }
    }
}

/// A name that occurs twice in a header, which is a JSON object. The format does not allow this,
/// but its parser silently takes the last entry.
fn name_twice(header: &[u8]) -> Option<String> {
    let (mut names, mut depth, mut at) = (BTreeSet::new(), 0_usize, 0);
    while let Some(&byte) = header.get(at) {
        at += 1;
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                let start = at - 1;
                at += text_len(&header[at..]);
                let is_name = header[at..].trim_ascii_start().first() == Some(&b':');
                if depth == 1 && is_name {
                    // Two names that differ only in escapes are equal.
                    let name: String = serde_json::from_slice(&header[start..at]).ok()?;
                    if let Some(name) = names.replace(name) {
                        return Some(name);
                    }
                }
            }
            _ => {}
        }
    }
    None
}

/// Number of bytes of a JSON string after its opening quotation mark, including the closing one.
fn text_len(json: &[u8]) -> usize {
    let mut is_escaped = false;
    let end = json.iter().position(|&byte| {
        let is_end = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_end
    });
    end.map_or(json.len(), |end| end + 1)
}

/// [`load`] without a copy: parameters become views of the file and are frozen. The CPU reads them
/// when they are used, and they take no memory of the device ([`Tensor::from_mapped`]). The tensors
/// of [quantised](crate::quantize) layers are views too. Other buffers are copied, since training
/// writes them. Tensors that are not aligned in the file are copied too; on an NVIDIA device all
/// tensors are copied. The file must stay as it is for as long as the model uses it: a program that
/// wants other weights writes another file and renames it.
///
/// # Errors
/// The errors of [`load`], and `OutOfMemory` for the copies. The model is then as before.
pub fn map(model: &mut dyn Parameters, path: &Path) -> Result<()> {
    let mapped = mapped(path)?;
    let file = parse_safetensors(mapped.bytes(), path)?;
    check(model, &file, path)?;
    let mut weights = BTreeSet::new();
    model.visit(&mut |name, _| {
        weights.insert(name.to_owned());
    });
    model.visit_linears(&mut |layer, linear| {
        linear.visit_buffers(&mut |own, _| {
            let dot = if layer.is_empty() { "" } else { "." };
            weights.insert(format!("{layer}{dot}{own}"));
        });
    });
    let (mut values, mut outcome) = (BTreeMap::new(), Ok(()));
    model.visit_tensors(&mut |name, value| {
        if outcome.is_err() {
            return;
        }
        let view = file.tensor(name).expect("checked to be there");
        let (device, shape, dtype) = (value.device(), *value.shape(), value.dtype());
        let _scope = device.category(value.category());
        let offset_bytes = view.data().as_ptr().addr() - mapped.bytes().as_ptr().addr();
        let is_aligned = offset_bytes.is_multiple_of(dtype.size_bytes());
        let read = if is_aligned && weights.contains(name) {
            Tensor::from_mapped(device, shape, dtype, &mapped, offset_bytes)
        } else {
            Tensor::from_bytes(device, shape, dtype, view.data())
        };
        match read {
            Ok(read) => drop(values.insert(name.to_owned(), read)),
            Err(error) => outcome = Err(error),
        }
    });
    outcome?;
    model.visit_tensors(&mut |name, value| value.clone_from(&values[name]));
    model.visit(&mut |_, parameter| parameter.freeze());
    Ok(())
}

/// Reads every parameter and every buffer of `model` in place, from bytes in the format of a file
/// of [`save`]. Errors name `path`.
///
/// # Errors
/// The errors of [`load`] except `File`. The model is then as before.
pub fn from_safetensors(model: &mut dyn Parameters, bytes: &[u8], path: &Path) -> Result<()> {
    let file = parse_safetensors(bytes, path)?;
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
