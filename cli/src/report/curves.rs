//! Everything that a run measures, from the lines of its `metrics.jsonl`.

use std::fs;
use std::path::Path;

use lowtide_trainer::{Result, TrainError};
use serde_json::{Map, Value};

/// Every metric of a run over its steps, and the steps that did not go straight through.
///
/// Made from the objects of `metrics.jsonl`, line by line: every number in them but the step and
/// the epoch is a point of the series of that name, so that metrics of a task's own need nothing
/// further.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curves {
    series: Vec<Series>,
    retries: Vec<(u64, String)>,
    skipped: Vec<u64>,
    last_step: u64,
    epoch: u64,
}

/// One metric.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// As the metrics file has it, such as `loss` or `test_loss`.
    pub name: String,
    /// Whether it comes from evaluations: its name then begins with that of a set.
    pub is_evaluation: bool,
    /// Steps, counted from 1, and values, in order. A value that was not finite is NaN.
    pub points: Vec<(u64, f64)>,
}

impl Series {
    /// The set that was evaluated, `test` of `test_loss`, and the metric. What a step tells is of
    /// no set.
    pub fn set_and_metric(&self) -> (Option<&str>, &str) {
        match self.name.split_once('_') {
            Some((set, metric)) if self.is_evaluation => (Some(set), metric),
            _ => (None, &self.name),
        }
    }

    /// The last finite value, with its step.
    pub fn last(&self) -> Option<(u64, f64)> {
        self.finite().next_back()
    }

    /// The lowest finite value, the first of equals.
    pub fn lowest(&self) -> Option<(u64, f64)> {
        self.finite().min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// The highest finite value, the first of equals.
    pub fn highest(&self) -> Option<(u64, f64)> {
        self.finite().rev().max_by(|a, b| a.1.total_cmp(&b.1))
    }

    fn finite(&self) -> impl DoubleEndedIterator<Item = (u64, f64)> + '_ {
        self.points.iter().copied().filter(|(_, value)| value.is_finite())
    }
}

impl Curves {
    /// The curves of a metrics file. Its last line may be cut off, as in a run that was killed.
    ///
    /// # Errors
    /// `File` if it cannot be read; `Setting` if a line is no JSON object.
    pub fn read(path: &Path) -> Result<Curves> {
        let text = fs::read_to_string(path)
            .map_err(|source| TrainError::File { path: path.to_owned(), source })?;
        let mut curves = Curves::default();
        for (index, line) in text.split_inclusive('\n').enumerate() {
            match serde_json::from_str(line) {
                Ok(Value::Object(line)) => curves.add(&line),
                Err(_) if !line.ends_with('\n') => {}
                _ => {
                    let place = format!("{}:{}", path.display(), index + 1);
                    let problem = "not a JSON object".to_owned();
                    return Err(TrainError::Setting { place, problem });
                }
            }
        }
        Ok(curves)
    }

    /// Takes in one line of the metrics. A line without a step says nothing.
    pub fn add(&mut self, line: &Map<String, Value>) {
        let Some(step) = line.get("step").and_then(Value::as_u64) else { return };
        self.last_step = self.last_step.max(step);
        self.epoch = self.epoch.max(line.get("epoch").and_then(Value::as_u64).unwrap_or(0));
        // Only steps have a batch.
        let is_evaluation = !line.contains_key("batch");
        self.add_numbers("", step, is_evaluation, line);
        let retries = line.get("retries").and_then(Value::as_array);
        self.retries.extend(retries.into_iter().flatten().map(|retry| (step, told(retry))));
        if line.get("skipped") == Some(&Value::Bool(true)) {
            self.skipped.push(step);
        }
        let number = |name| line.get(name).and_then(Value::as_f64);
        if let (Some(batch), Some(seconds)) = (number("batch"), number("seconds"))
            && seconds > 0.0
        {
            self.push("samples_per_second", step, batch / seconds, false);
        }
    }

    fn add_numbers(
        &mut self,
        prefix: &str,
        step: u64,
        is_evaluation: bool,
        line: &Map<String, Value>,
    ) {
        for (key, value) in line {
            let name = match key.as_str() {
                "step" | "epoch" if prefix.is_empty() => continue,
                "seconds" if is_evaluation => "evaluation_seconds".to_owned(),
                _ => format!("{prefix}{key}"),
            };
            match value {
                // A number that is not finite is null in JSON.
                Value::Number(_) | Value::Null => {
                    let value = value.as_f64().unwrap_or(f64::NAN);
                    self.push(&name, step, value, is_evaluation);
                }
                Value::Object(inner) => {
                    self.add_numbers(&format!("{name}."), step, is_evaluation, inner);
                }
                _ => {}
            }
        }
    }

    fn push(&mut self, name: &str, step: u64, value: f64, is_evaluation: bool) {
        let known = self.series.iter().position(|series| series.name == name);
        let index = known.unwrap_or_else(|| {
            // How long an evaluation takes is of no set.
            let is_evaluation = is_evaluation && name != "evaluation_seconds";
            let points = Vec::new();
            self.series.push(Series { name: name.to_owned(), is_evaluation, points });
            self.series.len() - 1
        });
        self.series[index].points.push((step, value));
    }

    /// Every metric, and `samples_per_second`, which follows from two of them.
    pub fn series(&self) -> &[Series] {
        &self.series
    }

    /// The metric of that name.
    pub fn get(&self, name: &str) -> Option<&Series> {
        self.series.iter().find(|series| series.name == name)
    }

    /// Steps that were rolled back and tried again, and why, in order.
    pub fn retries(&self) -> &[(u64, String)] {
        &self.retries
    }

    /// Steps whose update was left out because something in them was not finite.
    pub fn skipped(&self) -> &[u64] {
        &self.skipped
    }

    /// The last step; 0 before the first.
    pub fn last_step(&self) -> u64 {
        self.last_step
    }

    /// The epoch of the last step, counted from 1; 0 before the first.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }
}

/// Why a step was tried again, and how it went on.
fn told(retry: &Value) -> String {
    let text = |name| retry.get(name).and_then(Value::as_str);
    let reason = text("reason").unwrap_or("not told");
    match text("recovery") {
        Some(recovery) => format!("{reason}; again with {recovery}"),
        None => reason.to_owned(),
    }
}
