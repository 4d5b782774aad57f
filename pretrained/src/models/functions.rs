//! Functions that the models share: number of classes, and dropout.

use lowtide_autograd::{Pass, Var};
use lowtide_nn::{Dropout, Module, NnResult};
use serde_json::{Map, Value};

use crate::config::Entries;
use crate::error::{EntryProblem, Result};

/// Number of classes of a configuration: the number of class names.
pub(super) fn classes(entries: &Entries) -> Result<usize> {
    let names = entries.value("id2label").and_then(Value::as_object).map(Map::len);
    if names == Some(0) {
        let (expected, found) = ("a name for each class", "{}".to_owned());
        return Err(entries.error("id2label", EntryProblem::Wrong { expected, found }));
    }
    let count = entries.optional_count("num_labels")?.or(entries.optional_count("_num_labels")?);
    match entries.optional_text("problem_type")? {
        None | Some("single_label_classification") => Ok(names.or(count).unwrap_or(2)),
        Some(other) => Err(entries.unsupported("problem_type", &Value::from(other))),
    }
}

pub(super) fn dropped(pass: &Pass, probability: f64, x: Var) -> NnResult<Var> {
    Dropout::new(probability)?.forward(pass, x)
}
