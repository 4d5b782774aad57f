//! The content of a run's page, and how it is read from a folder.

use std::fs;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use lowtide_allocator::files::read_input_text;
use lowtide_trainer::{Result, TrainError, partial_of};
use serde_json::Value;

use super::about::{About, date};
use super::charts::{grouped, quantity, title};
use super::curves::{Curves, Series};
use super::page;
use crate::human::exact_bytes;
use crate::run_dir::{RunDir, SUMMARY_BYTES_MAX};
use crate::timeline::RecordedStep;

/// A run in progress or a finished run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// The origin of the run: the program, its arguments, the machine.
    pub about: About,
    /// The state of the run.
    pub status: Status,
    /// Number of steps at the planned end of the run, including earlier steps of the training; 0 if
    /// unknown.
    pub steps_planned: u64,
    /// Number of epochs at the planned end of the run; 0 if unknown.
    pub epochs_planned: u64,
    /// Wall time so far; 0 if unknown.
    pub seconds: f64,
    /// Every metric.
    pub curves: Curves,
    /// The memory of one step.
    pub memory: Option<RecordedStep>,
    /// The budget on reserved bytes.
    pub budget_bytes: Option<u64>,
    /// Other lines of the summary: name and value.
    pub facts: Vec<(String, String)>,
}

/// The state of a run when its page is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Status {
    /// The run goes on. A browser reloads its page every few seconds.
    Running {
        /// The time at which the page was written.
        written: SystemTime,
    },
    /// The run has ended without an error, after its last step or an earlier stop.
    #[default]
    Finished,
    /// The run was ended by an error.
    Failed,
}

impl Run {
    /// Reads a run from its folder: metrics, recipe and summary. The title is the name of the
    /// folder. The metrics of an interrupted run are used as far as they go.
    /// # Errors
    /// `File` if there are no metrics or a file cannot be read; `Setting` for an invalid line of
    /// the metrics.
    pub fn read(folder: &Path) -> Result<Run> {
        let files = RunDir::open(folder)?;
        let name = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
        let name = name.file_name().map_or_else(String::new, |name| name.to_string_lossy().into());
        let mut run = Run { about: About { title: name, ..About::default() }, ..Run::default() };

        let (whole, partial) = (files.metrics(), partial_of(&files.metrics()));
        let is_whole = whole.exists() || !partial.exists();
        run.curves = Curves::read(if is_whole { &whole } else { &partial })?;
        run.status = if is_whole { Status::Finished } else { Status::Failed };
        run.about.recipe = optional(&files.recipe())?.unwrap_or_default();
        let summary = optional(&files.summary())?.unwrap_or_default();
        if let Ok(Value::Object(summary)) = serde_json::from_str(&summary) {
            run.budget_bytes = summary.get("budget_bytes").and_then(Value::as_u64);
            run.seconds = summary.get("seconds").and_then(Value::as_f64).unwrap_or(0.0);
            // The curves show the other members.
            let figures = summary.iter().filter(|(name, value)| {
                let says = !value.is_null() && **value != Value::Bool(false);
                says && run.curves.get(name).is_none() && is_own_figure(name)
            });
            run.facts = figures.map(|(name, value)| (title(name), figure(name, value))).collect();
        }
        Ok(run)
    }

    /// The page: valid HTML that opens from disk and needs no network. The same run gives the same
    /// bytes.
    pub fn to_html(&self) -> String {
        page::of_run(self)
    }

    /// The last finite value of a metric.
    pub fn last(&self, name: &str) -> Option<f64> {
        self.curves.get(name)?.last().map(|(_, value)| value)
    }

