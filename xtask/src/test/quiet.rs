//! Selection of the printed lines of a section: everything about failures, little about success. A
//! pure state machine over lines.

use std::fmt;

use super::plan::Counting;
use crate::tally::without_colour;

/// The stream of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Standard output, of test runners and of `cargo fmt`.
    Output,
    /// Standard error, of cargo and the compiler.
    Error,
}

/// The state of a running section in one line, such as `compiling lowtide-nn, 57 crates so far`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    now: String,
    compiled: usize,
    tests: usize,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { now, compiled, tests } = self;
        write!(f, "{}", if now.is_empty() { "starting" } else { now })?;
        match (tests, compiled) {
            (0, 0) => Ok(()),
            (0, 1..) => write!(f, ", {compiled} crates so far"),
            (1.., _) => write!(f, ", {tests} tests so far"),
        }
    }
}

/// Selects the lines that are printed.
#[derive(Debug)]
pub struct Quiet {
    counting: Counting,
    is_in_failures: bool,
    /// The state after the lines so far.
    pub progress: Progress,
}

impl Quiet {
    /// The state before the first line.
    pub fn new(counting: Counting) -> Self {
        Self { counting, is_in_failures: false, progress: Progress::default() }
    }

    /// Reads the next line; true if the line should be printed.
    pub fn shows(&mut self, source: Source, line: &str) -> bool {
        let line = without_colour(line);
        let line = line.trim_end();
        match (source, self.counting) {
            (Source::Error, _) => match status(line) {
                Some((verb, what)) => {
                    self.note(verb, what);
                    false
                }
                None => !line.is_empty(),
            },
            (Source::Output, Counting::Runners) => self.shows_of_runner(line),
            (Source::Output, _) => true,
        }
    }

    fn note(&mut self, verb: &str, what: &str) {
        let first = |text: &str| text.split(' ').next().unwrap_or_default().to_owned();
        match verb {
            "Compiling" | "Checking" | "Documenting" => {
                self.progress.compiled += 1;
                self.progress.now = format!("{} {}", verb.to_lowercase(), first(what));
            }
            "Running" | "Doc-tests" => self.progress.now = format!("running {what}"),
            _ => {}
        }
    }

    fn shows_of_runner(&mut self, line: &str) -> bool {
        if line == "failures:" {
            self.is_in_failures = true;
        } else if line == "successes:" {
            self.is_in_failures = false;
        } else if let Some(result) = line.strip_prefix("test result: ") {
            self.is_in_failures = false;
            return result.starts_with("FAILED");
        } else if line.starts_with("test ") && line.contains(" ... ") {
            self.progress.tests += 1;
            return line.ends_with("FAILED");
        }
        self.is_in_failures || line.contains(" has been running for over ")
    }
}

/// The verb and the rest of a status line of cargo, whose verb ends in the twelfth column.
fn status(line: &str) -> Option<(&str, &str)> {
    let (verb, what) = (line.get(..12)?, line.get(12..)?.strip_prefix(' ')?);
    let verb = verb.trim_start();
    let is_verb = verb.starts_with(|c: char| c.is_ascii_uppercase())
        && verb.chars().all(|c| c.is_ascii_alphabetic() || c == '-');
    is_verb.then_some((verb, what))
}
