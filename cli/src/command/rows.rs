//! Rows of what a command says: lines for people, and fields of a JSON object for programs.

use lowtide_trainer::Result;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::command::say;

/// A row of a command's output. Its lines or its fields may be absent.
pub(super) struct Row {
    /// The name before the first line; `None` for lines without one.
    label: Option<&'static str>,
    lines: Vec<String>,
    fields: Map<String, Value>,
}

impl Row {
    /// Lines below each other, the first one after a label.
    pub(super) fn new(label: &'static str, lines: impl IntoIterator<Item = String>) -> Row {
        Row { label: Some(label), ..Row::block(lines) }
    }

    /// Lines that begin in the first column.
    pub(super) fn block(lines: impl IntoIterator<Item = String>) -> Row {
        Row { label: None, lines: lines.into_iter().collect(), fields: Map::new() }
    }

    /// A row for programs alone.
    pub(super) fn unseen() -> Row {
        Row::block([])
    }

    /// Adds a field of the JSON object.
    pub(super) fn with(mut self, key: &str, value: impl Serialize) -> Row {
        self.fields.insert(key.to_owned(), json_of(value));
        self
    }

    /// Adds all fields of a value that is an object in JSON.
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

/// Prints the lines of rows, with labels in columns of `width`.
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
