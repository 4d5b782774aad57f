//! A case from a suite's script: one JSON line, with its tensors in a separate file of bytes.
//!
//! `OP.jsonl` has a line for each case. A tensor is an index into the line's list `tensors`. An
//! entry of the list has the type, shape, strides and offset in elements, and the place of the
//! storage in `OP.bin`: `len` elements in little-endian order from byte `at` on. Entries that are
//! empty or 0 are left out, as are the strides of contiguous tensors. In arguments, a tensor is
//! `{"tensor": 0}`. Values that JSON lacks are objects too: `{"float": "inf"}`, `{"dtype": "f32"}`,
//! and `{"foreign": "torch.complex64"}` for a tensor of a type that lowtide lacks.

use std::fs;
use std::path::{Path, PathBuf};

use lowtide_tensor::{DType, Device, Element, Shape, Tensor, TensorResult, bf16, f16};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::onnx::graph::Graph;

/// The expectation of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Results and gradients equal the peer's.
    Sample,
    /// Results are right for operands that are not contiguous.
    Strided,
    /// An error, because the peer raises one.
    Error,
    /// A function of the peer, expanded to a graph of simpler operations.
    Function,
}

/// One line of a suite.
#[derive(Clone, Debug, Deserialize)]
pub struct Case {
    /// The operation, under the peer's name.
    pub op: String,
    /// The name of the peer's test, if it has one.
    #[serde(default)]
    pub name: String,
    /// The expectation of the case.
    pub kind: Kind,
    /// The element type of the samples.
    pub dtype: String,
    /// Number of the sample among the samples of its operation and type.
    #[serde(default)]
    pub index: usize,
    /// The arguments by position.
    #[serde(default)]
    pub arguments: Vec<Value>,
    /// The arguments by name.
    #[serde(default)]
    pub options: Map<String, Value>,
    /// The computation, if it is more than the call of one operation.
    #[serde(default)]
    pub graph: Option<Graph>,
    /// Parameters and buffers of a module, by name.
    #[serde(default)]
    pub state: Map<String, Value>,
    /// True if a module is in training.
    #[serde(default)]
    pub training: bool,
    /// The tensors of this line: first the tensors of the arguments, of the options and of the
    /// state.
    #[serde(default)]
    pub tensors: Vec<Stored>,
    /// The indices of the tensors that need gradients.
    #[serde(default)]
    pub wants_gradient: Vec<usize>,
    /// The peer's results.
    #[serde(default)]
    pub outputs: Vec<Value>,
    /// For each result, the gradient that the backward pass starts from; null for none.
    #[serde(default)]
    pub cotangents: Vec<Value>,
    /// The peer's gradients, in the order of `wants_gradient`; null for an operand without
    /// influence.
    #[serde(default)]
    pub gradients: Vec<Value>,
    /// The results in f64, if the peer's own results are not close to them.
    #[serde(default)]
    pub truth: Option<Truth>,
    /// Allowed difference, relative to the expected value.
    #[serde(default)]
    pub rtol: f64,
    /// Allowed difference, absolute.
    #[serde(default)]
    pub atol: f64,
    /// The test that sets the tolerance, if the type does not.
    #[serde(default)]
    pub tolerance_from: Option<String>,
    /// The exception of the peer, and a pattern of its message.
    #[serde(default)]
    pub raises: Option<(String, String)>,
    /// The reason why the peer could not run its own sample.
    #[serde(default)]
    pub unusable: Option<String>,
}

/// Results in f64.
#[derive(Clone, Debug, Deserialize)]
pub struct Truth {
    /// True if the peer's own results are within half of the tolerance of f64.
    #[serde(default)]
    pub is_close: bool,
    /// The results in f64, in the form of [`Case::outputs`].
    pub outputs: Vec<Value>,
    /// The gradients in f64, in the form of [`Case::gradients`].
    pub gradients: Vec<Value>,
    /// For each of the peer's results and then gradients, the distance from f64 at the worst
    /// element, in the worst of some samples whose operands differ by a unit of the last place;
    /// empty if not measured.
    #[serde(default)]
    pub nearby: Vec<f64>,
}

/// A tensor of a case.
#[derive(Clone, Debug, Deserialize)]
pub struct Stored {
    /// The element type's name.
    pub dtype: String,
    /// The sizes of the dimensions.
    pub shape: Vec<usize>,
    /// Elements between neighbours along each dimension; empty for a contiguous tensor.
    #[serde(default)]
    pub strides: Vec<usize>,
    /// The first element's place in the storage.
    #[serde(default)]
    pub offset: usize,
    /// The first byte of the storage in the file.
    pub at: usize,
    /// Number of elements of the storage.
    pub len: usize,
}

/// The cases of one operation, and their bytes.
#[derive(Debug)]
pub struct Cases {
    /// The cases in the order of the file.
    pub cases: Vec<Case>,
    /// The bytes of all storages; [`Stored::at`] is an offset into these bytes.
    pub bytes: Vec<u8>,
}

