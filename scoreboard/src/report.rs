//! The report of a suite: a JSON line for each case, and a Markdown table.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use lowtide_tensor::{DType, Device};
use serde_json::json;

use crate::case::{self, Case, Cases, Kind};
use crate::onnx;
use crate::ops::{self, MISSING, Missing};
use crate::outcome::{Law, Outcome, Reason, Verdict};
use crate::run;
use crate::transformers;

/// A case and its verdict.
#[derive(Clone, Debug)]
pub struct Line {
    /// The operation, under the peer's name.
    pub op: String,
    /// The name of the peer's test, if it has one.
    pub name: String,
    /// The expectation of the case.
    pub kind: Kind,
    /// The element type of the case.
    pub dtype: String,
    /// Number of the sample among the samples of its operation and type.
    pub index: usize,
    /// True if the case needs a gradient.
    pub has_gradient: bool,
    /// The verdict on the case.
    pub verdict: Verdict,
}

/// The verdicts on a suite.
#[derive(Clone, Debug)]
pub struct Report {
    suite: String,
    /// One line with the versions that made the cases.
    versions: String,
    /// Every operation with samples of the peer, with the number of samples in f32.
    inventory: Vec<(String, usize)>,
    lines: Vec<Line>,
}

/// The counts of one row.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    cases: usize,
    passed: usize,
    by_truth: usize,
    failed: usize,
    not_applicable: usize,
    missing: usize,
}

impl Counts {
    fn add(&mut self, outcome: &Outcome) {
        self.cases += 1;
        match outcome {
            Outcome::Passed => self.passed += 1,
            Outcome::PassedByTruth => self.by_truth += 1,
            Outcome::Failed(_) => self.failed += 1,
            Outcome::NotApplicable(reason, _) if reason.is_missing() => self.missing += 1,
            Outcome::NotApplicable(..) => self.not_applicable += 1,
        }
    }

    /// The percentage of passed cases, among the cases that apply and whose operation lowtide has.
    fn share(&self) -> f64 {
        let passed = self.passed + self.by_truth;
        100.0 * passed as f64 / (passed + self.failed).max(1) as f64
    }
}

impl Report {
    /// Runs the cases of a folder.
    ///
    /// # Errors
    /// One line about a file that cannot be read.
    pub fn of_folder(suite: &str, folder: &Path) -> Result<Self, String> {
        Self::of_folder_by(suite, folder, run::run)
    }

    /// [`Report::of_folder`] on another device.
    ///
    /// # Errors
    /// The errors of [`Report::of_folder`], and an error for `transformers`, whose cases are whole
    /// runs on the CPU.
    pub fn of_folder_on(suite: &str, folder: &Path, device: &Device) -> Result<Self, String> {
        if suite == transformers::SUITE {
            return Err(format!("{suite} runs on the processor alone"));
        }
        Self::of_folder_by(suite, folder, |case, bytes| run::run_on(case, bytes, device))
    }

    fn of_folder_by(
        suite: &str,
        folder: &Path,
        run: impl Fn(&Case, &[u8]) -> Verdict,
    ) -> Result<Self, String> {
        let mut lines = Vec::new();
        for file in Cases::files(folder)? {
            let Cases { cases, bytes } = Cases::read(&file)?;
            for case in cases {
                if suite == transformers::SUITE {
                    lines.extend(transformers::lines(&case, &bytes, folder));
                    continue;
                }
                let verdict = run(&case, &bytes);
                let has_gradient = !case.wants_gradient.is_empty();
                let (op, name, kind) = (case.op, case.name, case.kind);
                let (dtype, index) = (case.dtype, case.index);
                lines.push(Line { op, name, kind, dtype, index, has_gradient, verdict });
            }
        }
        let text = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        let versions = text("versions.txt").trim().to_owned();
        let entry = |line: &str| {
            let (name, count) = line.split_once(' ')?;
            Some((name.to_owned(), count.parse().ok()?))
        };
        let inventory = text("inventory.txt").lines().filter_map(entry).collect();
        Ok(Report { suite: suite.to_owned(), versions, inventory, lines })
    }

    /// Every case with its verdict.
    pub fn cases(&self) -> &[Line] {
        &self.lines
    }

