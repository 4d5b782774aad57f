//! The plan of one budget as rows.

use lowtide_allocator::Category;
use lowtide_trainer::{Forecast, Knobs, Parallelism, Plan, categories_json, modules_json};
use serde_json::json;

use crate::command::device::{DeviceArgs, tell_budget};
use crate::command::failure;
use crate::command::parallelism_table::ParallelismTable;
use crate::command::plan::survey::Survey;
use crate::command::planning::Numerics;
use crate::command::process::Process;
use crate::command::rates::{Calibration, measured_seconds};
use crate::command::rows::Row;
use crate::command::stages::Stages;
use crate::human::{exact_bytes, format_bytes};

/// Number of modules that a plan lists.
const MODULES_SHOWN: usize = 8;

/// A plan, with the results of its rehearsal.
pub(in crate::command) struct FoundPlan {
    pub(super) plan: Plan,
    /// The parts of the process, if it has a limit.
    pub(super) process: Option<Process>,
    /// True if no smaller budget has a plan.
    pub(super) is_least: bool,
    /// Bytes of the device's memory outside the budget of tensors.
    pub(super) outside_bytes: usize,
    /// True if `outside_bytes` is an assumption, not a measurement.
    pub(super) is_assumed: bool,
    /// The library for matrix products, if an NVIDIA device was opened.
    pub(super) products: Option<String>,
    /// The measured rates of the device; `None` for nominal rates.
    pub(super) calibration: Option<Calibration>,
    /// The surveyed knobs, including the plan's, with their forecasts. The fastest comes first.
    pub(super) survey: Vec<(Knobs, Forecast)>,
    /// Changes of the recipe's numerics with which the plan fits.
    pub(super) numerics: Vec<Numerics>,
    pub(super) offload_budget: Option<usize>,
    /// Number of ranks that train together.
    pub(super) rank_count: usize,
    /// Bytes that a rank sends to the others in a step.
    pub(super) sent_bytes: usize,
    /// The parallelism of the ranks.
    pub(super) zero: Parallelism,
    /// The plans for each parallelism, if there are several ranks.
    pub(super) parallelism: ParallelismTable,
    /// The stages, if the model is cut.
    pub(super) stages: Stages,
}

impl FoundPlan {
    /// All rows, in the order in which they are printed.
    pub(super) fn rows(&self, device: &DeviceArgs) -> Vec<Row> {
        let (plan, calibration) = (&self.plan, self.calibration.as_ref());
        let times = Row::new("times", [device.tell_rates(calibration)])
            .with("rates_measured_on", calibration.map(|calibration| &calibration.measured_on))
            .with("step_seconds", measured_seconds(calibration, &plan.forecast));
        let mut rows = self.limits(device);
        rows.extend(self.choices());
        rows.extend(self.memory());
        rows.extend(self.process.iter().flat_map(Process::rows));
        rows.extend([times, self.categories(), self.modules(), self.survey()]);
        rows.push(self.parallelism.row(self.zero, calibration.is_some()));
        rows.push(self.stages.row(calibration.is_some()));
        rows.push(self.assumptions());
        rows.push(
            Row::unseen()
                .with("evaluation_batch", plan.evaluation_batch)
                .with("events", &plan.forecast.events),
        );
        rows
    }

    /// The rows of the budget, and of the memory outside it.
    fn limits(&self, device: &DeviceArgs) -> Vec<Row> {
        let &FoundPlan { outside_bytes, is_assumed, .. } = self;
        let budget_bytes = self.plan.budget_bytes;
        let (budget, origin) = if self.is_least {
            (
                format!("{}: the smallest that has a plan", exact_bytes(budget_bytes)),
                "--least".into(),
            )
        } else {
            let origin = device.budget_origin(self.process.as_ref());
            (tell_budget(budget_bytes, &origin), origin)
        };
        let assumed = if is_assumed { ", assumed" } else { "" };
        let outside = (outside_bytes > 0).then(|| {
            format!("{} of the device beside the budget{assumed}", exact_bytes(outside_bytes))
        });
        let products = self.products.as_ref().map(|products| format!("by {products}"));
        vec![
            Row::new("budget", [budget])
                .with("budget_bytes", budget_bytes)
                .with("budget_from", origin),
            Row::new("outside", outside).with("outside_bytes", outside_bytes),
            Row::new("products", products).with("products", &self.products),
        ]
    }

