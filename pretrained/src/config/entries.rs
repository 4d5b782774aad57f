//! Entries of a `config.json`. An entry that no code reads is refused by name, never ignored.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{EntryProblem, PretrainedError, Result, shortened};

/// Largest count that a configuration may hold, more than any model needs. Sums and products of
/// such counts fit in 128 bits, and a layer's counts can be dimensions of a tensor.
const COUNT_MAX: u64 = 1 << 31;

/// Entries of a configuration, by name. A null entry counts as absent.
#[derive(Debug)]
pub struct Entries<'a> {
    path: &'a Path,
    /// The name of the enclosing entry, and a dot.
    prefix: String,
    /// The entries, shared by all layers so that no layer has a copy.
    entries: &'a Map<String, Value>,
    read: RefCell<BTreeSet<&'static str>>,
}

impl<'a> Entries<'a> {
    pub(crate) fn new(path: &'a Path, entries: &'a Map<String, Value>) -> Self {
        Entries { path, prefix: String::new(), entries, read: RefCell::default() }
    }

    pub(crate) fn error(&self, name: &str, problem: EntryProblem) -> PretrainedError {
        let entry = format!("{}{}", self.prefix, shortened(name));
        PretrainedError::Entry { path: self.path.to_owned(), entry, problem }
    }

    fn wrong(&self, name: &str, value: &Value, expected: &'static str) -> PretrainedError {
        self.error(name, EntryProblem::Wrong { expected, found: shortened(&value.to_string()) })
    }

    /// The error for an entry that this crate does not support.
    pub(crate) fn unsupported(&self, name: &str, value: &Value) -> PretrainedError {
        self.error(name, EntryProblem::Unsupported { found: shortened(&value.to_string()) })
    }

    fn of<T>(
        &self,
        name: &'static str,
        expected: &'static str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.value(name) else { return Ok(None) };
        convert(value).map(Some).ok_or_else(|| self.wrong(name, value, expected))
    }

    fn needed<T>(&self, name: &str, found: Option<T>) -> Result<T> {
        found.ok_or_else(|| self.error(name, EntryProblem::Missing))
    }

    /// The value of an entry that exists and is not null.
    pub(crate) fn value(&self, name: &'static str) -> Option<&'a Value> {
        self.read.borrow_mut().insert(name);
        self.entries.get(name).filter(|value| !value.is_null())
    }

    /// True if an entry exists, even as null.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    pub(crate) fn optional_count(&self, name: &'static str) -> Result<Option<usize>> {
        self.of(name, "a count", count_of)
    }

    pub(crate) fn count(&self, name: &'static str) -> Result<usize> {
        self.needed(name, self.optional_count(name)?)
    }

    pub(crate) fn counts(&self, name: &'static str) -> Result<Vec<usize>> {
        const LEN_MAX: usize = 4096;
        let counts = self.of(name, "a list of counts", |value| {
            let items = value.as_array().filter(|items| items.len() <= LEN_MAX)?;
            items.iter().map(count_of).collect()
        })?;
        self.needed(name, counts)
    }

    /// The number of a token.
    pub(crate) fn optional_token(&self, name: &'static str) -> Result<Option<i64>> {
        self.of(name, "a token", |value| value.as_i64().filter(|token| *token >= 0))
    }

    pub(crate) fn optional_number(&self, name: &'static str) -> Result<Option<f64>> {
        self.of(name, "a number", |value| value.as_f64().filter(|number| number.is_finite()))
    }

    pub(crate) fn number(&self, name: &'static str) -> Result<f64> {
        self.needed(name, self.optional_number(name)?)
    }

    pub(crate) fn positive(&self, name: &'static str) -> Result<f64> {
        let number = self.number(name)?;
        if number > 0.0 { Ok(number) } else { Err(self.wrong(name, &number.into(), "above 0")) }
    }

    /// A probability of dropout, or `absent` if there is no entry.
    pub(crate) fn probability(&self, name: &'static str, absent: f64) -> Result<f64> {
        let is_one = |number: &f64| (0.0..1.0).contains(number);
        let found = self.of(name, "in [0, 1)", |value| value.as_f64().filter(is_one))?;
        Ok(found.unwrap_or(absent))
    }

    pub(crate) fn optional_text(&self, name: &'static str) -> Result<Option<&str>> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(value) => Err(self.wrong(name, value, "a text")),
        }
    }

    pub(crate) fn text(&self, name: &'static str) -> Result<&str> {
        self.needed(name, self.optional_text(name)?)
    }

    /// A truth value, or `absent` if there is no entry.
    pub(crate) fn flag(&self, name: &'static str, absent: bool) -> Result<bool> {
        Ok(self.of(name, "true or false", Value::as_bool)?.unwrap_or(absent))
    }

    /// The entries inside an entry.
    pub(crate) fn inside(&self, name: &'static str) -> Result<Option<Entries<'a>>> {
        /// Limit of the entries, because every layer searches all of them.
        const LEN_MAX: usize = 256;
        let entries = self.of(name, "an object of at most 256 entries", |value| {
            value.as_object().filter(|entries| entries.len() <= LEN_MAX)
        })?;
        let (path, prefix) = (self.path, format!("{}{name}.", self.prefix));
        Ok(entries.map(|entries| Entries { path, prefix, entries, read: RefCell::default() }))
    }

    /// Checks that unsupported options have the value for their absence.
    pub(crate) fn without(&self, names: &[&'static str]) -> Result<()> {
        let is_off = |value: &Value| value == false || value.as_f64() == Some(0.0);
        for name in names {
            if let Some(value) = self.value(name).filter(|value| !is_off(value)) {
                return Err(self.unsupported(name, value));
            }
        }
        Ok(())
    }

    /// Checks that an entry, if present, has the only supported value.
    pub(crate) fn only(&self, name: &'static str, built: bool) -> Result<()> {
        if self.flag(name, built)? == built {
            Ok(())
        } else {
            Err(self.unsupported(name, &Value::Bool(!built)))
        }
    }

    pub(crate) fn check_all_read(&self, ignored: &[&str]) -> Result<()> {
        let read = self.read.borrow();
        for (name, value) in self.entries {
            let is_known = ignored.contains(&name.as_str()) || read.contains(name.as_str());
            if !is_known && !value.is_null() {
                return Err(self.unsupported(name, value));
            }
        }
        Ok(())
    }
}

fn count_of(value: &Value) -> Option<usize> {
    let count = value.as_u64().filter(|&count| (1..=COUNT_MAX).contains(&count))?;
    usize::try_from(count).ok()
}