    /// True if only known cases failed, and no case broke a law.
    pub fn is_good(&self) -> bool {
        let is_broken = |law: &Law| matches!(law, Law::Broken(_));
        let breaks_law =
            |line: &Line| is_broken(&line.verdict.allocations) || is_broken(&line.verdict.bits);
        let mut failures = self.failures().into_iter();
        !self.lines.iter().any(breaks_law)
            && failures.all(|((op, dtype), (count, _))| ops::known_failures(&op, &dtype).0 >= count)
    }

    /// One line for each case, with a JSON object.
    pub fn lines(&self) -> String {
        let mut text = String::new();
        for line in &self.lines {
            let Verdict { outcome, allocations, bits } = &line.verdict;
            let (reason, detail) = match outcome {
                Outcome::Failed(why) => (None, Some(why)),
                Outcome::NotApplicable(reason, why) => (Some(*reason), Some(why)),
                _ => (None, None),
            };
            let kind = match line.kind {
                Kind::Sample => "sample",
                Kind::Strided => "strided",
                Kind::Error => "error",
                Kind::Function => "function",
            };
            let object = json!({
                "suite": self.suite, "op": line.op, "name": line.name, "kind": kind,
                "dtype": line.dtype,
                "index": line.index, "gradient": line.has_gradient, "outcome": outcome.word(),
                "reason": reason, "detail": detail,
                "allocations": allocations.word(), "bits": bits.word(),
            });
            let _ = writeln!(text, "{object}");
        }
        text
    }

    /// A summary of the counts in one line.
    pub fn summary(&self) -> String {
        let counts = self.count(|_| true);
        let Counts { cases, passed, by_truth, failed, not_applicable, missing } = counts;
        format!(
            "{}: {cases} cases, {passed} passed, {by_truth} passed by the f64 result, {failed} \
             failed, {not_applicable} not applicable, {missing} missing; the law of allocations: \
             {}; of bits: {}",
            self.suite,
            self.law(|verdict| &verdict.allocations),
            self.law(|verdict| &verdict.bits),
        )
    }

    fn law(&self, law: impl Fn(&Verdict) -> &Law) -> String {
        let laws = || self.lines.iter().map(|line| law(&line.verdict));
        let kept = laws().filter(|law| **law == Law::Kept).count();
        let broken = laws().filter(|law| matches!(law, Law::Broken(_))).count();
        format!("{kept} kept it, {broken} broke it")
    }

    fn count(&self, wanted: impl Fn(&Line) -> bool) -> Counts {
        let mut counts = Counts::default();
        let lines = self.lines.iter().filter(|line| wanted(line));
        lines.for_each(|line| counts.add(&line.verdict.outcome));
        counts
    }

