//! Metrics as JSON lines: one object per step and per evaluation.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use lowtide_allocator::files::read_input;
use serde::Serialize;
use serde_json::Value;

use crate::error::{Result, TrainError};
use crate::files::new_file::NewFile;
use crate::json::ledger_json;
use crate::run::observer::{EvaluationReport, Flow, Observer, Recovery, StepReport, Training};
use crate::run::score::Score;

/// Description of the lines of `metrics.jsonl`.
pub const METRICS_HELP: &str = include_str!("metrics.md");

/// A size larger than any metrics that fit into memory.
pub const METRICS_BYTES_MAX: u64 = 1 << 36;

/// Writes `metrics.jsonl`, under another name until the run ends. If a line cannot be written, for
/// example on a full disk, the file ends before this line. Later lines are not written either,
/// which leaves room for the model. A note on standard error reports the end, and the run goes on.
///
#[doc = include_str!("metrics.md")]
pub struct Metrics {
    path: PathBuf,
    partial: PathBuf,
    file: File,
    /// Bytes of the complete lines.
    len_bytes: u64,
    /// True after a line that could not be written.
    has_ended: bool,
}

/// The line of a step.
#[derive(Serialize)]
pub struct StepLine {
    step: u64,
    epoch: u64,
    loss: f64,
    #[serde(flatten)]
    turn_losses: BTreeMap<String, f64>,
    learning_rate: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    gradient_norm: Option<f64>,
    batch: usize,
    micro_batch: usize,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cheap_recomputed: bool,
    #[serde(skip_serializing_if = "is_zero")]
    recomputed_blocks: usize,
    #[serde(skip_serializing_if = "is_zero")]
    offloaded_blocks: usize,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    fused_update: bool,
    skipped: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    bad_samples: Vec<usize>,
    retries: Vec<RetryLine>,
    reserved_peak_bytes: usize,
    seconds: f64,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

#[derive(Serialize)]
struct RetryLine {
    reason: String,
    ledger: Value,
    recovery: String,
}

/// The line of an evaluation.
#[derive(Serialize)]
pub struct EvaluationLine {
    epoch: u64,
    step: u64,
    seconds: f64,
    #[serde(flatten)]
    values: BTreeMap<String, f64>,
}

/// The key of a metric of a set: `test_accuracy`, `valid_top_5_accuracy`.
pub(crate) fn metric_key(set: &str, metric: &str) -> String {
    let of_word = |c: char| if c.is_alphanumeric() { c } else { '_' };
    format!("{set}_{metric}").chars().map(of_word).collect()
}

/// The values of an evaluation by their keys.
pub fn metric_values(scores: &[(String, Score)]) -> BTreeMap<String, f64> {
    let of_set = |(set, score): &(String, Score)| {
        let values = score.values().map(|(metric, value)| (metric_key(set, metric), value));
        values.collect::<Vec<_>>()
    };
    scores.iter().flat_map(of_set).collect()
}

/// The path of the metrics file while the run goes on.
pub fn partial_of(path: &Path) -> PathBuf {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    PathBuf::from(partial)
}

impl Metrics {
    /// Creates the file, which is moved to `path` at the end of the run.
    ///
    /// # Errors
    /// `File`.
    pub fn create(path: &Path) -> Result<Self> {
        let (path, partial) = (path.to_owned(), partial_of(path));
        let file = File::create(&partial);
        let file = file.map_err(|source| TrainError::File { path: path.clone(), source })?;
        Ok(Metrics { path, partial, file, len_bytes: 0, has_ended: false })
    }

    /// Continues the file `before` of another run after its lines of up to `step` steps. If
    /// `before` is missing, continues the file that an interrupted run left for `path`. Damaged
    /// lines are left out, and a note on standard error counts them.
    ///
    /// # Errors
    /// `File`.
    pub fn go_on(path: &Path, before: &Path, step: u64) -> Result<Self> {
        let (path, partial) = (path.to_owned(), partial_of(path));
        let before = if before.exists() { before } else { &partial };
        let text = match read_input(before, METRICS_BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            read => read.map_err(|source| TrainError::File { path: before.to_owned(), source })?,
        };
        let (kept, damaged_count) = lines_up_to(step, &text);
        if damaged_count > 0 {
            let lines = if damaged_count == 1 { "line is" } else { "lines are" };
            let before = before.display();
            let line = format!("note: {before}: {damaged_count} damaged {lines} left out");
            drop(writeln!(io::stderr(), "{line}"));
        }
        let failed = |source| TrainError::File { path: path.clone(), source };
        // The earlier lines stay until the kept ones are on the disk.
        let mut new = NewFile::create(&partial)?;
        new.file().write_all(&kept).map_err(failed)?;
        new.publish()?;
        let file = File::options().append(true).open(&partial).map_err(failed)?;
        Ok(Metrics { path, partial, file, len_bytes: kept.len() as u64, has_ended: false })
    }

