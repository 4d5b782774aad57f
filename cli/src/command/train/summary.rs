//! The outcome of a run: for people, for programs, and for the report.

use lowtide_trainer::{Parallelism, Plan};
use serde_json::Value;

use crate::command::device::tell_budget;
use crate::command::process::Process;
use crate::command::rows::Row;
use crate::human::exact_bytes;
use crate::recipe::Recipe;
use crate::run_dir::{RunDir, Summary};

/// Columns of the labels of a summary.
pub(super) const LABEL_COLUMNS: usize = 16;

/// The summary with the folder of the run.
pub(super) fn summary_json(summary: &Summary, run_dir: &RunDir) -> Value {
    let mut json = serde_json::to_value(summary).expect("a summary has only plain values");
    json["run_dir"] = run_dir.path().display().to_string().into();
    json
}

/// The outcome of a run that has ended.
pub(super) struct Outcome<'a> {
    pub(super) summary: &'a Summary,
    pub(super) plan: &'a Plan,
    pub(super) process: Option<&'a Process>,
    pub(super) run_dir: &'a RunDir,
    /// The number of the device allocation that failed in a drill.
    pub(super) fault_at: Option<u64>,
}

impl Outcome<'_> {
    /// The run as rows.
    pub(super) fn rows(&self) -> Vec<Row> {
        let mut rows = self.values();
        rows.extend(self.choices());
        rows.extend(self.memory());
        let Summary { retried_steps, final_state_hash, .. } = self.summary;
        let folder = format!("{} (open report.html)", self.run_dir.path().display());
        rows.extend([
            Row::new("retried steps", [retried_steps.to_string()]),
            Row::new("state hash", [final_state_hash.clone()]),
            Row::new("run folder", [folder]),
            Row::new("drill", self.drill()),
        ]);
        rows
    }

    fn values(&self) -> Vec<Row> {
        let Summary { epochs, steps, seconds, values, train_loss_last, .. } = self.summary;
        let trained = format!("{epochs} epochs, {steps} steps, in {seconds:.1} s");
        // Names of metrics are not known here, and may be wider than the column of labels.
        let values = values.iter().map(|(name, value)| {
            let value = value.unwrap_or(f64::NAN);
            format!("{:<LABEL_COLUMNS$} {value:.4}", name.replace('_', " "))
        });
        vec![
            Row::new("trained", [trained]),
            Row::block(values),
            Row::new("train loss", [format!("{train_loss_last:.6} in the last step")]),
        ]
    }

    /// The rows of parallelism, knobs and numerics.
    fn choices(&self) -> Vec<Row> {
        let Summary { knobs, numerics, zero, .. } = self.summary;
        let divided = zero.divided().filter(|_| self.summary.ranks > 1);
        let divided = divided.map(|what| format!("{what} among the ranks, each with a part"));
        let micro_batch = format!("{} of {}", knobs.micro_batch, self.plan.batch_size);
        // Each change has its own label.
        let numerics = numerics.iter().map(|change| {
            Row::new("numerics", [format!("{change}, which was allowed: it does not fit without")])
        });
        let recomputes = knobs.cheap_recomputed || knobs.recomputed_blocks > 0;
        let offloaded = (knobs.offloaded_blocks > 0).then(|| {
            let peak = exact_bytes(self.plan.forecast.offloaded_peak_bytes);
            format!("{} blocks, {peak} of the host", knobs.offloaded_blocks)
        });
        let fused = knobs
            .fused_update
            .then(|| "fused, each parameter as soon as its gradient is complete".to_owned());
        let mut rows = vec![
            Row::new("ranks", self.ranks()),
            Row::new("divided", divided),
            Row::new("micro-batch", [micro_batch]),
        ];
        rows.extend(numerics);
        rows.extend([
            Row::new("recomputed", recomputes.then(|| knobs.recomputed())),
            Row::new("offloaded", offloaded),
            Row::new("update", fused),
        ]);
        rows
    }

    fn ranks(&self) -> Option<String> {
        let &Summary { ranks, batch_size, zero, .. } = self.summary;
        (ranks > 1).then(|| match zero {
            Parallelism::Pipeline => format!("{ranks}, each with a stage of the model"),
            Parallelism::TensorParallel => {
                format!("{ranks}, each with all of {batch_size} samples")
            }
            _ => format!("{ranks}, each with {} of {batch_size} samples", self.plan.batch_size),
        })
    }

    fn memory(&self) -> Vec<Row> {
        let Summary { budget_bytes, budget_from, outside_bytes, products, .. } = self.summary;
        let outside = (*outside_bytes > 0)
            .then(|| format!("{} beside the budget", exact_bytes(*outside_bytes)));
        vec![
            Row::new("budget", [tell_budget(*budget_bytes, budget_from)]),
            Row::new("process", self.process.map(Process::headline)),
            Row::new("outside", outside),
            Row::new("products", products.as_ref().map(|products| format!("by {products}"))),
            Row::new("predicted peak", [exact_bytes(self.summary.predicted_peak_bytes)]),
            Row::new("measured peak", [exact_bytes(self.summary.measured_peak_bytes)]),
        ]
    }

    /// The effect of a drill, if no step was retried.
    fn drill(&self) -> Option<String> {
        let (nth, made) = (self.fault_at?, self.summary.allocations);
        if nth > made {
            return Some(format!("allocation {nth} was never made: there were {made}"));
        }
        (self.summary.retried_steps == 0)
            .then(|| format!("allocation {nth} failed in an evaluation, done again"))
    }
}

/// The facts of a training, for the report.
pub(super) fn facts(
    recipe: &Recipe,
    plan: &Plan,
    summary: &Summary,
    computer: &str,
) -> Vec<(String, String)> {
    let outside = (summary.outside_bytes > 0).then(|| exact_bytes(summary.outside_bytes));
    let numerics = (!summary.numerics.is_empty()).then(|| summary.numerics.join(", "));
    let facts = [
        ("Time", Some(format!("{:.1} s on {computer}", summary.seconds))),
        ("Numerics changed to fit", numerics),
        ("Plan", Some(format!("{}: {}", plan.knobs, plan.reasons().join("; ")))),
        ("Ranks", (summary.ranks > 1).then(|| summary.ranks.to_string())),
        ("Divided among them", summary.zero.divided().map(str::to_owned)),
        ("Seed", Some(recipe.train.seed.to_string())),
        ("State hash", Some(summary.final_state_hash.clone())),
        ("Outside the allocator", outside),
        ("Matrix products", summary.products.clone()),
    ];
    facts.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}
