//! How a failed command ends: one line, its details, and an exit code.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use lowtide_allocator::Category;
use lowtide_trainer::{DoesNotFit, TrainError};

use crate::command::{DOES_NOT_FIT, say};
use crate::human::format_bytes;
use crate::json::error_json;

/// Tells an error on standard error in one line, on a terminal with what is known of the memory
/// below it; with `json` also as an object on standard output.
pub(super) fn tell(error: &TrainError, json: bool) -> ExitCode {
    if json {
        // The line on standard error says all that matters to a reader who has gone.
        drop(say(&error_json(error).to_string()));
    }
    complain(&error.one_line());
    if io::stderr().is_terminal() {
        drop(io::stderr().write_all(details(error).as_bytes()));
    }
    ExitCode::from(code(error))
}

/// Writes a mistake's one line.
pub(super) fn complain(line: &str) {
    // There is no reader when standard error is closed.
    drop(writeln!(io::stderr(), "lowtide: {line}"));
}

fn code(error: &TrainError) -> u8 {
    let out_of_memory = error.out_of_memory().is_some();
    if out_of_memory || matches!(error, TrainError::DoesNotFit(_)) { DOES_NOT_FIT } else { 1 }
}

/// The ledger of the failed allocation, and what the smallest plan would need; empty for an error
/// that is not about memory.
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
    let mut text = format!("peak of each category with {knobs} (not at one moment)\n");
    let rows = category_peaks.iter().filter(|&&(_, bytes)| bytes > 0);
    for (category, bytes) in rows {
        text += &row(*category, *bytes);
    }
    text
}

/// A category's bytes, as `lowtide plan` lists them.
pub(super) fn row(category: Category, bytes: usize) -> String {
    let name = category.to_string();
    format!("  {name:<16}{} ({bytes} bytes)\n", format_bytes(bytes as u64))
}