    /// Writes a whole line, or nothing. The file of a killed run contains everything up to its last
    /// step.
    fn write(&mut self, step: u64, line: &impl Serialize) {
        if self.has_ended {
            return;
        }
        let mut text = serde_json::to_vec(line).expect("plain values");
        text.push(b'\n');
        let Err(error) = self.file.write_all(&text) else {
            self.len_bytes += text.len() as u64;
            return;
        };
        // If cutting fails too, half a line remains, which readers skip.
        drop(cut(&mut self.file, self.len_bytes));
        self.has_ended = true;
        let place = self.path.display();
        let line = format!("note: {place}: ends before step {step}: {error}");
        drop(writeln!(io::stderr(), "{line}"));
    }
}

impl StepLine {
    /// The line of the step of `report`.
    pub fn new(report: &StepReport) -> Self {
        let retries = report.retries.iter().map(|retry| RetryLine {
            reason: retry.failure.to_string(),
            ledger: ledger_json(&retry.failure),
            recovery: recovery_name(retry.recovery),
        });
        let losses = report.turn_losses.iter();
        let losses = losses.map(|(model, loss)| (metric_key(model, "loss"), *loss));
        StepLine {
            step: report.step,
            epoch: report.epoch,
            loss: report.loss,
            turn_losses: losses.collect(),
            learning_rate: report.learning_rate,
            gradient_norm: report.gradient_norm,
            batch: report.batch,
            micro_batch: report.micro_batch,
            cheap_recomputed: report.cheap_recomputed,
            recomputed_blocks: report.recomputed_blocks,
            offloaded_blocks: report.offloaded_blocks,
            fused_update: report.fused_update,
            skipped: report.skipped,
            bad_samples: report.bad_samples.clone(),
            retries: retries.collect(),
            reserved_peak_bytes: report.reserved_peak_bytes,
            seconds: report.seconds,
        }
    }
}

impl EvaluationLine {
    /// The line of the evaluation of `report`.
    pub fn new(report: &EvaluationReport) -> Self {
        let &EvaluationReport { epoch, step, seconds, .. } = report;
        EvaluationLine { epoch, step, seconds, values: metric_values(&report.scores) }
    }
}

/// A rung of the ladder, as the metrics and the report name it.
pub fn recovery_name(recovery: Recovery) -> String {
    match recovery {
        Recovery::SamePlan => "same plan".to_owned(),
        Recovery::Waited { seconds } => format!("same plan after {seconds:.1} s"),
        Recovery::CheapRecomputation => "cheap results recomputed".to_owned(),
        Recovery::MoreRecomputation { blocks } => format!("{blocks} blocks recomputed"),
        Recovery::Offload { blocks } => format!("{blocks} blocks offloaded"),
        Recovery::FusedUpdate => "fused update".to_owned(),
        Recovery::SmallerMicroBatch { micro_batch } => format!("micro-batch {micro_batch}"),
    }
}

impl Observer for Metrics {
    fn on_step(&mut self, report: &StepReport, _: &mut dyn Training) -> Result<Flow> {
        self.write(report.step, &StepLine::new(report));
        Ok(Flow::Continue)
    }

    fn on_evaluation(&mut self, report: &EvaluationReport, _: &mut dyn Training) -> Result<Flow> {
        self.write(report.step, &EvaluationLine::new(report));
        Ok(Flow::Continue)
    }

    fn on_end(&mut self, _: &mut dyn Training) -> Result<()> {
        fs::rename(&self.partial, &self.path)
            .map_err(|source| TrainError::File { path: self.path.clone(), source })
    }
}

/// The lines of up to `step` steps, and the number of damaged lines. The last line of a killed run
/// may be cut off, which is no damage.
fn lines_up_to(step: u64, text: &[u8]) -> (Vec<u8>, usize) {
    let (mut kept, mut damaged_count) = (Vec::new(), 0);
    let step_of = |line: &[u8]| serde_json::from_slice::<Value>(line).ok()?["step"].as_u64();
    for line in text.split_inclusive(|&byte| byte == b'\n').filter(|line| line.ends_with(b"\n")) {
        match step_of(line) {
            Some(line_step) if line_step <= step => kept.extend_from_slice(line),
            Some(_) => {}
            None => damaged_count += 1,
        }
    }
    (kept, damaged_count)
}

/// Cuts a file off after `len_bytes` bytes, and moves the write position there.
fn cut(file: &mut File, len_bytes: u64) -> io::Result<()> {
    file.set_len(len_bytes)?;
    file.seek(SeekFrom::Start(len_bytes)).map(drop)
}