    /// The rows of knobs, parallelism and numerics, and of the reasons for them.
    fn choices(&self) -> Vec<Row> {
        let &FoundPlan { ref plan, rank_count, zero, sent_bytes, .. } = self;
        let share = match (rank_count, zero) {
            (1, _) => String::new(),
            (count, Parallelism::Pipeline) => format!(" through {count} stages"),
            (count, Parallelism::TensorParallel) => format!(" on all of {count} ranks"),
            (count, _) => format!(" on each of {count} ranks"),
        };
        let shown = match zero {
            Parallelism::Pipeline => "; below is the stage that needs most",
            _ => "",
        };
        let divided =
            zero.divided().map(|what| format!("{what} among the ranks, each with a part{shown}"));
        let sent = (rank_count > 1)
            .then(|| format!("{} by each rank in a step", format_bytes(sent_bytes as u64)));
        let numerics = self.numerics.iter();
        let numerics =
            numerics.map(|change| format!("{change}: does not fit without, other numbers"));
        vec![
            Row::new("batch", [format!("{} samples{share}", plan.batch_size)])
                .with("batch_size", plan.batch_size)
                .with("ranks", rank_count),
            Row::new("plan", [plan.knobs.to_string()]).with_all(plan.knobs),
            Row::new("divided", divided).with("zero", zero),
            Row::new("sent", sent).with("sent_bytes", sent_bytes),
            Row::new("numerics", numerics).with("numerics", &self.numerics),
            Row::new("why", plan.reasons()).with("reasons", plan.reasons()),
        ]
    }

    /// The rows of the peak, and of bytes offloaded to other memory.
    fn memory(&self) -> Vec<Row> {
        let (plan, offload_budget) = (&self.plan, self.offload_budget);
        let (peak_bytes, next_bytes) = (plan.predicted_peak_bytes(), plan.copy_ahead_bytes);
        let next = (next_bytes > 0).then(|| {
            format!("{} for the next batch, copied during a step", exact_bytes(next_bytes))
        });
        let waiting_bytes = plan.forecast.offloaded_peak_bytes;
        let offloaded = (plan.knobs.offloaded_blocks > 0).then(|| {
            let budget = format_bytes(offload_budget.unwrap_or(0) as u64);
            format!("{} of {budget} on the host", exact_bytes(waiting_bytes))
        });
        let [batches, samples] = [plan.staging_bytes, plan.data_bytes].map(exact_bytes);
        let host = format!("{batches} for batches and {samples} for data, beside it");
        vec![
            Row::new("predicted peak", [exact_bytes(peak_bytes)])
                .with("predicted_peak_bytes", peak_bytes),
            Row::new("of which", next).with("copy_ahead_bytes", next_bytes),
            Row::new("offloaded", offloaded)
                .with("offload_budget_bytes", offload_budget)
                .with("offloaded_peak_bytes", waiting_bytes),
            Row::new("on the host", [host])
                .with("staging_bytes", plan.staging_bytes)
                .with("data_bytes", plan.data_bytes),
        ]
    }

    fn categories(&self) -> Row {
        let peaks = &self.plan.forecast.category_peaks;
        let head = ["", "peak of each category (not at the same moment)"].map(str::to_owned);
        let shown = peaks
            .iter()
            .filter(|&&(category, peak_bytes)| peak_bytes > 0 || category == Category::Parameter);
        let lines =
            shown.map(|&(category, bytes)| failure::row(category, bytes).trim_end().to_owned());
        Row::block(head.into_iter().chain(lines))
            .with("peak_bytes_by_category", categories_json(peaks.iter().copied()))
    }

    fn modules(&self) -> Row {
        let modules = &self.plan.forecast.modules_at_peak;
        let head = ["", "largest modules when the most is in use"].map(str::to_owned);
        let lines = modules.iter().take(MODULES_SHOWN).map(|share| {
            let size = exact_bytes(share.bytes as usize);
            format!("  {:<30}  {size}", share.name())
        });
        Row::block(head.into_iter().chain(lines)).with("modules_at_peak", modules_json(modules))
    }

    fn survey(&self) -> Row {
        let survey = Survey {
            plan: &self.plan,
            forecasts: &self.survey,
            calibration: self.calibration.as_ref(),
        };
        Row::block(survey.lines()).with("survey", survey.to_json())
    }

    fn assumptions(&self) -> Row {
        let assumptions = &self.plan.forecast.assumptions;
        let head = (!assumptions.is_empty())
            .then(|| ["", "assumed, because a rehearsal computes no values:"].map(str::to_owned));
        let lines = assumptions.iter().map(|of| format!("  {} at {}", of.value, of.site));
        let json = assumptions.iter();
        let json = json.map(|of| json!({ "value": of.value, "site": of.site.to_string() }));
        Row::block(head.into_iter().flatten().chain(lines))
            .with("assumptions", json.collect::<Vec<_>>())
    }
}
