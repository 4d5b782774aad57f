//! Operators that compute losses.

use lowtide_autograd::Var;
use lowtide_nn::{NllOptions, nll, terms};
use lowtide_tensor::DType;

use super::Family;
use super::node::NodeCall;
use super::views::as_type;
use crate::call::{Output, Result, one};

pub(super) const OPS: Family = &[
    ("NegativeLogLikelihoodLoss", |node| {
        let logarithms = node.var(0)?;
        one(likelihood(node, logarithms)?)
    }),
    ("SoftmaxCrossEntropyLoss", |node| {
        let logarithms = node.var(0)?.log_softmax(1)?;
        Ok(vec![likelihood(node, logarithms.clone())?, logarithms.into()])
    }),
];

/// The loss with labels and weights, the second and the third input.
fn likelihood(node: &NodeCall<'_>, logarithms: Var) -> Result<Output> {
    let labels = as_type(node, node.tensor(1)?, DType::I64)?;
    let weight = node.optional_var(2).map(Var::into_value);
    let ignore_index = node.attribute_integer("ignore_index")?;
    // Without `ignore_index`, every label counts.
    let ignore_index = ignore_index.map_or(i64::MIN, |index| index as i64);
    let options = NllOptions { ignore_index, weight: weight.as_ref() };
    let dtype = logarithms.value().dtype();
    match node.text("reduction")?.unwrap_or("mean") {
        "none" => Ok(terms::nll(logarithms, &labels, options)?.into()),
        "sum" => {
            let sum = nll(logarithms, &labels, options)?.sum;
            Ok(super::converted(node, sum, dtype)?.reshape([])?.into())
        }
        "mean" => {
            let mean = nll(logarithms, &labels, options)?.mean()?;
            Ok(super::converted(node, mean, dtype)?.reshape([])?.into())
        }
        other => Err(node.wrong(&format!("reduction = {other}"))),
    }
}
