//! Counts from the output of test runners: a pure state machine over lines.
//!
//! The runner is libtest with `--show-output`, which also prints the output of passing tests. The
//! output of passing tests is under `successes:`, the output of failing tests under `failures:`,
//! each in a block headed `---- NAME stdout ----`. A `test result:` line follows.
//!
//! A test skips by printing a line `skipped: NAME: REASON` and passing. Each such line is one skip.
//! A passing test with such a line counts as skipped, not as passed. Ignored tests are skips too. A
//! line outside any test (a bench's `main`) is a skip and does not change the number of passed
//! tests.

use std::fmt;

/// A check that did not run, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skip {
    /// The test, section or device instance.
    pub name: String,
    /// The reason, usually a missing part of the machine.
    pub reason: String,
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "skipped: {}: {}", self.name, self.reason)
    }
}

/// The counts of a section or of a whole run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of checks that ran and passed.
    pub passed: usize,
    /// Number of checks that ran and failed, or could not be built.
    pub failed: usize,
    /// Checks that did not run.
    pub skips: Vec<Skip>,
}

impl Counts {
    /// The counts of a section that is a single check.
    pub fn one(passed: bool) -> Self {
        Self { passed: usize::from(passed), failed: usize::from(!passed), skips: Vec::new() }
    }

    /// The counts of a section that did not run.
    pub fn skipped(name: &str, reason: impl Into<String>) -> Self {
        let skip = Skip { name: name.to_owned(), reason: reason.into() };
        Self { skips: vec![skip], ..Self::default() }
    }

    /// Adds `other` to these counts.
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skips.extend(other.skips);
    }
}

/// The last line of a run: `N passed, N failed, N skipped`.
impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, failed, skips } = self;
        write!(f, "{passed} passed, {failed} failed, {} skipped", skips.len())
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Block {
    #[default]
    None,
    Successes,
    Failures,
}

/// Reads the output of test runners line by line.
#[derive(Debug, Default)]
pub struct Tally {
    counts: Counts,
    block: Block,
    /// The passing test whose output is being read and that has not reported a skip yet.
    passing_test: Option<String>,
    skipped_after_all: usize,
    ignored_named: usize,
    results: usize,
    results_failed: usize,
    reruns: usize,
    /// True if cargo found no target of the requested kind.
    nothing_to_run: bool,
}

impl Tally {
    /// Reads one line of standard output or standard error.
    pub fn read_line(&mut self, line: &str) {
        let line = without_colour(line);
        let line = line.trim_end();
        if let Some(result) = line.strip_prefix("test result: ") {
            self.read_result(result);
        } else if line == "successes:" {
            self.block = Block::Successes;
        } else if line == "failures:" {
            self.block = Block::Failures;
        } else if let Some(name) = captured_test(line) {
            self.passing_test = (self.block == Block::Successes).then(|| name.to_owned());
        } else if let Some(skip) = parse_skip(line) {
            self.skipped_after_all += usize::from(self.passing_test.take().is_some());
            self.counts.skips.push(skip);
        } else if let Some(skip) = parse_ignored(line) {
            self.ignored_named += 1;
            self.counts.skips.push(skip);
        } else if line.starts_with("error: ") && line.contains(" failed, to rerun pass") {
            self.reruns += 1;
        } else if line.starts_with("warning: ") && line.contains("no targets matched") {
            self.nothing_to_run = true;
        }
    }

    fn read_result(&mut self, result: &str) {
        let [passed, failed, ignored] =
            ["passed", "failed", "ignored"].map(|word| count_before(result, word));
        self.counts.passed += passed;
        self.counts.failed += failed;
        self.results += 1;
        self.results_failed += usize::from(result.starts_with("FAILED"));
        for _ in self.ignored_named..ignored {
            let reason = "ignored, its name was not printed".to_owned();
            self.counts.skips.push(Skip { name: "a test".to_owned(), reason });
        }
        self.ignored_named = 0;
        self.block = Block::None;
        self.passing_test = None;
    }

    /// The counts, after the runner ended with `success`.
    ///
    /// A test binary that died printed no result, but cargo lists the binary for a rerun. Such a
    /// binary counts as one failure, and so does a build that failed.
    pub fn finish(self, success: bool) -> Counts {
        let mut counts = self.counts;
        if self.results == 0 && self.reruns == 0 {
            if !(success && self.nothing_to_run) {
                counts.add(Counts::one(success));
            }
            return counts;
        }
        counts.passed = counts.passed.saturating_sub(self.skipped_after_all);
        counts.failed += self.reruns.saturating_sub(self.results_failed);
        if !success && counts.failed == 0 {
            counts.failed = 1;
        }
        counts
    }
}

/// The number before `word` in `ok. 3 passed; 0 failed; 1 ignored; ...`.
fn count_before(result: &str, word: &str) -> usize {
    let mut words = result.split([' ', ';', '.']).filter(|w| !w.is_empty());
    let mut previous = "";
    words
        .find_map(|w| {
            let number = std::mem::replace(&mut previous, w);
            (w == word).then(|| number.parse().unwrap_or(0))
        })
        .unwrap_or(0)
}

fn captured_test(line: &str) -> Option<&str> {
    let name = line.strip_prefix("---- ")?.strip_suffix(" ----")?;
    name.strip_suffix(" stdout").or_else(|| name.strip_suffix(" stderr"))
}

fn parse_skip(line: &str) -> Option<Skip> {
    let (name, reason) = line.strip_prefix("skipped: ")?.split_once(": ")?;
    Some(Skip { name: name.to_owned(), reason: reason.to_owned() })
}

/// `test NAME ... ignored` or `test NAME ... ignored, REASON`.
fn parse_ignored(line: &str) -> Option<Skip> {
    let (name, verdict) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let rest = verdict.strip_prefix("ignored")?;
    let reason = rest.strip_prefix(", ").unwrap_or("ignored");
    Some(Skip { name: name.to_owned(), reason: reason.to_owned() })
}

/// `line` without terminal escape sequences, which appear with `CARGO_TERM_COLOR=always`.
pub(crate) fn without_colour(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    let mut characters = line.chars();
    while let Some(c) = characters.next() {
        if c == '\u{1b}' {
            // A sequence ends at its first letter: `ESC [ 1 ; 31 m`.
            characters.by_ref().find(char::is_ascii_alphabetic);
        } else {
            text.push(c);
        }
    }
    text
}
