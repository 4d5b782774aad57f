//! The survey of a plan: bytes and times of its knobs and of other knobs.

use lowtide_trainer::{Forecast, Knobs, Plan};
use serde_json::{Value, json};

use crate::command::rates::{Calibration, measured_seconds};
use crate::human::{exact_bytes, format_seconds};
use crate::json::with_knobs;

/// Forecasts of knobs, including the knobs of a plan.
pub(super) struct Survey<'a> {
    pub(super) plan: &'a Plan,
    pub(super) forecasts: &'a [(Knobs, Forecast)],
    pub(super) calibration: Option<&'a Calibration>,
}

impl Survey<'_> {
    /// The table as text, after an empty line.
    pub(super) fn lines(&self) -> Vec<String> {
        let step = if self.calibration.is_some() { "a step    " } else { "" };
        let peak = format!("{:<28}{step}", "peak");
        let head = format!("micro-batch   recomputed         {peak}time, relative to the first");
        let rows = self.forecasts.iter().map(|(knobs, forecast)| self.line(knobs, forecast));
        [String::new(), head].into_iter().chain(rows).collect()
    }

    fn line(&self, knobs: &Knobs, forecast: &Forecast) -> String {
        let &Knobs { micro_batch, cheap_recomputed, recomputed_blocks, .. } = knobs;
        let recomputed = match (cheap_recomputed, recomputed_blocks) {
            (false, 0) => "nothing".to_owned(),
            (true, 0) => "cheap".to_owned(),
            (false, blocks) => format!("blocks {blocks}"),
            (true, blocks) => format!("cheap, blocks {blocks}"),
        };
        let at_once = match knobs.blocks_at_once {
            0 | 1 => String::new(),
            count => format!("  {count} at once"),
        };
        let offloaded = match knobs.offloaded_blocks {
            0 => String::new(),
            blocks => format!("  blocks {blocks} offloaded"),
        };
        let fused = if knobs.fused_update { "  update fused" } else { "" };
        let mark = if *knobs == self.plan.knobs {
            "  <- plan"
        } else if forecast.peak_bytes > self.plan.budget_bytes {
            "  over the budget"
        } else {
            ""
        };
        let seconds = measured_seconds(self.calibration, forecast);
        let seconds = seconds.map_or(String::new(), |s| format!("{:<10}", format_seconds(s)));
        let (peak, time) = (exact_bytes(forecast.peak_bytes), self.relative_time(forecast));
        format!(
            "{micro_batch:<13} {recomputed:<18} {peak:<27} {seconds}{time:.2}{at_once}{offloaded}\
             {fused}{mark}"
        )
    }

    /// The list of forecasts as JSON objects.
    pub(super) fn to_json(&self) -> Value {
        let rows = self.forecasts.iter().map(|(knobs, forecast)| {
            let fields = json!({
                "peak_bytes": forecast.peak_bytes,
                "relative_time": self.relative_time(forecast),
                "step_seconds": measured_seconds(self.calibration, forecast),
            });
            with_knobs(*knobs, fields)
        });
        rows.collect()
    }

    /// The estimated time of a forecast, relative to the first forecast.
    fn relative_time(&self, forecast: &Forecast) -> f64 {
        let whole = self.forecasts.first().map_or(1.0, |(_, forecast)| forecast.seconds);
        forecast.seconds / whole
    }
}
