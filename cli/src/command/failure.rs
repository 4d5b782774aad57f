//! The end of a failed command: one line, its details, and an exit code.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use lowtide_allocator::Category;
use lowtide_trainer::{DoesNotFit, TrainError};

use crate::command::{DOES_NOT_FIT, say};
use crate::human::{format_bytes, visible};
use crate::json::error_json;

/// Prints an error on standard error in one line. On a terminal, facts about memory follow. With
/// `json`, standard output gets an object too.
pub(super) fn tell(error: &TrainError, json: bool) -> ExitCode {
    if json {
        // If the reader of standard output has gone, the line on standard error is enough.
        drop(say(&error_json(error).to_string()));
    }
    complain(&error.one_line());
    if io::stderr().is_terminal() {
        drop(io::stderr().write_all(details(error).as_bytes()));
    }
    ExitCode::from(code(error))
}

/// Writes the line of an error or a note to the error stream, with [visible] control characters.
pub(super) fn complain(line: &str) {
    // If standard error is closed, there is no reader.
    drop(writeln!(io::stderr(), "lowtide: {}", visible(line)));
}

fn code(error: &TrainError) -> u8 {
    let out_of_memory = error.out_of_memory().is_some();
    if out_of_memory || matches!(error, TrainError::DoesNotFit(_)) { DOES_NOT_FIT } else { 1 }
}

/// The ledger of the failed allocation, and the need of the smallest plan; empty for an error that
/// is not about memory.
fn details(error: &TrainError) -> String {
    let mut text = String::new();
    if let TrainError::DoesNotFit(error) = error {
        text += &smallest_plan(error);
    }
    if let Some(ledger) = error.ledger() {
        text += &ledger.ledger();
    }
    text
}

fn smallest_plan(error: &DoesNotFit) -> String {
    let DoesNotFit { knobs, category_peaks, .. } = error;
    if category_peaks.is_empty() {
        return String::new();
    }
    let mut text = format!("peak of each category with {knobs} (not at one moment)\n");
    let rows = category_peaks.iter().filter(|&&(_, bytes)| bytes > 0);
    for (category, bytes) in rows {
        text += &row(*category, *bytes);
    }
    text
}

/// A row with the bytes of a category, in the format of `lowtide plan`.
pub(super) fn row(category: Category, bytes: usize) -> String {
    let name = category.to_string();
    format!("  {name:<16}{} ({bytes} bytes)\n", format_bytes(bytes as u64))
}
