//! Metrics as JSON lines: one object per step and per epoch.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use crate::error::{Result, TrainError};
use crate::json::ledger_json;
use crate::observer::{EpochReport, Flow, Observer, Recovery, StepReport};

/// Writes `metrics.jsonl`, beside its place until the run ends.
pub struct Metrics {
    path: PathBuf,
    partial: PathBuf,
    file: BufWriter<File>,
}

#[derive(Serialize)]
struct StepLine {
    step: u64,
    epoch: u64,
    loss: f64,
    learning_rate: f64,
    batch: usize,
    micro_batch: usize,
    skipped: bool,
    retries: Vec<RetryLine>,
    reserved_peak_bytes: usize,
    seconds: f64,
}

#[derive(Serialize)]
struct RetryLine {
    reason: String,
    ledger: Value,
    recovery: String,
}

#[derive(Serialize)]
struct EpochLine {
    epoch: u64,
    step: u64,
    test_loss: f64,
    test_accuracy: f64,
}

impl Metrics {
    /// A file to be at `path` when the run has ended.
    ///
    /// # Errors
    /// `File`.
    pub fn create(path: &Path) -> Result<Self> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let (path, partial) = (path.to_owned(), PathBuf::from(partial));
        let file = File::create(&partial);
        let file = file.map_err(|source| TrainError::File { path: path.clone(), source })?;
        Ok(Metrics { path, partial, file: BufWriter::new(file) })
    }

    fn write(&mut self, line: &impl Serialize) -> Result<()> {
        let written = serde_json::to_writer(&mut self.file, line)
            .map_err(std::io::Error::from)
            .and_then(|()| self.file.write_all(b"\n"));
        self.check(written)
    }

    fn check(&self, result: std::io::Result<()>) -> Result<()> {
        result.map_err(|source| TrainError::File { path: self.path.clone(), source })
    }
}

impl Observer for Metrics {
    fn on_step(&mut self, report: &StepReport) -> Result<Flow> {
        let retries = report.retries.iter().map(|retry| RetryLine {
            reason: retry.failure.to_string(),
            ledger: ledger_json(&retry.failure),
            recovery: match retry.recovery {
                Recovery::SamePlan => "same plan".to_owned(),
                Recovery::SmallerMicroBatch { micro_batch } => {
                    format!("micro-batch {micro_batch}")
                }
            },
        });
        self.write(&StepLine {
            step: report.step,
            epoch: report.epoch,
            loss: report.loss,
            learning_rate: report.learning_rate,
            batch: report.batch,
            micro_batch: report.micro_batch,
            skipped: report.skipped,
            retries: retries.collect(),
            reserved_peak_bytes: report.reserved_peak_bytes,
            seconds: report.seconds,
        })?;
        Ok(Flow::Continue)
    }

    fn on_epoch(&mut self, report: &EpochReport) -> Result<Flow> {
        self.write(&EpochLine {
            epoch: report.epoch,
            step: report.step,
            test_loss: report.test.loss(),
            test_accuracy: report.test.accuracy(),
        })?;
        let flushed = self.file.flush();
        self.check(flushed)?;
        Ok(Flow::Continue)
    }

    fn on_end(&mut self) -> Result<()> {
        let done = self.file.flush().and_then(|()| fs::rename(&self.partial, &self.path));
        self.check(done)
    }
}
