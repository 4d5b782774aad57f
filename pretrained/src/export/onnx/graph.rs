//! An ONNX graph that is being built: nodes in the order of computation, small constants, and
//! weights in a separate data file.

use lowtide_tensor::{DType, Tensor};

use super::proto::Message;
use crate::error::Result;
use crate::export::pieces::for_each_piece;
use crate::files::Written;

/// The alignment of weights: pages, for readers that map the file.
const ALIGN_BYTES: u64 = 4096;

/// Name of the data file with the weights.
pub(super) const DATA_FILE: &str = "model.onnx.data";

/// `TensorProto.DataType`.
pub(super) const FLOAT: i64 = 1;
pub(super) const INT64: i64 = 7;
pub(super) const FLOAT16: i64 = 10;

/// The float type of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnnxType {
    /// 32 bits.
    F32,
    /// 16 bits; norms, softmax and angles are computed in f32.
    F16,
}

impl OnnxType {
    fn element(self) -> i64 {
        match self {
            OnnxType::F32 => FLOAT,
            OnnxType::F16 => FLOAT16,
        }
    }

    fn size_bytes(self) -> u64 {
        match self {
            OnnxType::F32 => 4,
            OnnxType::F16 => 2,
        }
    }
}

/// A value of the graph, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Value(String);

impl Value {
    /// A weight that is already in the graph.
    pub(super) fn named(name: &str) -> Self {
        Value(name.to_owned())
    }
}

