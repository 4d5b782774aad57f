//! A graph from `onnx_nodes.py`: nodes in the order of execution, each with the names of its inputs
//! and outputs.

use serde::Deserialize;
use serde_json::{Map, Value};

/// The computation of a case, as nodes.
#[derive(Clone, Debug, Deserialize)]
pub struct Graph {
    /// The version of ONNX's operators.
    pub opset: usize,
    /// The names of the arguments, in their order.
    pub inputs: Vec<String>,
    /// The names of the results, in their order.
    pub outputs: Vec<String>,
    /// The nodes, in an order in which they can run.
    pub nodes: Vec<Node>,
}

/// An operator applied to values.
#[derive(Clone, Debug, Deserialize)]
pub struct Node {
    /// The operator. The name of an operator outside ONNX's own domain begins with the domain.
    pub op: String,
    /// The names of the inputs; an empty name stands for an input that is left out.
    pub inputs: Vec<String>,
    /// The names of the outputs; an empty name stands for an output that is left out.
    pub outputs: Vec<String>,
    /// The attributes. A tensor is `{"tensor": 0}`, as in the arguments.
    pub attributes: Map<String, Value>,
}
