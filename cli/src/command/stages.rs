//! The stages of a pipeline, side by side.

use std::ops::Range;

use lowtide_trainer::{Forecasts, Plan, Result, seconds_of};
use serde_json::{Value, json};

use crate::command::rows::Row;
use crate::human::{exact_bytes, format_bytes, format_seconds};
use crate::json::with_knobs;

/// The plan of a stage, its blocks, and the bytes that it sends in a step.
pub(super) type Planned = (Plan, Range<usize>, usize);

/// The plan of each stage; empty without a pipeline.
#[derive(Default)]
pub(super) struct Stages {
    stages: Vec<Stage>,
    /// Simulated seconds of a step without sending and without the update.
    seconds: f64,
}

/// A stage of a pipeline.
struct Stage {
    blocks: Range<usize>,
    plan: Plan,
    /// The share of a step in which the stage waits for others.
    idle: f64,
    /// Bytes that the stage sends in a step.
    sent_bytes: usize,
}

impl Stages {
    /// Plans all stages with the largest micro-batch that every stage can take. Also returns the
    /// index of the stage that needs most. `plan` makes the plan of a stage from its index and the
    /// largest micro-batch.
    ///
    /// # Errors
    /// Errors of `plan`.
    pub(super) fn of(
        count: usize,
        plan: impl Fn(usize, usize, &Forecasts) -> Result<Planned>,
    ) -> Result<(Stages, usize)> {
        let forecasts: Vec<Forecasts> = (0..count).map(|_| Forecasts::default()).collect();
        let mut size_max = usize::MAX;
        let planned = loop {
            let all = forecasts.iter().enumerate();
            let all = all.map(|(index, forecasts)| plan(index, size_max, forecasts));
            let all = all.collect::<Result<Vec<_>>>()?;
            let sizes = || all.iter().map(|(plan, ..)| plan.knobs.micro_batch);
            let least = sizes().min().unwrap_or(1);
            if sizes().all(|size| size == least) {
                break all;
            }
            size_max = least;
        };
        let parts = planned[0].0.micro_batches();
        let times = planned.iter().map(|(plan, ..)| plan.forecast.stage_seconds);
        let times: Vec<[f64; 2]> = times.map(Option::unwrap_or_default).collect();
        let seconds = seconds_of(&times, parts);
        let stage = |((plan, blocks, sent_bytes), [forward, backward]): (Planned, [f64; 2])| {
            let busy = parts as f64 * (forward + backward);
            Stage { blocks, idle: 1.0 - busy / seconds, plan, sent_bytes }
        };
        let stages: Vec<Stage> = planned.into_iter().zip(times).map(stage).collect();
        let peaks = stages.iter().map(|stage| stage.plan.predicted_peak_bytes());
        let most = peaks.enumerate().max_by_key(|&(_, bytes)| bytes).map_or(0, |(at, _)| at);
        Ok((Stages { stages, seconds }, most))
    }

    /// The plan of the stage `index`, and the most bytes that any stage sends in a step.
    pub(super) fn plan_of(mut self, index: usize) -> (Plan, usize) {
        let sent_bytes = self.stages.iter().map(|stage| stage.sent_bytes).max().unwrap_or(0);
        (self.stages.swap_remove(index).plan, sent_bytes)
    }

    /// Number of samples of a micro-batch; no limit without a pipeline.
    pub(super) fn micro_batch(&self) -> usize {
        self.stages.first().map_or(usize::MAX, |stage| stage.plan.knobs.micro_batch)
    }

    /// The table of the stages, and the seconds of a step if rates were measured.
    pub(super) fn row(&self, is_measured: bool) -> Row {
        Row::block(self.lines(is_measured)).with("stages", self.to_json())
    }

    fn lines(&self, is_measured: bool) -> Vec<String> {
        if self.stages.is_empty() {
            return Vec::new();
        }
        let time = is_measured.then(|| {
            let seconds = format_seconds(self.seconds);
            format!("a step but for sending and the update takes {seconds}")
        });
        let head =
            format!("stage  blocks    {:<32}{:<14}{:<8}plan", "peak", "sends a step", "idle");
        let rows = self.stages.iter().enumerate();
        let rows = rows.map(|(index, Stage { blocks, plan, idle, sent_bytes })| {
            let peak = exact_bytes(plan.predicted_peak_bytes());
            let (sent, of) = (format_bytes(*sent_bytes as u64), blocks.len());
            let (first, last) = (blocks.start, blocks.end - 1);
            let blocks = if of == 1 { first.to_string() } else { format!("{first} to {last}") };
            let (idle, knobs) = (format!("{:.0} %", 100.0 * idle), plan.knobs);
            format!("{index:<7}{blocks:<10}{peak:<32}{sent:<14}{idle:<8}{knobs}")
        });
        std::iter::once(String::new()).chain(time).chain([head]).chain(rows).collect()
    }

    fn to_json(&self) -> Value {
        let stages = self.stages.iter().map(|Stage { blocks, plan, idle, sent_bytes }| {
            with_knobs(
                plan.knobs,
                json!({
                    "blocks": [blocks.start, blocks.end],
                    "predicted_peak_bytes": plan.predicted_peak_bytes(),
                    "idle": idle,
                    "sent_bytes": sent_bytes,
                }),
            )
        });
        stages.collect()
    }
}