/// An attribute of a node.
pub(super) enum Attribute<'a> {
    Int(&'a str, i64),
    Float(&'a str, f32),
    Ints(&'a str, &'a [i64]),
}

/// A tensor of the data file.
struct Weight {
    tensor: Tensor,
    addend: f64,
    offset_bytes: u64,
}

/// A size of an input or output: a number, or the name of a size that is known only at run time.
type Size<'a> = std::result::Result<i64, &'a str>;

pub(super) struct Graph {
    kind: OnnxType,
    /// Nodes and constants, as fields of `GraphProto`.
    message: Message,
    weights: Vec<Weight>,
    weights_end_bytes: u64,
    count: usize,
}

impl Graph {
    /// A graph without nodes, whose floats are of `kind`.
    pub(super) fn new(kind: OnnxType) -> Self {
        let (message, weights) = (Message::default(), Vec::new());
        Graph { kind, message, weights, weights_end_bytes: 0, count: 0 }
    }

    /// An input or output of the graph: a list of sizes, each a number or a name.
    fn info(name: &str, elements: i64, sizes: &[Size<'_>]) -> Message {
        let mut shape = Message::default();
        for size in sizes {
            shape.push_message(
                1,
                &match size {
                    Ok(count) => Message::default().int(1, *count),
                    Err(name) => Message::default().text(2, name),
                },
            );
        }
        let tensor = Message::default().int(1, elements).message(2, &shape);
        Message::default().text(1, name).message(2, &Message::default().message(1, &tensor))
    }

    /// The number of the graph's float type in the format.
    pub(super) fn element(&self) -> i64 {
        self.kind.element()
    }

    /// The input `name` with elements of a type.
    pub(super) fn input(&mut self, name: &str, elements: i64, sizes: &[Size<'_>]) -> Value {
        self.message.push_message(11, &Self::info(name, elements, sizes));
        Value(name.to_owned())
    }

    /// Makes `value` the output `name`.
    pub(super) fn output(&mut self, name: &str, value: &Value, sizes: &[Size<'_>]) {
        let node = Message::default().text(1, &value.0).text(2, name).text(4, "Identity");
        self.message.push_message(1, &node);
        self.message.push_message(12, &Self::info(name, self.kind.element(), sizes));
    }

    fn fresh(&mut self, of: &str) -> String {
        self.count += 1;
        format!("{of}_{}", self.count)
    }

    /// The single output of a new node.
    pub(super) fn node(
        &mut self,
        operation: &str,
        inputs: &[&Value],
        attributes: &[Attribute<'_>],
    ) -> Value {
        let [output] = self.node_of(operation, inputs, attributes);
        output
    }

    /// The outputs of a new node.
    pub(super) fn node_of<const N: usize>(
        &mut self,
        operation: &str,
        inputs: &[&Value],
        attributes: &[Attribute<'_>],
    ) -> [Value; N] {
        let outputs = std::array::from_fn(|_| Value(self.fresh(operation)));
        let mut node = Message::default();
        inputs.iter().for_each(|input| node.push(1, input.0.as_bytes()));
        outputs.iter().for_each(|output: &Value| node.push(2, output.0.as_bytes()));
        node = node.text(3, &outputs[0].0).text(4, operation);
        for attribute in attributes {
            // The last field of each attribute is its type.
            let message = Message::default();
            node.push_message(
                5,
                &match *attribute {
                    Attribute::Float(name, x) => message.text(1, name).float(2, x).int(20, 1),
                    Attribute::Int(name, x) => message.text(1, name).int(3, x).int(20, 2),
                    Attribute::Ints(name, all) => {
                        let named = message.text(1, name);
                        all.iter().fold(named, |message, &x| message.int(8, x)).int(20, 7)
                    }
                },
            );
        }
        self.message.push_message(1, &node);
        outputs
    }

    fn constant(&mut self, elements: i64, sizes: &[usize], bytes: &[u8]) -> Value {
        let name = self.fresh("constant");
        let tensor = Message::default();
        let tensor = sizes.iter().fold(tensor, |tensor, &count| tensor.int(1, count as i64));
        let tensor = tensor.int(2, elements).text(8, &name).bytes(9, bytes);
        self.message.push_message(5, &tensor);
        Value(name)
    }

    /// A list of integers.
    pub(super) fn ints(&mut self, values: &[i64]) -> Value {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant(INT64, &[values.len()], &bytes)
    }

    /// One integer, without a dimension.
    pub(super) fn int(&mut self, value: i64) -> Value {
        self.constant(INT64, &[], &value.to_le_bytes())
    }

    /// Numbers in f32, even in a graph of another type.
    pub(super) fn floats(&mut self, sizes: &[usize], values: &[f64]) -> Value {
        let bytes = values.iter().flat_map(|&value| (value as f32).to_le_bytes());
        let bytes: Vec<u8> = bytes.collect();
        self.constant(FLOAT, sizes, &bytes)
    }

    /// One number of the graph's type, without a dimension.
    pub(super) fn number(&mut self, value: f64) -> Value {
        match self.kind {
            OnnxType::F32 => self.floats(&[], &[value]),
            OnnxType::F16 => {
                let bytes = lowtide_tensor::f16::from_f64(value).to_le_bytes();
                self.constant(FLOAT16, &[], &bytes)
            }
        }
    }

    /// A weight of the data file, in the graph's type: the elements of `tensor` in row-major order,
    /// plus `addend`.
    pub(super) fn weight(&mut self, name: &str, tensor: Tensor, addend: f64) -> Value {
        let offset_bytes = self.weights_end_bytes.next_multiple_of(ALIGN_BYTES);
        let size_bytes = tensor.element_count() as u64 * self.kind.size_bytes();
        self.weights_end_bytes = offset_bytes + size_bytes;
        let message = Message::default();
        let sizes = tensor.shape().iter();
        let mut message = sizes.fold(message, |message, &count| message.int(1, count as i64));
        message = message.int(2, self.kind.element()).text(8, name);
        let entries = [
            ("location", DATA_FILE.to_owned()),
            ("offset", offset_bytes.to_string()),
            ("length", size_bytes.to_string()),
        ];
        for (key, value) in entries {
            message.push_message(13, &Message::default().text(1, key).text(2, &value));
        }
        /// `TensorProto.DataLocation`.
        const EXTERNAL: i64 = 1;
        self.message.push_message(5, &message.int(14, EXTERNAL));
        self.weights.push(Weight { tensor, addend, offset_bytes });
        Value(name.to_owned())
    }

    /// The file of the graph.
    pub(super) fn model(&self) -> Vec<u8> {
        /// Version of the ONNX format.
        const FORMAT_VERSION: i64 = 8;
        /// Version of the operations that the nodes use.
        const OPERATIONS_VERSION: i64 = 17;
        let operations = Message::default().text(1, "").int(2, OPERATIONS_VERSION);
        let graph = self.message.clone().text(2, "model");
        let model = Message::default().int(1, FORMAT_VERSION).text(2, "lowtide");
        let model = model.text(3, env!("CARGO_PKG_VERSION"));
        model.message(7, &graph).message(8, &operations).into_bytes()
    }

    /// Writes the data file, one piece of a weight at a time.
    ///
    /// # Errors
    /// `File`, `OutOfMemory`, `ValueUnavailable` on a simulated device.
    pub(super) fn write_weights(&self, file: &mut Written<'_>) -> Result<()> {
        for Weight { tensor, addend, offset_bytes } in &self.weights {
            file.pad(ALIGN_BYTES)?;
            debug_assert_eq!(file.size_bytes, *offset_bytes);
            for_each_piece(tensor, |mut piece| {
                if *addend != 0.0 {
                    piece = piece.add_scalar(*addend)?;
                }
                match self.kind {
                    OnnxType::F32 => {}
                    OnnxType::F16 => piece = piece.to_dtype(DType::F16)?,
                }
                file.write(&piece.to_bytes()?)
            })?;
        }
        Ok(())
    }
}

/// Operations of two values, and operations without attributes to choose.
impl Graph {
    pub(super) fn add(&mut self, a: &Value, b: &Value) -> Value {
        self.node("Add", &[a, b], &[])
    }

    pub(super) fn sub(&mut self, a: &Value, b: &Value) -> Value {
        self.node("Sub", &[a, b], &[])
    }

    pub(super) fn mul(&mut self, a: &Value, b: &Value) -> Value {
        self.node("Mul", &[a, b], &[])
    }

    pub(super) fn matmul(&mut self, a: &Value, b: &Value) -> Value {
        self.node("MatMul", &[a, b], &[])
    }

    pub(super) fn scaled(&mut self, x: &Value, factor: f64) -> Value {
        let factor = self.number(factor);
        self.mul(x, &factor)
    }

    /// `x` with these sizes: 0 keeps the size of `x`, -1 is computed from the rest.
    pub(super) fn reshape(&mut self, x: &Value, sizes: &[i64]) -> Value {
        let sizes = self.ints(sizes);
        self.node("Reshape", &[x, &sizes], &[])
    }

    pub(super) fn permute(&mut self, x: &Value, axes: &[i64]) -> Value {
        self.node("Transpose", &[x], &[Attribute::Ints("perm", axes)])
    }

    /// Parts of x along an axis, with `lens` elements.
    pub(super) fn split<const N: usize>(
        &mut self,
        x: &Value,
        axis: i64,
        lens: [usize; N],
    ) -> [Value; N] {
        let lens = self.ints(&lens.map(|len| len as i64));
        self.node_of("Split", &[x, &lens], &[Attribute::Int("axis", axis)])
    }

    pub(super) fn concat(&mut self, parts: &[&Value], axis: i64) -> Value {
        self.node("Concat", parts, &[Attribute::Int("axis", axis)])
    }

    /// Converts `x` from the graph's type to f32.
    pub(super) fn widened(&mut self, x: &Value) -> Value {
        match self.kind {
            OnnxType::F32 => x.clone(),
            OnnxType::F16 => self.node("Cast", &[x], &[Attribute::Int("to", FLOAT)]),
        }
    }

    /// Converts `x` from f32 to the graph's type.
    pub(super) fn narrowed(&mut self, x: &Value) -> Value {
        match self.kind {
            OnnxType::F32 => x.clone(),
            OnnxType::F16 => self.node("Cast", &[x], &[Attribute::Int("to", FLOAT16)]),
        }
    }
}
