//! lowtide's calls for operations, by the peer's names: one file per family, one entry per name. A
//! few names are two or three calls, as a user would write them.

mod activations;
mod assembled;
mod compositions;
mod creation;
mod elementwise;
mod images;
mod indexing;
mod losses;
mod missing;
mod modules;
mod norms;
mod optimizers;
mod places;
mod products;
mod reductions;
mod statistics;
mod views;
mod windows;

use crate::call::{At, Call, Output, Result, at};
use crate::case::Case;
use crate::onnx;

pub use missing::{MISSING, Missing};

/// The call for a name: maps arguments to results.
pub type Adapter = fn(&Call<'_>) -> Result<Vec<Output>>;

/// The names of a family with their calls.
type Family = &'static [(&'static str, Adapter)];

const FAMILIES: [Family; 22] = [
    activations::OPS,
    activations::OF_ONE,
    assembled::OPS,
    compositions::OPS,
    creation::OPS,
    elementwise::OPS,
    elementwise::OF_ONE,
    elementwise::TESTS,
    elementwise::OF_TWO,
    elementwise::COMPARISONS,
    images::OPS,
    indexing::OPS,
    losses::OPS,
    norms::OPS,
    places::OPS,
    products::OPS,
    reductions::OPS,
    reductions::SUMS,
    reductions::COUNTS,
    statistics::OPS,
    views::OPS,
    windows::OPS,
];

/// The first argument of most operations.
const INPUT: At = at(0, "input");

/// The call for a name.
pub fn find(op: &str) -> Option<Adapter> {
    if let Some(operator) = op.strip_prefix("onnx.") {
        return onnx::find(operator).map(|_| onnx::run as Adapter);
    }
    let function = modules::FUNCTIONS.iter().find(|(name, _)| *name == op);
    let op = function.map_or(op, |(_, function)| function);
    let all = FAMILIES.iter().copied().flatten().chain(modules::layers()).chain(optimizers::OPS);
    all.into_iter().find(|(name, _)| *name == op).map(|(_, adapter)| *adapter)
}

/// Every name of `opinfo` with a call.
pub fn names() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().copied().flatten().map(|(name, _)| *name)
}

/// Every name of `optiminfo` with an optimizer.
pub fn optimizers() -> impl Iterator<Item = &'static str> {
    optimizers::OPS.iter().map(|(name, _)| *name)
}

/// Every name of `moduleinfo` with a layer.
pub fn modules() -> impl Iterator<Item = &'static str> {
    let layers = modules::layers().map(|(name, _)| *name);
    modules::FUNCTIONS.iter().map(|(name, _)| *name).chain(layers)
}

/// The entry of [`MISSING`] for a name of the suite, with the reason why it has no call.
pub fn missing(name: &str) -> Option<&'static Missing> {
    MISSING.iter().chain(onnx::MISSING).find(|missing| missing.has(name))
}

/// The number of cases of an operation and type that are known to fail, and the reason.
pub fn known_failures(op: &str, dtype: &str) -> (usize, &'static str) {
    let mut failures = missing::FAILURES.iter().chain(onnx::FAILURES);
    let known = failures.find(|(of, in_type, ..)| *of == op && *in_type == dtype);
    known.map_or((0, "not known"), |(_, _, count, why)| (*count, *why))
}

/// The documented difference from the peer that explains a sample's failure, if there is one.
pub fn documented_difference(case: &Case, why: &str) -> Option<&'static str> {
    let differences = missing::DIFFERENCES.iter().chain(onnx::DIFFERENCES);
    let known = differences.filter(|(op, types, part, _)| {
        let is_type = types.is_empty() || types.contains(&case.dtype.as_str());
        *op == case.op && is_type && why.contains(part)
    });
    known.map(|(.., text)| *text).next()
}

/// The meaning in lowtide of arguments that are an error in the peer, if there is one.
pub fn meaning_of_error(case: &Case) -> Option<&'static str> {
    let (_, message) = case.raises.as_ref()?;
    let meanings = missing::MEANINGS.iter();
    let known = meanings.filter(|(op, part, _)| *op == case.op && message.contains(part));
    known.map(|(.., meaning)| *meaning).next()
}
