//! A graph as `onnx_nodes.py` writes it: nodes in the order in which they can run, each with the
//! names of the values that it takes and gives.

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
    /// The nodes in an order in which they can run.
    pub nodes: Vec<Node>,
}

/// An operator applied to values.
#[derive(Clone, Debug, Deserialize)]
pub struct Node {
    /// The operator; one of another domain than ONNX's own begins with the domain.
    pub op: String,
    /// The names of the inputs; an empty one stands for an input that is left out.
    pub inputs: Vec<String>,
    /// The names of the outputs; an empty one stands for an output that is left out.
    pub outputs: Vec<String>,
    /// The attributes. A tensor is `{"tensor": 0}`, as in the arguments.
    pub attributes: Map<String, Value>,
}
