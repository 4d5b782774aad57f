//! A node that runs: its inputs as values, its attributes in Rust's types. Every input and every
//! attribute must be read. An input or attribute that no adapter reads is reported, never ignored.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use lowtide_autograd::Var;
use lowtide_tensor::{DType, Device, Tensor};
use serde_json::Value;

use super::graph::Node;
use crate::call::{Call, Result, Stop};
use crate::case::Numbers;
use crate::outcome::Reason;

/// ONNX's numbers of element types, with the names in errors.
const TYPES: [(i64, &str, Option<DType>); 21] = [
    (1, "float32", Some(DType::F32)),
    (2, "uint8", Some(DType::U8)),
    (3, "int8", None),
    (4, "uint16", None),
    (5, "int16", None),
    (6, "int32", Some(DType::I32)),
    (7, "int64", Some(DType::I64)),
    (8, "string", None),
    (9, "bool", Some(DType::Bool)),
    (10, "float16", Some(DType::F16)),
    (11, "float64", Some(DType::F64)),
    (12, "uint32", None),
    (13, "uint64", None),
    (14, "complex64", None),
    (15, "complex128", None),
    (16, "bfloat16", Some(DType::BF16)),
    (17, "float8e4m3fn", None),
    (18, "float8e4m3fnuz", None),
    (19, "float8e5m2", None),
    (20, "float8e5m2fnuz", None),
    (21, "uint4", None),
];

/// A node with the values of its inputs.
pub(crate) struct NodeCall<'a> {
    call: &'a Call<'a>,
    node: &'a Node,
    inputs: Vec<Option<Var>>,
    /// The version of the operators.
    pub(crate) opset: usize,
    read_inputs: RefCell<BTreeSet<usize>>,
    read_attributes: RefCell<BTreeSet<String>>,
}

impl<'a> NodeCall<'a> {
    /// A node whose inputs are among `values`.
    pub(crate) fn new(
        call: &'a Call<'a>,
        node: &'a Node,
        values: &BTreeMap<&str, Var>,
        opset: usize,
    ) -> Result<Self> {
        let input = |name: &String| match values.get(name.as_str()) {
            Some(value) => Ok(Some(value.clone())),
            None if name.is_empty() => Ok(None),
            None => Err(Stop::failure(format!("{}: no value is called `{name}`", node.op))),
        };
        let inputs = node.inputs.iter().map(input).collect::<Result<_>>()?;
        let (read_inputs, read_attributes) = (RefCell::default(), RefCell::default());
        Ok(NodeCall { call, node, inputs, opset, read_inputs, read_attributes })
    }

    /// `Ok` if every input and attribute has been read.
    pub(crate) fn check_all_read(&self) -> Result<()> {
        let unread = |name: String| Stop::NotApplicable(Reason::Argument, self.named(&name));
        let (inputs, attributes) = (self.read_inputs.borrow(), self.read_attributes.borrow());
        let given = self.inputs.iter().enumerate().filter(|(_, input)| input.is_some());
        if let Some((index, _)) = given.into_iter().find(|(index, _)| !inputs.contains(index)) {
            return Err(unread(format!("input {index}")));
        }
        match self.node.attributes.keys().find(|name| !attributes.contains(*name)) {
            Some(name) => Err(unread(name.clone())),
            None => Ok(()),
        }
    }

    fn named(&self, text: &str) -> String {
        format!("{}: {text}", self.node.op)
    }

    /// The device of the values.
    pub(crate) fn device(&self) -> &Device {
        &self.call.device
    }

    /// The verdict on a form of the operator that lowtide does not have.
    pub(crate) fn no_form<T>(&self, text: &str) -> Result<T> {
        Err(Stop::NotApplicable(Reason::Form, self.named(text)))
    }

    /// The failure for a value that ONNX does not allow.
    pub(crate) fn wrong(&self, text: &str) -> Stop {
        Stop::failure(self.named(text))
    }

    /// A tensor as a value without a gradient.
    pub(crate) fn constant(&self, tensor: Tensor) -> Var {
        self.call.pass.constant(tensor)
    }

    /// The pass that layers run in.
    pub(crate) fn pass(&self) -> &lowtide_autograd::Pass {
        &self.call.pass
    }

    /// Number of outputs, including absent ones.
    pub(crate) fn output_count(&self) -> usize {
        self.node.outputs.len()
    }

