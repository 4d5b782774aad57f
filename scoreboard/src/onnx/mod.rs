//! The node tests of ONNX: graphs of one node, or of the simpler nodes of an expanded function.
//!
//! For each operator there is a call of lowtide by ONNX's name: one file per family, one entry per
//! name. Some operators are a few calls, as a user would write them. Only sizes and places, such as
//! axes, shapes and repeats, are read back from the device.

mod attention;
mod elementwise;
pub mod graph;
mod indexing;
mod linear_attention;
mod losses;
mod missing;
mod node;
mod norms;
mod optimizers;
mod products;
mod recurrent;
mod reductions;
mod resize;
mod sampling;
mod unpool;
mod views;
mod windows;

use std::collections::BTreeMap;

use lowtide_autograd::Var;
use lowtide_tensor::{DType, Shape};
use serde_json::Value;

use crate::call::{Call, Output, Result, Stop};
use crate::outcome::Reason;
use graph::Graph;
use node::NodeCall;

pub use missing::{DIFFERENCES, FAILURES, MISSING};

/// The call for a node: maps inputs and attributes to outputs, in the order of the operator's
/// outputs.
pub(crate) type NodeAdapter = fn(&NodeCall<'_>) -> Result<Vec<Output>>;

/// The operators of a family with their calls.
type Family = &'static [(&'static str, NodeAdapter)];

const FAMILIES: [Family; 18] = [
    attention::OPS,
    elementwise::OPS,
    elementwise::OF_ONE,
    elementwise::OF_TWO,
    elementwise::COMPARISONS,
    indexing::OPS,
    linear_attention::OPS,
    losses::OPS,
    norms::OPS,
    optimizers::OPS,
    products::OPS,
    recurrent::OPS,
    reductions::OPS,
    resize::OPS,
    sampling::OPS,
    unpool::OPS,
    views::OPS,
    windows::OPS,
];

/// The call for an operator.
pub(crate) fn find(op: &str) -> Option<NodeAdapter> {
    let all = FAMILIES.iter().copied().flatten();
    all.into_iter().find(|(name, _)| *name == op).map(|(_, adapter)| *adapter)
}

/// Every operator with a call.
pub fn names() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().copied().flatten().map(|(name, _)| *name)
}

/// Runs the graph of a case.
pub(crate) fn run(call: &Call<'_>) -> Result<Vec<Output>> {
    let case = call.case();
    let graph = case.graph.as_ref().ok_or_else(|| Stop::failure("there is no graph".to_owned()))?;
    check_scope(call, graph)?;
    let mut values: BTreeMap<&str, Var> = BTreeMap::new();
    for (name, value) in graph.inputs.iter().zip(call.rest(0)) {
        if let Some(var) = call.var_of(value) {
            values.insert(name, var);
        }
    }
    // Nodes read the tensors of their attributes themselves.
    call.value(crate::call::named("constants"));
    for node in &graph.nodes {
        let adapter = find(&node.op).ok_or_else(|| missing::stop(&node.op))?;
        let node_call = NodeCall::new(call, node, &values, graph.opset)?;
        let outputs = adapter(&node_call).map_err(|stop| of_integers(stop, &node_call))?;
        node_call.check_all_read()?;
        if outputs.len() < node.outputs.iter().filter(|name| !name.is_empty()).count() {
            return node_call.no_form(&format!("output {}", outputs.len()));
        }
        for (name, output) in node.outputs.iter().zip(outputs) {
            let var = match output {
                Output::Var(var) => var,
                Output::Tensor(tensor) => call.pass.constant(tensor),
            };
            values.insert(name, var);
        }
    }
    let result = |name: &String| match values.get(name.as_str()) {
        Some(value) => Ok(Output::Var(value.clone())),
        None => Err(Stop::failure(format!("no node gives `{name}`"))),
    };
    graph.outputs.iter().map(result).collect()
}

/// `Ok` if lowtide has the types and the operators of a graph. The check runs before the first
/// node, so that the reason does not depend on the results of earlier nodes.
fn check_scope(call: &Call<'_>, graph: &Graph) -> Result<()> {
    let missing = || graph.nodes.iter().filter(|node| find(&node.op).is_none());
    let stops = || missing().map(|node| missing::stop(&node.op));
    let is_out =
        |stop: &Stop| matches!(stop, Stop::NotApplicable(reason, _) if !reason.is_missing());
    if let Some(stop) = stops().find(is_out) {
        return Err(stop);
    }
    let attributes = graph.nodes.iter().flat_map(|node| node.attributes.values());
    let case = call.case();
    let all = case.arguments.iter().chain(&case.outputs).chain(attributes);
    let foreign = |value: &Value| value.get("foreign").and_then(Value::as_str).map(str::to_owned);
    if let Some(kind) = all.filter_map(foreign).find(|kind| kind != "graph") {
        return Err(Stop::NotApplicable(Reason::NoSuchType, kind));
    }
    match stops().next() {
        Some(stop) => Err(stop),
        None => Ok(()),
    }
}

/// Turns an error about types, in a node of integers or truth values, into a verdict: lowtide has
/// the operation only for floats.
fn of_integers(stop: Stop, node: &NodeCall<'_>) -> Stop {
    match stop {
        Stop::Error { message, is_dtype: true, .. } if !node.dtype().is_float() => {
            Stop::NotApplicable(Reason::OfIntegers, message)
        }
        other => other,
    }
}

/// The shape of `x`, with `sizes` in place of the dimensions `from..to`.
fn with_sizes(x: &Shape, from: usize, sizes: &[usize], to: usize) -> Vec<usize> {
    [&x[..from], sizes, &x[to..]].concat()
}

/// A value converted to `dtype`. Floats keep their gradient.
fn converted(node: &NodeCall<'_>, x: Var, dtype: DType) -> Result<Var> {
    if x.value().dtype() == dtype {
        return Ok(x);
    }
    Ok(if dtype.is_float() && x.value().dtype().is_float() {
        x.to_dtype(dtype)?
    } else {
        node.constant(x.value().to_dtype(dtype)?)
    })
}
