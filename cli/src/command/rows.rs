//! Rows of a command's output: text lines for people, and fields of a JSON object for programs.

use lowtide_trainer::Result;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::command::say;

/// A row of a command's output: lines, or fields, or both.
pub(super) struct Row {
    /// The name before the first line; `None` for lines without one.
    label: Option<&'static str>,
    lines: Vec<String>,
    fields: Map<String, Value>,
}

impl Row {
    /// A row of lines below each other; the first one follows the label.
    pub(super) fn new(label: &'static str, lines: impl IntoIterator<Item = String>) -> Row {
        Row { label: Some(label), ..Row::block(lines) }
    }

    /// A row of lines without a label.
    pub(super) fn block(lines: impl IntoIterator<Item = String>) -> Row {
        Row { label: None, lines: lines.into_iter().collect(), fields: Map::new() }
    }

    /// A row without lines, for programs alone.
    pub(super) fn unseen() -> Row {
        Row::block([])
    }

    /// Adds a field of the JSON object.
    pub(super) fn with(mut self, key: &str, value: impl Serialize) -> Row {
        self.fields.insert(key.to_owned(), json_of(value));
        self
    }

    /// Adds all fields of a value that serialises to a JSON object.
    pub(super) fn with_all(mut self, object: impl Serialize) -> Row {
        if let Value::Object(fields) = json_of(object) {
            self.fields.extend(fields);
        }
        self
    }
}

fn json_of(value: impl Serialize) -> Value {
    serde_json::to_value(value).expect("plain values by names")
}

/// Prints the lines of all rows, with labels in a column of `width`.
///
/// # Errors
/// `File` if nothing can be written.
pub(super) fn say_rows(rows: &[Row], width: usize) -> Result<()> {
    for row in rows {
        for (index, line) in row.lines.iter().enumerate() {
            match row.label {
                Some(label) => {
                    let label = if index == 0 { label } else { "" };
                    say(&format!("{label:<width$} {line}"))?;
                }
                None => say(line)?,
            }
        }
    }
    Ok(())
}

/// The object with the fields of all rows.
pub(super) fn rows_json(rows: Vec<Row>) -> Value {
    rows.into_iter().flat_map(|row| row.fields).collect::<Map<_, _>>().into()
}
