//! The call of a case: its arguments in the types of lowtide's methods. Every argument must be
//! read. An argument that no adapter reads is reported, never ignored.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use lowtide_autograd::{AutogradError, LeafId, Pass, Var};
use lowtide_nn::NnError;
use lowtide_tensor::{DType, Device, Tensor, TensorError};
use serde_json::Value;

use crate::case::{self, Case, Kind, Numbers, Values};
use crate::outcome::Reason;

/// The reason why an adapter has no results.
#[derive(Clone, Debug)]
pub enum Stop {
    /// lowtide returned an error.
    Error {
        /// The printed error.
        message: String,
        /// True for an error about element types.
        is_dtype: bool,
        /// True if values of a simulated device were read.
        is_unavailable: bool,
    },
    /// The case does not apply.
    NotApplicable(Reason, String),
}

impl Stop {
    /// A failure without an error of lowtide.
    pub(crate) fn failure(message: String) -> Self {
        Stop::error(message, None)
    }

    fn error(message: String, tensor: Option<&TensorError>) -> Self {
        Stop::Error {
            message,
            is_dtype: matches!(tensor, Some(TensorError::DType { .. })),
            is_unavailable: matches!(tensor, Some(TensorError::ValueUnavailable { .. })),
        }
    }
}

impl From<TensorError> for Stop {
    fn from(error: TensorError) -> Self {
        Stop::error(error.to_string(), Some(&error))
    }
}

impl From<AutogradError> for Stop {
    fn from(error: AutogradError) -> Self {
        let tensor = match &error {
            AutogradError::Tensor(tensor) => Some(tensor),
            _ => None,
        };
        Stop::error(error.to_string(), tensor)
    }
}

impl From<NnError> for Stop {
    fn from(error: NnError) -> Self {
        match error {
            NnError::Autograd(error) => error.into(),
            error => Stop::error(error.to_string(), None),
        }
    }
}

/// The result of an adapter.
pub type Result<T> = std::result::Result<T, Stop>;

/// A result of an operation.
pub enum Output {
    /// A result that may have a gradient.
    Var(Var),
    /// A result without a gradient.
    Tensor(Tensor),
}

impl From<Var> for Output {
    fn from(var: Var) -> Self {
        Output::Var(var)
    }
}

impl From<Tensor> for Output {
    fn from(tensor: Tensor) -> Self {
        Output::Tensor(tensor)
    }
}

impl Output {
    /// The value of the result.
    pub fn tensor(&self) -> &Tensor {
        match self {
            Output::Var(var) => var.value(),
            Output::Tensor(tensor) => tensor,
        }
    }
}

/// A single result.
pub(crate) fn one(output: impl Into<Output>) -> Result<Vec<Output>> {
    Ok(vec![output.into()])
}

/// The place of an argument: its position, if it has one, and its name.
#[derive(Clone, Copy, Debug)]
pub struct At(pub Option<usize>, pub &'static str);

/// An argument with a position.
pub(crate) const fn at(position: usize, name: &'static str) -> At {
    At(Some(position), name)
}

/// An argument that is given only by name.
pub(crate) const fn named(name: &'static str) -> At {
    At(None, name)
}

/// Options without an effect here: there is one device, leaves request gradients, and strides of
/// results are not compared. lowtide decides whether an operation works in place.
const IGNORED: [&str; 5] = ["device", "requires_grad", "memory_format", "layout", "inplace"];

/// The values that a run reads back from the device: sizes and places that are tensors in the peer
/// and numbers of the program in lowtide. A simulated device has no values, so its run gets the
/// values of the earlier run.
#[derive(Default)]
pub struct Reads {
    values: RefCell<Vec<Numbers>>,
    /// The index of the next recorded value to return; `None` while values are read.
    told: Option<Cell<usize>>,
}

impl Reads {
    /// A copy that returns the recorded values in the order in which they were read.
    pub fn again(&self) -> Self {
        Reads { values: self.values.clone(), told: Some(Cell::new(0)) }
    }

    fn read(&self, tensor: &Tensor) -> Result<Numbers> {
        if let Some(next) = &self.told {
            let told = self.values.borrow().get(next.replace(next.get() + 1)).cloned();
            return told.ok_or_else(|| Stop::failure("another run reads other values".to_owned()));
        }
        let numbers = Values::of(tensor)?.numbers;
        self.values.borrow_mut().push(numbers.clone());
        Ok(numbers)
    }
}

/// The arguments of a case.
pub struct Call<'a> {
    case: &'a Case,
    reads: &'a Reads,
    /// The pass that records the operation.
    pub pass: Pass,
    /// The device of the operands.
    pub device: Device,
    operands: Vec<Var>,
    read: RefCell<BTreeSet<String>>,
    constants: RefCell<Vec<usize>>,
    parameters: RefCell<Vec<(usize, LeafId)>>,
}

