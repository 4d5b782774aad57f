//! All measurements of a run, from the lines of its `metrics.jsonl`.

use std::path::Path;

use lowtide_allocator::files::read_input;
use lowtide_trainer::{METRICS_BYTES_MAX, Result, TrainError};
use serde_json::{Map, Value};

/// Every metric of a run by step, and the steps that were retried or skipped.
///
/// Built from the objects of `metrics.jsonl`, line by line. Every number except the step and the
/// epoch is a point of the series of that name, so a task's own metrics need nothing further.
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
    /// The name of the metric in the metrics file, such as `loss` or `test_loss`.
    pub name: String,
    /// True if the values come from evaluations. The name then begins with the name of a set.
    pub is_evaluation: bool,
    /// Pairs of a step, counted from 1, and a value, in order. A value that was not finite is NaN.
    pub points: Vec<(u64, f64)>,
}

impl Series {
    /// The evaluated set and the metric, such as `test` and `loss` for `test_loss`. A metric of
    /// training steps has no set.
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

    /// The lowest finite value with its step, the first of equals.
    pub fn lowest(&self) -> Option<(u64, f64)> {
        self.finite().min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// The highest finite value with its step, the first of equals.
    pub fn highest(&self) -> Option<(u64, f64)> {
        self.finite().rev().max_by(|a, b| a.1.total_cmp(&b.1))
    }

    fn finite(&self) -> impl DoubleEndedIterator<Item = (u64, f64)> + '_ {
        self.points.iter().copied().filter(|(_, value)| value.is_finite())
    }
}

impl Curves {
    /// Reads the curves of a metrics file. The last line may be cut off, as in a killed run.
    ///
    /// # Errors
    /// `File` if it cannot be read; `Setting` if a line is no JSON object.
    pub fn read(path: &Path) -> Result<Curves> {
        let text = read_input(path, METRICS_BYTES_MAX)
            .map_err(|source| TrainError::File { path: path.to_owned(), source })?;
        let mut curves = Curves::default();
        for (index, line) in text.split_inclusive(|&byte| byte == b'\n').enumerate() {
            match serde_json::from_slice(line) {
                Ok(Value::Object(line)) => curves.add(&line),
                Err(_) if !line.ends_with(b"\n") => {}
                _ => {
                    let place = format!("{}:{}", path.display(), index + 1);
                    let problem = "not a JSON object".to_owned();
                    return Err(TrainError::Setting { place, problem });
                }
            }
        }
        Ok(curves)
    }

    /// Adds a line of the metrics. A line without a step is ignored.
    pub fn add(&mut self, line: &Map<String, Value>) {
        let Some(step) = line.get("step").and_then(Value::as_u64) else { return };
        self.last_step = self.last_step.max(step);
        self.epoch = self.epoch.max(line.get("epoch").and_then(Value::as_u64).unwrap_or(0));
        // Only lines of steps have a batch.
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
            // The duration of an evaluation belongs to no set.
            let is_evaluation = is_evaluation && name != "evaluation_seconds";
            let points = Vec::new();
            self.series.push(Series { name: name.to_owned(), is_evaluation, points });
            self.series.len() - 1
        });
        self.series[index].points.push((step, value));
    }

    /// All metrics, and `samples_per_second`, which is computed from two of them.
    pub fn series(&self) -> &[Series] {
        &self.series
    }

    /// The metric of this name.
    pub fn get(&self, name: &str) -> Option<&Series> {
        self.series.iter().find(|series| series.name == name)
    }

    /// Steps that were rolled back and retried, with the reasons, in order.
    pub fn retries(&self) -> &[(u64, String)] {
        &self.retries
    }

    /// Steps whose update was skipped because something in them was not finite.
    pub fn skipped(&self) -> &[u64] {
        &self.skipped
    }

    /// The last step; 0 before the first step.
    pub fn last_step(&self) -> u64 {
        self.last_step
    }

    /// The epoch of the last step, counted from 1; 0 before the first step.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }
}

/// The reason for a retry, and the recovery, in words.
fn told(retry: &Value) -> String {
    let text = |name| retry.get(name).and_then(Value::as_str);
    let reason = text("reason").unwrap_or("not told");
    match text("recovery") {
        Some(recovery) => format!("{reason}; again with {recovery}"),
        None => reason.to_owned(),
    }
}