    /// True if an output is not left out.
    pub(crate) fn wants(&self, index: usize) -> bool {
        self.node.outputs.get(index).is_some_and(|name| !name.is_empty())
    }

    /// Number of inputs, including absent ones.
    pub(crate) fn input_count(&self) -> usize {
        self.inputs.len()
    }

    /// An input, if it is not left out.
    pub(crate) fn optional_var(&self, index: usize) -> Option<Var> {
        self.read_inputs.borrow_mut().insert(index);
        self.inputs.get(index).cloned().flatten()
    }

    /// A required input.
    pub(crate) fn var(&self, index: usize) -> Result<Var> {
        let missing = || self.wrong(&format!("input {index} is left out"));
        self.optional_var(index).ok_or_else(missing)
    }

    /// A required input without a gradient in lowtide.
    pub(crate) fn tensor(&self, index: usize) -> Result<Tensor> {
        Ok(self.var(index)?.into_value())
    }

    /// All inputs, in order. An absent input is a failure.
    pub(crate) fn vars(&self) -> Result<Vec<Var>> {
        (0..self.inputs.len()).map(|index| self.var(index)).collect()
    }

    /// The type of the first input, or the case's type if there is no input.
    pub(crate) fn dtype(&self) -> DType {
        let first = self.inputs.first().and_then(Option::as_ref);
        first.map_or(self.call.dtype(), |var| var.value().dtype())
    }

    /// The whole numbers in an input, if the input is not left out.
    pub(crate) fn integers(&self, index: usize) -> Result<Option<Vec<isize>>> {
        let Some(var) = self.optional_var(index) else { return Ok(None) };
        self.integers_of(var.value()).map(Some)
    }

    /// The whole numbers in a tensor.
    pub(crate) fn integers_of(&self, tensor: &Tensor) -> Result<Vec<isize>> {
        Ok(match self.call.numbers_of(tensor)? {
            Numbers::Integers(values) => values.into_iter().map(|x| x as isize).collect(),
            Numbers::Floats(values) => values.into_iter().map(|x| x as isize).collect(),
        })
    }

    /// The numbers in an input, if the input is not left out.
    pub(crate) fn floats(&self, index: usize) -> Result<Option<Vec<f64>>> {
        let Some(var) = self.optional_var(index) else { return Ok(None) };
        Ok(Some(match self.call.numbers_of(var.value())? {
            Numbers::Integers(values) => values.into_iter().map(|x| x as f64).collect(),
            Numbers::Floats(values) => values,
        }))
    }

    /// The single number in an input, if the input is not left out.
    pub(crate) fn number(&self, index: usize) -> Result<Option<f64>> {
        match self.floats(index)?.as_deref() {
            None => Ok(None),
            Some(&[number]) => Ok(Some(number)),
            Some(_) => Err(self.wrong(&format!("input {index} is not one number"))),
        }
    }

    /// Whole numbers that are an input in newer versions and an attribute in older versions.
    pub(crate) fn integers_or(
        &self,
        index: usize,
        name: &'static str,
    ) -> Result<Option<Vec<isize>>> {
        match self.integers(index)? {
            Some(values) => Ok(Some(values)),
            None => self.attribute_integers(name),
        }
    }