impl<'a> Call<'a> {
    /// Uploads the operands; operands that need gradients are leaves.
    pub(crate) fn new(
        case: &'a Case,
        file: &[u8],
        device: &Device,
        pass: Pass,
        reads: &'a Reads,
        leaves: &[LeafId],
    ) -> Result<Self> {
        let mut operands = Vec::new();
        for (index, stored) in case.tensors[..case.operand_count()].iter().enumerate() {
            let value = stored.upload(device, file)?;
            operands.push(match case.wants_gradient.iter().position(|&wants| wants == index) {
                Some(place) => pass.leaf(leaves[place], &value)?,
                None => pass.constant(value),
            });
        }
        let (device, read, constants) = (device.clone(), RefCell::default(), RefCell::default());
        let parameters = RefCell::default();
        Ok(Call { case, reads, pass, device, operands, read, constants, parameters })
    }

    /// The case that is called.
    pub fn case(&self) -> &'a Case {
        self.case
    }

    /// The elements of a tensor, read back for an argument that lowtide takes as numbers of the
    /// program.
    pub fn numbers_of(&self, tensor: &Tensor) -> Result<Numbers> {
        self.reads.read(tensor)
    }

    /// The element type of the case.
    pub fn dtype(&self) -> DType {
        case::dtype(&self.case.dtype).unwrap_or(DType::F32)
    }

    /// `Ok` if every argument has been read.
    pub(crate) fn check_all_read(&self) -> Result<()> {
        let read = self.read.borrow();
        let positions = (0..self.case.arguments.len()).map(|index| index.to_string());
        let names = self
            .case
            .options
            .iter()
            .filter(|(name, value)| !IGNORED.contains(&name.as_str()) && !value.is_null());
        let all = positions.chain(names.map(|(name, _)| name.clone()));
        match all.into_iter().find(|argument| !read.contains(argument)) {
            Some(argument) if self.case.kind == Kind::Error => {
                Err(Stop::NotApplicable(Reason::DoesNotCompile, format!("no {argument}")))
            }
            Some(argument) => Err(Stop::NotApplicable(Reason::Argument, argument)),
            None => Ok(()),
        }
    }

    /// The operands that need a gradient but were read as constants.
    pub(crate) fn without_gradient(&self) -> Vec<usize> {
        self.constants.borrow().clone()
    }

    /// The operands that are parameters of a layer, with their leaf identities in the layer.
    pub(crate) fn parameters(&self) -> Vec<(usize, LeafId)> {
        self.parameters.borrow().clone()
    }

    /// The value of a parameter. The gradient of the parameter is then the gradient of `leaf`.
    pub fn parameter(&self, name: &str, leaf: LeafId) -> Option<Tensor> {
        let index = self.case.tensor_index(self.case.state.get(name)?)?;
        self.parameters.borrow_mut().push((index, leaf));
        Some(self.operands[index].value().clone())
    }

    /// The value of a buffer.
    pub fn buffer(&self, name: &str) -> Option<Tensor> {
        let index = self.case.tensor_index(self.case.state.get(name)?)?;
        Some(self.operands[index].value().clone())
    }

    /// The argument, if it is given and not `None`.
    pub fn value(&self, At(position, name): At) -> Option<&'a Value> {
        let by_position = position.and_then(|index| self.case.arguments.get(index));
        let value = match by_position {
            Some(value) => {
                self.read.borrow_mut().insert(position.unwrap_or_default().to_string());
                value
            }
            None => {
                let value = self.case.options.get(name)?;
                self.read.borrow_mut().insert(name.to_owned());
                value
            }
        };
        (!value.is_null()).then_some(value)
    }

    /// All arguments from a position on.
    pub fn rest(&self, from: usize) -> &'a [Value] {
        let mut read = self.read.borrow_mut();
        read.extend((from..self.case.arguments.len()).map(|index| index.to_string()));
        self.case.arguments.get(from..).unwrap_or_default()
    }

    /// The verdict on an argument of another kind than the parameter's.
    pub fn mismatch(&self, At(_, name): At, value: &Value) -> Stop {
        if let Some(dtype) = value.get("foreign").and_then(Value::as_str) {
            return Stop::NotApplicable(Reason::NoSuchType, dtype.to_owned());
        }
        let reason = match self.case.kind {
            Kind::Error => Reason::DoesNotCompile,
            Kind::Sample | Kind::Strided | Kind::Function => Reason::Form,
        };
        let mut text = format!("{name} = {value}");
        text.truncate(60);
        Stop::NotApplicable(reason, text)
    }

    /// The verdict on a missing argument.
    fn missing(&self, At(_, name): At) -> Stop {
        match self.case.kind {
            Kind::Error => Stop::NotApplicable(Reason::DoesNotCompile, format!("no {name}")),
            Kind::Sample | Kind::Strided | Kind::Function => {
                Stop::NotApplicable(Reason::Form, format!("no {name}"))
            }
        }
    }

    /// The tensor that a value refers to; `None` if the value is no tensor.
    pub fn var_of(&self, value: &Value) -> Option<Var> {
        let index = self.case.tensor_index(value)?;
        self.operands.get(index).cloned()
    }

    /// The argument as a tensor.
    pub fn var(&self, at: At) -> Result<Var> {
        self.optional_var(at)?.ok_or_else(|| self.missing(at))
    }

    /// The argument as a tensor, if it is given.
    pub fn optional_var(&self, at: At) -> Result<Option<Var>> {
        let Some(value) = self.value(at) else { return Ok(None) };
        self.var_of(value).map(Some).ok_or_else(|| self.mismatch(at, value))
    }

    /// The argument as several tensors.
    pub fn vars(&self, at: At) -> Result<Vec<Var>> {
        let value = self.value(at).ok_or_else(|| self.missing(at))?;
        let items = value.as_array().ok_or_else(|| self.mismatch(at, value))?;
        let var = |item| self.var_of(item).ok_or_else(|| self.mismatch(at, item));
        items.iter().map(var).collect()
    }

    /// The argument as a tensor without a gradient in lowtide.
    pub fn constant(&self, at: At) -> Result<Tensor> {
        self.optional_constant(at)?.ok_or_else(|| self.missing(at))
    }

    /// The argument as a tensor without a gradient in lowtide, if it is given.
    pub fn optional_constant(&self, at: At) -> Result<Option<Tensor>> {
        let Some(var) = self.optional_var(at)? else { return Ok(None) };
        let index = self.value(at).and_then(|value| self.case.tensor_index(value));
        let index = index.filter(|index| self.case.wants_gradient.contains(index));
        self.constants.borrow_mut().extend(index);
        Ok(Some(var.into_value()))
    }

    /// The argument as a number; a truth value counts as 0 or 1.
    pub fn number(&self, at: At) -> Result<Option<f64>> {
        let Some(value) = self.value(at) else { return Ok(None) };
        let special = value.get("float").and_then(Value::as_str).and_then(|text| text.parse().ok());
        let number = value.as_f64().or(special);
        let number = number.or(value.as_bool().map(|flag| f64::from(u8::from(flag))));
        number.map(Some).ok_or_else(|| self.mismatch(at, value))
    }

    /// The argument as a whole number.
    pub fn integer(&self, at: At) -> Result<Option<isize>> {
        let Some(value) = self.value(at) else { return Ok(None) };
        self.integer_of(at, value).map(Some)
    }

    fn integer_of(&self, at: At, value: &Value) -> Result<isize> {
        let integer = value.as_i64().and_then(|value| isize::try_from(value).ok());
        integer.ok_or_else(|| self.mismatch(at, value))
    }

    /// The argument as a count.
    pub fn count(&self, at: At) -> Result<Option<usize>> {
        let Some(value) = self.value(at) else { return Ok(None) };
        self.count_of(at, value).map(Some)
    }

    /// The value as a count: a whole number from 0 on.
    pub fn count_of(&self, at: At, value: &Value) -> Result<usize> {
        let count = value.as_u64().and_then(|value| usize::try_from(value).ok());
        count.ok_or_else(|| self.mismatch(at, value))
    }

    /// The argument as a list of counts; a single count is a list of one.
    pub fn counts(&self, at: At) -> Result<Option<Vec<usize>>> {
        let Some(value) = self.value(at) else { return Ok(None) };
        let items = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        items.iter().map(|item| self.count_of(at, item)).collect::<Result<_>>().map(Some)
    }

    /// The argument as two counts; a single count stands for both.
    pub fn pair(&self, at: At, default: usize) -> Result<[usize; 2]> {
        match self.counts(at)?.as_deref() {
            None | Some([]) => Ok([default; 2]),
            Some(&[both]) => Ok([both; 2]),
            Some(&[height, width]) => Ok([height, width]),
            Some(other) => Err(self.mismatch(at, &Value::from(other.to_vec()))),
        }
    }

    /// The argument as a single count, which may be in a list.
    pub fn single(&self, at: At, default: usize) -> Result<usize> {
        match self.counts(at)?.as_deref() {
            None | Some([]) => Ok(default),
            Some(&[one]) => Ok(one),
            Some(other) => Err(self.mismatch(at, &Value::from(other.to_vec()))),
        }
    }

    /// The argument as a list of whole numbers; a single number is a list of one.
    pub fn integers(&self, at: At) -> Result<Option<Vec<isize>>> {
        let Some(value) = self.value(at) else { return Ok(None) };
        let items = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        items.iter().map(|item| self.integer_of(at, item)).collect::<Result<_>>().map(Some)
    }

    /// The argument as a truth value.
    pub fn flag(&self, at: At) -> Result<Option<bool>> {
        let Some(value) = self.value(at) else { return Ok(None) };
        let flag = value.as_bool().or(value.as_i64().map(|number| number != 0));
        flag.map(Some).ok_or_else(|| self.mismatch(at, value))
    }

    /// The argument as a word.
    pub fn text(&self, at: At) -> Result<Option<&'a str>> {
        let Some(value) = self.value(at) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.mismatch(at, value))
    }

    /// The argument as an element type.
    pub fn element_type(&self, at: At) -> Result<Option<DType>> {
        let Some(value) = self.value(at) else { return Ok(None) };
        let name = value.get("dtype").and_then(Value::as_str);
        let name = name.ok_or_else(|| self.mismatch(at, value))?;
        match case::dtype(name) {
            Some(dtype) => Ok(Some(dtype)),
            None => Err(Stop::NotApplicable(Reason::NoSuchType, name.to_owned())),
        }
    }
}

/// A form that lowtide does not have.
pub(crate) fn no_form<T>(text: &str) -> Result<T> {
    Err(Stop::NotApplicable(Reason::Form, text.to_owned()))
}

/// An error for a word or number that has no value in the parameter's Rust type. For a sample, the
/// form is missing in lowtide.
pub(crate) fn no_such<T>(call: &Call<'_>, text: &str) -> Result<T> {
    let reason = match call.case.kind {
        Kind::Error => Reason::DoesNotCompile,
        Kind::Sample | Kind::Strided | Kind::Function => Reason::Form,
    };
    Err(Stop::NotApplicable(reason, text.to_owned()))
}