impl Cases {
    /// Reads `OP.jsonl` and `OP.bin`.
    ///
    /// # Errors
    /// One line with the file and its fault.
    pub fn read(lines: &Path) -> Result<Self, String> {
        let problem = |error: &dyn std::fmt::Display| format!("{}: {error}", lines.display());
        let text = fs::read_to_string(lines).map_err(|error| problem(&error))?;
        let cases: Result<Vec<Case>, _> = text.lines().map(serde_json::from_str).collect();
        let bytes = fs::read(lines.with_extension("bin")).map_err(|error| problem(&error))?;
        let mut cases = Cases { cases: cases.map_err(|error| problem(&error))?, bytes };
        let bytes_len = cases.bytes.len();
        for tensor in cases.cases.iter_mut().flat_map(|case| &mut case.tensors) {
            tensor.fill_strides();
            tensor.check(bytes_len).map_err(|error| problem(&error))?;
        }
        Ok(cases)
    }

    /// The files of cases in a folder, sorted.
    ///
    /// # Errors
    /// One line about a folder that cannot be read.
    pub fn files(folder: &Path) -> Result<Vec<PathBuf>, String> {
        let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        files.retain(|file| file.extension().is_some_and(|extension| extension == "jsonl"));
        files.sort();
        Ok(files)
    }
}

impl Case {
    /// The tensor that a value of this case refers to; `None` if the value is no tensor.
    pub fn tensor(&self, value: &Value) -> Option<&Stored> {
        self.tensor_index(value).map(|index| &self.tensors[index])
    }

    /// The index of the tensor that a value of this case refers to; `None` if the value is no
    /// tensor.
    pub fn tensor_index(&self, value: &Value) -> Option<usize> {
        let index = usize::try_from(value.get("tensor")?.as_u64()?).ok()?;
        (index < self.tensors.len()).then_some(index)
    }

    /// Number of tensors in the arguments, options and state.
    pub fn operand_count(&self) -> usize {
        let named = self.options.values().chain(self.state.values());
        self.arguments.iter().chain(named).map(tensors_up_to).max().unwrap_or(0)
    }

    /// True for a case of a module.
    pub fn is_module(&self) -> bool {
        self.op.starts_with("nn.") && !self.op.starts_with("nn.functional.")
    }
}

/// The largest index of a tensor plus 1. A tensor that is given twice has one index.
fn tensors_up_to(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(tensors_up_to).max().unwrap_or(0),
        _ => value.get("tensor").and_then(Value::as_u64).map_or(0, |index| index as usize + 1),
    }
}

/// The type with this name.
pub fn dtype(name: &str) -> Option<DType> {
    DType::ALL.into_iter().find(|dtype| dtype.name() == name)
}

impl Stored {
    /// Fills in the strides of a contiguous tensor.
    fn fill_strides(&mut self) {
        if self.strides.is_empty() {
            let step = |step: &mut usize, &dim: &usize| {
                let stride = *step;
                *step *= dim.max(1);
                Some(stride)
            };
            self.strides = self.shape.iter().rev().scan(1, step).collect();
            self.strides.reverse();
        }
    }

    /// `Ok` if the type is known, the elements are within the storage, and the storage is within
    /// `file_len` bytes.
    fn check(&self, file_len: usize) -> Result<(), String> {
        let Some(dtype) = dtype(&self.dtype) else {
            return Err(format!("element type `{}` is not known", self.dtype));
        };
        let end = self.len.checked_mul(dtype.size_bytes()).and_then(|len| len.checked_add(self.at));
        let last = |(dim, stride): (&usize, &usize)| (dim.max(&1) - 1) * stride;
        let span = 1 + self.shape.iter().zip(&self.strides).map(last).sum::<usize>();
        let is_empty = self.shape.contains(&0);
        if self.shape.len() != self.strides.len()
            || end.is_none_or(|end| end > file_len)
            || (!is_empty && self.offset + span > self.len)
        {
            return Err(format!("a tensor of shape {:?} does not lie in the file", self.shape));
        }
        Ok(())
    }

    fn dtype(&self) -> DType {
        dtype(&self.dtype).expect("checked when it was read")
    }