    /// The rows of the table in the README: samples with gradients by type, then the other cases.
    pub fn table(&self) -> String {
        let suite = &self.suite;
        let mut text = String::new();
        let mut row = |name: &str, counts: Counts| {
            let Counts { cases, passed, by_truth, failed, not_applicable, missing } = counts;
            let share = counts.share();
            if cases > 0 {
                let _ = writeln!(
                    text,
                    "| {suite}, {name} | {cases} | {passed} | {by_truth} | {failed} | \
                     {not_applicable} | {missing} | {share:.2} % |"
                );
            }
        };
        if self.lines.iter().any(|line| !line.name.is_empty()) {
            // In a suite of single tests, the origin of the tests says more than their types.
            row("nodes", self.count(|line| line.kind == Kind::Sample));
            row("functions as graphs", self.count(|line| line.kind == Kind::Function));
            return text;
        }
        let is_float = |line: &Line| case::dtype(&line.dtype).is_some_and(DType::is_float);
        for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_float()) {
            let of_type = |line: &Line| line.kind == Kind::Sample && line.dtype == dtype.name();
            let with = self.count(|line| of_type(line) && line.has_gradient);
            row(&format!("{dtype} with gradients"), with);
            row(
                &format!("{dtype} without"),
                self.count(|line| of_type(line) && !line.has_gradient),
            );
        }
        row(
            "integers and truth values",
            self.count(|line| line.kind == Kind::Sample && !is_float(line)),
        );
        row("f32, not contiguous", self.count(|line| line.kind == Kind::Strided));
        row("error inputs", self.count(|line| line.kind == Kind::Error));
        text
    }

    /// Counts by type and by reason, and the failures, as Markdown.
    pub fn markdown(&self) -> String {
        let mut text = format!("# {}\n\n{}\n\n{}\n\n", self.suite, self.versions, self.summary());
        text += "| | cases | passed | passed by f64 | failed | not applicable | missing | of \
                 those that apply |\n|---|---|---|---|---|---|---|---|\n";
        let mut row = |name: &str, counts: Counts| {
            if counts.cases > 0 {
                let Counts { cases, passed, by_truth, failed, not_applicable, missing } = counts;
                let share = counts.share();
                let _ = writeln!(
                    text,
                    "| {name} | {cases} | {passed} | {by_truth} | {failed} | {not_applicable} | \
                     {missing} | {share:.2} % |"
                );
            }
        };
        for dtype in DType::ALL {
            let is_sample = |line: &Line| line.kind == Kind::Sample && line.dtype == dtype.name();
            row(dtype.name(), self.count(is_sample));
            let gradients = self.count(|line| is_sample(line) && line.has_gradient);
            row(&format!("{dtype} with gradients"), gradients);
        }
        let is_foreign = |line: &Line| case::dtype(&line.dtype).is_none();
        let of_sample = |line: &Line| line.kind == Kind::Sample && is_foreign(line);
        row("types that lowtide does not have", self.count(of_sample));
        row("functions as graphs", self.count(|line| line.kind == Kind::Function));
        row("f32, not contiguous", self.count(|line| line.kind == Kind::Strided));
        row("error inputs", self.count(|line| line.kind == Kind::Error));
        for model in transformers::models(&self.suite, &self.lines) {
            row(model, self.count(|line| transformers::is_of(line, model)));
        }
        text += "\n| not applicable, or missing | cases |\n|---|---|\n";
        for &reason in Reason::ALL {
            let is_it = |line: &Line| match &line.verdict.outcome {
                Outcome::NotApplicable(found, _) => *found == reason,
                _ => false,
            };
            let count = self.count(is_it).cases;
            let _ = writeln!(text, "| {reason} | {count} |");
        }
        text += "\n| operation | type | failed | first | cause |\n|---|---|---|---|---|\n";
        for ((op, dtype), (count, first)) in self.failures() {
            let cause = ops::known_failures(&op, &dtype).1;
            let _ = writeln!(text, "| {op} | {dtype} | {count} | {first} | {cause} |");
        }
        text + &self.missing()
    }

    /// The operations of the peer without a call, by reason; the operations to build come first.
    fn missing(&self) -> String {
        let mut text = String::new();
        let has_call = |name: &str| ops::find(name).is_some();
        let missing = self.inventory.iter().filter(|(name, _)| !has_call(name));
        let missing: Vec<&(String, usize)> = missing.collect();
        let unsorted = Missing { reason: "not looked at", to_build: false, names: "" };
        // Suites share groups of names, so each group is printed once.
        let mut seen = BTreeSet::new();
        for to_build in [true, false] {
            let title = if to_build { "to build" } else { "out of scope" };
            let _ = writeln!(text, "\n| {title} | operations (samples) |\n|---|---|");
            let groups = MISSING.iter().chain(onnx::MISSING).chain([&unsorted]);
            for group in groups.filter(|it| it.to_build == to_build) {
                let is_it =
                    |name: &str| ops::missing(name).unwrap_or(&unsorted).reason == group.reason;
                let mut found: Vec<_> = missing.iter().filter(|(name, _)| is_it(name)).collect();
                found.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
                let names: Vec<String> =
                    found.iter().map(|(name, count)| format!("{name} ({count})")).collect();
                if !names.is_empty() && seen.insert(group.reason) {
                    let _ = writeln!(text, "| {} | {} |", group.reason, names.join(", "));
                }
            }
        }
        text
    }

    /// Failed cases and broken laws by operation and type, with their number and the first text.
    fn failures(&self) -> BTreeMap<(String, String), (usize, String)> {
        let mut failures: BTreeMap<(String, String), (usize, String)> = BTreeMap::new();
        for line in self.lines.iter().filter(|line| !line.verdict.is_good()) {
            let words = match &line.verdict {
                Verdict { outcome: Outcome::Failed(why), .. } => why.clone(),
                Verdict { allocations: Law::Broken(why), .. } => format!("allocations: {why}"),
                Verdict { bits: Law::Broken(why), .. } => format!("bits: {why}"),
                _ => String::new(),
            };
            let name = if line.kind == Kind::Error { "error" } else { line.dtype.as_str() };
            let words = format!("#{}: {}", line.index, words.replace('|', "\\|"));
            failures.entry((line.op.clone(), name.to_owned())).or_insert((0, words)).0 += 1;
        }
        failures
    }
}
