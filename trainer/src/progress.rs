//! Progress on the terminal: a bar, or a plain line per epoch where there is none.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::Result;
use crate::observer::{EpochReport, Flow, Observer, Recovery, RunStart, StepReport};

/// Shows progress on standard error.
pub struct Progress {
    bar: Option<ProgressBar>,
    epoch_count: u64,
    /// Losses of the epoch's steps: their sum and how many.
    losses: (f64, u64),
}

impl Progress {
    /// A bar if standard error is a terminal, lines otherwise.
    #[expect(clippy::new_without_default, reason = "it looks at the terminal")]
    pub fn new() -> Self {
        let bar = io::stderr().is_terminal().then(|| ProgressBar::no_length().with_style(style()));
        Progress { bar, epoch_count: 0, losses: (0.0, 0) }
    }

    fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            // Nothing is lost with a progress line when standard error is closed.
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
    fn on_start(&mut self, start: &RunStart) -> Result<()> {
        self.epoch_count = start.epoch_count;
        self.say(&format!("plan: {}", start.plan));
        if let Some(bar) = &self.bar {
            bar.set_length(start.step_count);
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        Ok(())
    }

    fn on_step(&mut self, report: &StepReport) -> Result<Flow> {
        for retry in &report.retries {
            let then = match retry.recovery {
                Recovery::SamePlan => "again with the same plan".to_owned(),
                Recovery::SmallerMicroBatch { micro_batch } => {
                    format!("on with micro-batches of {micro_batch}")
                }
            };
            // The whole ledger is in the metrics and in the report.
            let what = retry.failure.headline();
            self.say(&format!("step {}: {what}; rolled back, {then}", report.step));
        }
        self.losses = (self.losses.0 + report.loss, self.losses.1 + 1);
        if let Some(bar) = &self.bar {
            bar.set_message(format!("loss {:.4}", report.loss));
            bar.set_position(report.step);
        }
        Ok(Flow::Continue)
    }

    fn on_epoch(&mut self, report: &EpochReport) -> Result<Flow> {
        let accuracy = report.test.accuracy();
        let (sum, count) = std::mem::take(&mut self.losses);
        let line = format!(
            "epoch {}/{}: train loss {:.4}, test loss {:.4}, test accuracy {accuracy:.4}",
            report.epoch,
            self.epoch_count,
            sum / count as f64,
            report.test.loss(),
        );
        self.say(&line);
        Ok(Flow::Continue)
    }

    fn on_end(&mut self) -> Result<()> {
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