    /// The storage's bytes.
    fn bytes<'a>(&self, file: &'a [u8]) -> &'a [u8] {
        &file[self.at..self.at + self.len * self.dtype().size_bytes()]
    }

    /// The tensor on `device`, with its strides: a view of a storage with the bytes of the file.
    ///
    /// # Errors
    /// `OutOfMemory`, and `Index` for more dimensions than a tensor can have.
    pub fn upload(&self, device: &Device, file: &[u8]) -> TensorResult<Tensor> {
        let dtype = self.dtype();
        if self.shape.contains(&0) {
            return Tensor::empty(device, &self.shape[..], dtype);
        }
        let storage = Tensor::from_bytes(device, [self.len], dtype, self.bytes(file))?;
        // Dimensions that step through memory, from the largest stride to the smallest.
        let mut axes: Vec<usize> = (0..self.shape.len()).collect();
        axes.retain(|&axis| self.shape[axis] > 1 && self.strides[axis] > 0);
        axes.sort_by_key(|&axis| std::cmp::Reverse(self.strides[axis]));
        let reach = |axis: usize| (self.shape[axis] - 1) * self.strides[axis];
        let mut span = 1 + axes.iter().map(|&axis| reach(axis)).sum::<usize>();
        let mut view = storage.narrow(0, self.offset, span)?;
        for (place, &axis) in axes.iter().enumerate() {
            span -= reach(axis);
            view = if place + 1 < axes.len() {
                view.unfold(place, span, self.strides[axis])?
            } else {
                view.slice(place, 0..reach(axis) + 1, self.strides[axis])?
            };
        }
        if axes.is_empty() {
            view = view.select(0, 0)?;
        }
        // Restores the order of the shape, including the dimensions that do not step.
        let mut order: Vec<usize> = (0..axes.len()).collect();
        order.sort_by_key(|&place| axes[place]);
        view = view.permute(&order)?;
        for axis in (0..self.shape.len()).filter(|axis| !axes.contains(axis)) {
            view = view.unsqueeze(axis)?;
        }
        view.expand(&self.shape[..])
    }

    /// The elements in row-major order.
    pub fn values(&self, file: &[u8]) -> Values {
        let (dtype, shape) = (self.dtype(), Shape::new(&self.shape));
        let storage = numbers(dtype, self.bytes(file));
        let mut places = vec![self.offset];
        for (&dim, &stride) in self.shape.iter().zip(&self.strides) {
            let next = |&place: &usize| (0..dim).map(move |at| place + at * stride);
            places = places.iter().flat_map(next).collect();
        }
        let pick = |places: &[usize]| match &storage {
            Numbers::Floats(all) => Numbers::Floats(places.iter().map(|&at| all[at]).collect()),
            Numbers::Integers(all) => Numbers::Integers(places.iter().map(|&at| all[at]).collect()),
        };
        Values { dtype, shape, numbers: pick(&places) }
    }
}

/// A tensor's elements on the host.
#[derive(Clone, Debug)]
pub struct Values {
    /// The type of the tensor.
    pub dtype: DType,
    /// The sizes of the dimensions.
    pub shape: Shape,
    /// The values in row-major order.
    pub numbers: Numbers,
}

/// Elements in the widest type of their kind.
#[derive(Clone, Debug)]
pub enum Numbers {
    /// Values of any float type.
    Floats(Vec<f64>),
    /// Values of any other type.
    Integers(Vec<i64>),
}

impl Values {
    /// Reads the values of a tensor.
    ///
    /// # Errors
    /// `ValueUnavailable` on a simulated device.
    pub fn of(tensor: &Tensor) -> TensorResult<Self> {
        let (dtype, shape) = (tensor.dtype(), *tensor.shape());
        Ok(Values { dtype, shape, numbers: numbers(dtype, &tensor.to_bytes()?) })
    }
}

impl Values {
    /// The floats rounded to `dtype`. The type of the values does not change.
    pub fn rounded(&self, dtype: DType) -> Self {
        let Numbers::Floats(numbers) = &self.numbers else { return self.clone() };
        let round = |&x: &f64| match dtype {
            DType::F32 => f64::from(x as f32),
            DType::F16 => Element::to_f64(f16::from_f64(x)),
            DType::BF16 => Element::to_f64(bf16::from_f64(x)),
            _ => x,
        };
        Values { numbers: Numbers::Floats(numbers.iter().map(round).collect()), ..self.clone() }
    }
}

/// The numbers in `bytes`.
fn numbers(dtype: DType, bytes: &[u8]) -> Numbers {
    fn floats<const N: usize>(bytes: &[u8], read: impl Fn([u8; N]) -> f64) -> Numbers {
        Numbers::Floats(bytes.as_chunks().0.iter().map(|&x| read(x)).collect())
    }
    fn integers<const N: usize>(bytes: &[u8], read: impl Fn([u8; N]) -> i64) -> Numbers {
        Numbers::Integers(bytes.as_chunks().0.iter().map(|&x| read(x)).collect())
    }
    match dtype {
        DType::F64 => floats(bytes, f64::from_le_bytes),
        DType::F32 => floats(bytes, |x| f32::from_le_bytes(x).into()),
        DType::F16 => floats(bytes, |x| Element::to_f64(f16::from_le_bytes(x))),
        DType::BF16 => floats(bytes, |x| Element::to_f64(bf16::from_le_bytes(x))),
        DType::I64 => integers(bytes, i64::from_le_bytes),
        DType::I32 => integers(bytes, |x| i32::from_le_bytes(x).into()),
        DType::U8 => integers(bytes, |[x]: [u8; 1]| x.into()),
        DType::Bool => integers(bytes, |[x]: [u8; 1]| i64::from(x != 0)),
        other => panic!("{other} is new here"),
    }
}
