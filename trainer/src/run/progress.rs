//! Progress on the terminal: a bar, or one line for each evaluation if standard error is no
//! terminal.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use lowtide_allocator::Bytes;

use crate::error::Result;
use crate::run::observer::{
    EvaluationReport, Flow, Observer, Recovery, RunStart, StepReport, Training,
};

/// Shows progress on standard error.
pub struct Progress {
    bar: Option<ProgressBar>,
    epoch_count: u64,
    steps_before: u64,
    /// The plan's peak; `None` once a step took more.
    predicted_peak_bytes: Option<usize>,
    /// Sum and number of the losses since the last evaluation.
    losses: (f64, u64),
}

impl Progress {
    /// Shows a bar if standard error is a terminal, lines otherwise.
    #[expect(clippy::new_without_default, reason = "it looks at the terminal")]
    pub fn new() -> Self {
        let bar = io::stderr().is_terminal().then(|| ProgressBar::no_length().with_style(style()));
        let (epoch_count, steps_before, predicted_peak_bytes) = (0, 0, None);
        Progress { bar, epoch_count, steps_before, predicted_peak_bytes, losses: (0.0, 0) }
    }

    fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            // If standard error is closed, progress lines are dropped.
            None => drop(writeln!(io::stderr(), "{line}")),
        }
    }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template(
        "{bar:32.cyan/blue} {pos}/{len} steps  {msg}  {elapsed} gone, {eta} left",
    )
    .expect("a valid template")
}

impl Observer for Progress {
    fn on_start(&mut self, start: &RunStart, _: &mut dyn Training) -> Result<()> {
        (self.epoch_count, self.steps_before) = (start.epoch_count, start.steps_before);
        self.predicted_peak_bytes = Some(start.plan.predicted_peak_bytes());
        self.say(&format!("plan: {}", start.plan));
        if let Some(bar) = &self.bar {
            bar.set_length(start.step_count);
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        Ok(())
    }

    fn on_step(&mut self, report: &StepReport, training: &mut dyn Training) -> Result<Flow> {
        for retry in &report.retries {
            let then = match retry.recovery {
                Recovery::SamePlan => "again with the same plan".to_owned(),
                Recovery::Waited { seconds } => {
                    format!("waited {seconds:.1} s for memory to come back")
                }
                Recovery::CheapRecomputation => "on with cheap results recomputed".to_owned(),
                Recovery::MoreRecomputation { blocks } => {
                    format!("on with {blocks} blocks recomputed")
                }
                Recovery::Offload { blocks } => format!("on with {blocks} blocks offloaded"),
                Recovery::FusedUpdate => "on with a fused update".to_owned(),
                Recovery::SmallerMicroBatch { micro_batch } => {
                    format!("on with micro-batches of {micro_batch}")
                }
            };
            // The whole ledger is in the metrics and in the report; the line has only its headline.
            let what = retry.failure.headline();
            self.say(&format!("step {}: {what}; rolled back, {then}", report.step));
        }
        if report.skipped {
            self.say(&format!("step {}: skipped, it was not finite", report.step));
        }
        let peak_bytes = report.reserved_peak_bytes;
        if let Some(predicted) = self.predicted_peak_bytes.take_if(|plan| *plan < peak_bytes) {
            let [peak, predicted] = [peak_bytes, predicted].map(|bytes| Bytes(bytes as u64));
            self.say(&format!(
                "note: step {} has a peak of {peak}, the plan {predicted}: the batch is not like \
                 the first one",
                report.step
            ));
        }
        self.losses = (self.losses.0 + report.loss, self.losses.1 + 1);
        if let Some(bar) = &self.bar {
            let rate = report.batch as f64 / report.seconds;
            let statistics = training.device().allocator().statistics();
            let [held, budget] = [statistics.reserved.current_bytes, statistics.capacity_bytes]
                .map(|bytes| Bytes(bytes as u64));
            let loss = report.loss;
            bar.set_message(format!("loss {loss:.4}  {rate:.0} samples/s  {held} of {budget}"));
            bar.set_position(report.step - self.steps_before);
        }
        Ok(Flow::Continue)
    }

    fn on_evaluation(&mut self, report: &EvaluationReport, _: &mut dyn Training) -> Result<Flow> {
        let (sum, count) = std::mem::take(&mut self.losses);
        let mut line = format!("epoch {}/{}", report.epoch, self.epoch_count);
        if !report.ends_epoch {
            line += &format!(", step {}", report.step);
        }
        line += &format!(": train loss {:.4}", sum / count as f64);
        for (set, score) in &report.scores {
            line += &format!(", {set} loss {:.4}", score.loss());
            for metric in score.metrics() {
                line += &format!(", {set} {} {:.4}", metric.name(), metric.value());
                if !metric.unit().is_empty() {
                    line += &format!(" {}", metric.unit());
                }
            }
        }
        self.say(&line);
        Ok(Flow::Continue)
    }

    fn on_end(&mut self, _: &mut dyn Training) -> Result<()> {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        Ok(())
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
