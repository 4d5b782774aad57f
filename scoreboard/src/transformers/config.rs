//! A model's `config.json` and its batches. What nothing reads is reported, never ignored.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use lowtide_tensor::Tensor;
use serde_json::{Map, Value};

use crate::call::{Result, Stop};
use crate::outcome::Reason;

/// Entries without an influence on what a model computes in these runs: how its weights were made,
/// what generates text, names of classes, and dropout, which is checked to be 0.
const IGNORED: [&str; 29] = [
    "architectures",
    "bos_token_id",
    "chunk_size_feed_forward",
    "classifier_dropout",
    "dtype",
    "encoder_stride",
    "eos_token_id",
    "id2label",
    "initializer_factor",
    "initializer_range",
    "is_encoder_decoder",
    "label2id",
    "max_window_layers",
    "model_type",
    "out_features",
    "out_indices",
    "pad_token_id",
    "pooler_act",
    "pooler_output_size",
    "pretraining_tp",
    "stage_names",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "transformers_version",
    "use_cache",
    "use_sliding_window",
];

/// Entries of a configuration, by name.
pub(super) struct Config {
    entries: Map<String, Value>,
    read: RefCell<BTreeSet<String>>,
}

impl Config {
    pub(super) fn new(entries: Map<String, Value>) -> Self {
        Config { entries, read: RefCell::default() }
    }

    /// An entry that is there and not null.
    pub(super) fn value(&self, name: &str) -> Option<&Value> {
        self.read.borrow_mut().insert(name.to_owned());
        self.entries.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn count(&self, name: &str) -> Result<usize> {
        match self.optional_count(name) {
            Some(count) => Ok(count),
            None => Err(unknown(name, "a count")),
        }
    }

    pub(super) fn optional_count(&self, name: &str) -> Option<usize> {
        self.value(name).and_then(Value::as_u64).map(|count| count as usize)
    }

    pub(super) fn counts(&self, name: &str) -> Result<Vec<usize>> {
        let items = self.value(name).and_then(Value::as_array);
        let count = |item: &Value| Some(item.as_u64()? as usize);
        let counts = items.and_then(|items| items.iter().map(count).collect());
        counts.ok_or_else(|| unknown(name, "counts"))
    }

    pub(super) fn number(&self, name: &str) -> Result<f64> {
        self.value(name).and_then(Value::as_f64).ok_or_else(|| unknown(name, "a number"))
    }

    pub(super) fn text(&self, name: &str) -> Result<&str> {
        self.value(name).and_then(Value::as_str).ok_or_else(|| unknown(name, "a text"))
    }

    /// Whether an entry is true; absent ones are not.
    pub(super) fn flag(&self, name: &str) -> bool {
        self.value(name) == Some(&Value::Bool(true))
    }

    /// Checks that dropout probabilities are 0: no two libraries drop the same.
    pub(super) fn no_dropout(&self, names: &[&str]) -> Result<()> {
        names.iter().try_for_each(|name| match self.number(name)? {
            0.0 => Ok(()),
            _ => Err(Stop::NotApplicable(Reason::Random, (*name).to_owned())),
        })
    }

    /// Checks that options that are not built here have the value that stands for their absence.
    pub(super) fn without(&self, names: &[&str]) -> Result<()> {
        let is_set = |name: &&&str| self.value(name).is_some_and(|value| value != false);
        names.iter().find(is_set).map_or(Ok(()), |name| Err(missing(name)))
    }

    pub(super) fn check_all_read(&self) -> Result<()> {
        let read = self.read.borrow();
        let is_known = |name: &str| IGNORED.contains(&name) || read.contains(name);
        let unread = self.entries.iter().find(|(name, value)| !is_known(name) && !value.is_null());
        unread.map_or(Ok(()), |(name, _)| Err(missing(name)))
    }
}

fn unknown(name: &str, what: &str) -> Stop {
    Stop::failure(format!("the configuration has no `{name}` that is {what}"))
}

/// An option of the configuration that no part of lowtide stands for here.
pub(super) fn missing(name: &str) -> Stop {
    Stop::NotApplicable(Reason::Argument, name.to_owned())
}

/// The tensors of a step, by name.
pub(super) struct Batch {
    tensors: BTreeMap<String, Tensor>,
    read: RefCell<BTreeSet<String>>,
}

impl Batch {
    pub(super) fn new(tensors: BTreeMap<String, Tensor>) -> Self {
        Batch { tensors, read: RefCell::default() }
    }

    pub(super) fn tensor(&self, name: &str) -> Result<&Tensor> {
        self.read.borrow_mut().insert(name.to_owned());
        let missing = || Stop::failure(format!("the batch has no `{name}`"));
        self.tensors.get(name).ok_or_else(missing)
    }

    pub(super) fn check_all_read(&self) -> Result<()> {
        let read = self.read.borrow();
        let unread = self.tensors.keys().find(|name| !read.contains(*name));
        unread.map_or(Ok(()), |name| Err(missing(name)))
    }
}