    fn attribute(&self, name: &str) -> Option<&'a Value> {
        let value = self.node.attributes.get(name)?;
        self.read_attributes.borrow_mut().insert(name.to_owned());
        Some(value)
    }

    fn mismatch(&self, name: &str, value: &Value, wanted: &str) -> Stop {
        if let Some(kind) = value.get("foreign").and_then(Value::as_str) {
            let reason = if kind == "graph" { Reason::ControlFlow } else { Reason::NoSuchType };
            return Stop::NotApplicable(reason, self.named(&format!("{name} is of type {kind}")));
        }
        self.wrong(&format!("attribute `{name}` is {value}, not {wanted}"))
    }

    /// Marks attributes without an effect here as read.
    pub(crate) fn ignore(&self, names: &[&'static str]) {
        for name in names {
            self.attribute(name);
        }
    }

    /// An attribute that is a whole number.
    pub(crate) fn attribute_integer(&self, name: &'static str) -> Result<Option<isize>> {
        let Some(value) = self.attribute(name) else { return Ok(None) };
        let number = value.as_i64().and_then(|number| isize::try_from(number).ok());
        number.map(Some).ok_or_else(|| self.mismatch(name, value, "a whole number"))
    }

    /// An attribute that is a count.
    pub(crate) fn attribute_count(&self, name: &'static str) -> Result<Option<usize>> {
        let Some(value) = self.attribute(name) else { return Ok(None) };
        let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
        number.map(Some).ok_or_else(|| self.mismatch(name, value, "a number of things"))
    }

    /// An attribute that is a truth value, which ONNX stores as a number.
    pub(crate) fn flag(&self, name: &'static str) -> Result<Option<bool>> {
        Ok(self.attribute_integer(name)?.map(|number| number != 0))
    }

    /// An attribute that is a list of whole numbers.
    pub(crate) fn attribute_integers(&self, name: &'static str) -> Result<Option<Vec<isize>>> {
        let Some(value) = self.attribute(name) else { return Ok(None) };
        let number = |item: &Value| item.as_i64().and_then(|number| isize::try_from(number).ok());
        let items = value.as_array().and_then(|items| items.iter().map(number).collect());
        items.map(Some).ok_or_else(|| self.mismatch(name, value, "a list of whole numbers"))
    }

    /// An attribute that is a list of counts.
    pub(crate) fn attribute_counts(&self, name: &'static str) -> Result<Option<Vec<usize>>> {
        let Some(values) = self.attribute_integers(name)? else { return Ok(None) };
        let counts = values.iter().map(|&value| usize::try_from(value).ok()).collect();
        let negative = || self.wrong(&format!("attribute `{name}` has a negative number"));
        Option::map(counts, Some).ok_or_else(negative)
    }

    /// An attribute that is a number.
    pub(crate) fn attribute_number(&self, name: &'static str) -> Result<Option<f64>> {
        let Some(value) = self.attribute(name) else { return Ok(None) };
        let special = value.get("float").and_then(Value::as_str).and_then(|text| text.parse().ok());
        let number = value.as_f64().or(special);
        number.map(Some).ok_or_else(|| self.mismatch(name, value, "a number"))
    }

    /// An attribute that is a word.
    pub(crate) fn text(&self, name: &'static str) -> Result<Option<&'a str>> {
        let Some(value) = self.attribute(name) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.mismatch(name, value, "a word"))
    }

    /// An attribute that is a list of words.
    pub(crate) fn texts(&self, name: &'static str) -> Result<Option<Vec<&'a str>>> {
        let Some(value) = self.attribute(name) else { return Ok(None) };
        let items = value.as_array().and_then(|items| items.iter().map(Value::as_str).collect());
        items.map(Some).ok_or_else(|| self.mismatch(name, value, "a list of words"))
    }

    /// An attribute that is a tensor.
    pub(crate) fn attribute_tensor(&self, name: &'static str) -> Result<Option<Var>> {
        let Some(value) = self.attribute(name) else { return Ok(None) };
        let var = self.call.var_of(value);
        var.map(Some).ok_or_else(|| self.mismatch(name, value, "a tensor"))
    }

    /// An attribute that is an element type.
    pub(crate) fn element_type(&self, name: &'static str) -> Result<Option<DType>> {
        let Some(number) = self.attribute_integer(name)? else { return Ok(None) };
        let entry = TYPES.iter().find(|(code, ..)| *code == number as i64);
        match entry {
            Some((_, _, Some(dtype))) => Ok(Some(*dtype)),
            Some((_, foreign, None)) => {
                Err(Stop::NotApplicable(Reason::NoSuchType, (*foreign).to_owned()))
            }
            None => Err(Stop::NotApplicable(Reason::NoSuchType, format!("type {number}"))),
        }
    }

    /// A dimension, counted from the first. Negative numbers count from the end.
    pub(crate) fn axis(&self, axis: isize, rank: usize) -> Result<usize> {
        let place =
            if axis < 0 { rank.checked_add_signed(axis) } else { Some(axis.unsigned_abs()) };
        let place = place.filter(|&place| place < rank.max(1));
        place.ok_or_else(|| self.wrong(&format!("there is no dimension {axis} of {rank}")))
    }

    /// An attribute that is a dimension, counted from the first.
    pub(crate) fn attribute_axis(
        &self,
        name: &'static str,
        default: isize,
        rank: usize,
    ) -> Result<usize> {
        let axis = self.attribute_integer(name)?.unwrap_or(default);
        self.axis(axis, rank)
    }
}