    /// All lines of the summary, name and value in reading order.
    pub(super) fn all_facts(&self) -> Vec<(String, String)> {
        let mut facts = vec![("Status".to_owned(), self.told())];
        if self.seconds > 0.0 {
            facts.push(("Time".to_owned(), duration(self.seconds)));
        }
        let last = |name: &str| self.curves.get(name).and_then(Series::last);
        let named = |name: &str, title: String| Some((title, quantity(name, last(name)?.1)));
        facts.extend(named("loss", "Last train loss".to_owned()));
        let evaluated = self.curves.series().iter().filter(|series| series.is_evaluation);
        facts.extend(evaluated.filter_map(|series| named(&series.name, title(&series.name))));
        for name in ["samples_per_second", "learning_rate"] {
            facts.extend(named(name, title(name)));
        }
        if let (Some((_, batch)), Some((_, micro_batch))) =
            (last_full(self, "batch"), last_full(self, "micro_batch"))
        {
            facts.push(("Micro-batch".to_owned(), format!("{micro_batch} of {batch}")));
        }
        let bytes = |bytes: u64| exact_bytes(bytes as usize);
        facts.extend(self.budget_bytes.map(|budget| ("Budget".to_owned(), bytes(budget))));
        let planned = self.memory.as_ref().and_then(|step| step.notes.planned_peak_bytes);
        facts.extend(planned.map(|peak| ("Predicted peak".to_owned(), bytes(peak))));
        if let Some((_, peak)) = last("reserved_peak_bytes") {
            facts.push(("Measured peak".to_owned(), bytes(peak as u64)));
        }
        let mut retried: Vec<u64> = self.curves.retries().iter().map(|(step, _)| *step).collect();
        retried.dedup();
        facts.push(("Retried steps".to_owned(), retried.len().to_string()));
        if !self.curves.skipped().is_empty() {
            facts.push(("Skipped updates".to_owned(), self.curves.skipped().len().to_string()));
        }
        // Facts of the training program replace facts of the same name.
        facts.retain(|(name, _)| self.facts.iter().all(|(own, _)| own != name));
        facts.extend(self.facts.iter().cloned());
        facts
    }

    /// The progress of the run, in words.
    fn told(&self) -> String {
        let step = self.curves.last_step();
        let steps = match self.steps_planned {
            0 => format!("step {}", grouped(step)),
            planned => format!("step {} of {}", grouped(step), grouped(planned)),
        };
        let epochs = match (self.curves.epoch(), self.epochs_planned) {
            (0, _) => String::new(),
            (epoch, 0) => format!(", epoch {epoch}"),
            (epoch, planned) => format!(", epoch {epoch} of {planned}"),
        };
        match self.status {
            Status::Running { written } => {
                format!("running: {steps}{epochs}, written {}", date(written))
            }
            Status::Failed => format!("ended by an error after {steps}{epochs}"),
            Status::Finished if step < self.steps_planned => {
                format!("stopped after {steps}{epochs}")
            }
            Status::Finished => format!("finished: {steps}{epochs}"),
        }
    }
}

/// The last value of a metric at a step with a full batch. A short last batch tells nothing about
/// the plan.
fn last_full(run: &Run, name: &str) -> Option<(u64, f64)> {
    let batches = run.curves.get("batch")?;
    let (_, full) = batches.highest()?;
    let full_steps = batches.points.iter().rev().filter(|&&(_, batch)| batch == full);
    let step = full_steps.map(|&(step, _)| step).next()?;
    run.curves.get(name)?.points.iter().rev().find(|&&(at, _)| at == step).copied()
}

/// A wall time in hours, minutes and seconds.
pub(super) fn duration(seconds: f64) -> String {
    let whole = seconds as u64;
    match whole {
        0..60 => format!("{seconds:.1} s"),
        60..3_600 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3_600, whole / 60 % 60),
    }
}

/// True if a member of the summary is not shown by a curve and fits into a line.
fn is_own_figure(name: &str) -> bool {
    const OF_CURVES: [&str; 5] = ["epochs", "retried_steps", "seconds", "steps", "train_loss_last"];
    const OF_FILES: [&str; 3] = ["base_files", "model_file", "product_kernels"];
    !OF_CURVES.contains(&name) && !OF_FILES.contains(&name)
}

/// A member of the summary as text.
fn figure(name: &str, value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.as_f64().map_or_else(String::new, |v| quantity(name, v)),
        other => other.to_string(),
    }
}

/// The text of a file of a run; `None` if the file does not exist.
fn optional(path: &Path) -> Result<Option<String>> {
    match read_input_text(path, SUMMARY_BYTES_MAX) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TrainError::File { path: path.to_owned(), source }),
    }
}
