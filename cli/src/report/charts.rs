//! The curves of one or more runs as charts: their grouping, order and units.

use serde_json::{Value, json};

use super::curves::{Curves, Series};
use super::thin::thin;
use crate::human::format_bytes;

/// Metrics whose charts come first, in this order. Other charts follow by name, and the charts of
/// batch sizes come last.
const ORDER: [&str; 5] =
    ["loss", "accuracy", "learning_rate", "samples_per_second", "reserved_peak_bytes"];

/// A chart with one or more curves.
pub(super) struct Chart<'a> {
    /// The name of the metric, without a set.
    pub(super) name: &'a str,
    curves: Vec<Curve<'a>>,
}

struct Curve<'a> {
    /// The index of the run.
    run: usize,
    /// The set that was evaluated.
    set: Option<&'a str>,
    series: &'a Series,
}

/// The charts of some runs. A metric that is constant in every run has no chart.
pub(super) fn charts<'a>(runs: &[&'a Curves]) -> Vec<Chart<'a>> {
    let mut charts: Vec<Chart<'a>> = Vec::new();
    for (run, curves) in runs.iter().enumerate() {
        for series in curves.series() {
            // A metric of an evaluation and the same metric of the training share a chart.
            let (set, name) = series.set_and_metric();
            let known = charts.iter().position(|chart| chart.name == name);
            let index = known.unwrap_or_else(|| {
                charts.push(Chart { name, curves: Vec::new() });
                charts.len() - 1
            });
            charts[index].curves.push(Curve { run, set, series });
        }
    }
    charts.retain(|chart| chart.varies());
    charts.sort_by_key(|chart| {
        let place = ORDER.iter().position(|name| *name == chart.name);
        (is_setting(chart.name), place.unwrap_or(ORDER.len()), chart.name)
    });
    charts
}

/// Metrics without a chart, with their constant values.
pub(super) fn constants(curves: &Curves) -> Vec<(&str, String)> {
    let told = |series: &'_ Series| {
        if series.is_evaluation || is_always_drawn(&series.name) || varies(series) {
            return None;
        }
        let [(_, low), (_, high)] = [series.lowest()?, series.highest()?];
        let [low, high] = [low, high].map(|value| quantity(&series.name, value));
        // The last batch of an epoch may be short.
        Some(if low == high { high } else { format!("{high} (now and then {low})") })
    };
    let series = curves.series().iter();
    series.filter_map(|series| Some((series.name.as_str(), told(series)?))).collect()
}

/// True for the metrics that say how steps were cut: batch and micro-batch. A change of a single
/// step, such as the last of an epoch, does not give such a metric a chart.
pub(super) fn is_setting(name: &str) -> bool {
    matches!(name, "batch" | "micro_batch")
}

fn varies(series: &Series) -> bool {
    let Some((_, highest)) = series.highest() else { return false };
    if is_setting(&series.name) {
        series.points.windows(2).any(|two| two[0].1 == two[1].1 && two[0].1 != highest)
    } else {
        series.points.iter().any(|&(_, value)| value != highest)
    }
}

/// Metrics that have a chart even if it is a flat line.
fn is_always_drawn(name: &str) -> bool {
    matches!(name, "loss" | "learning_rate" | "samples_per_second" | "reserved_peak_bytes")
}

impl Chart<'_> {
    fn varies(&self) -> bool {
        is_always_drawn(self.name)
            || self.curves.iter().any(|curve| curve.set.is_some() || varies(curve.series))
    }

    /// The data that the script draws.
    pub(super) fn to_json(&self) -> Value {
        let mut sets: Vec<&str> = self.curves.iter().filter_map(|curve| curve.set).collect();
        sets.sort_unstable();
        sets.dedup();
        json!({
            "title": title(self.name),
            "unit": unit(self.name),
            "isLarge": self.name == "loss",
            "curves": self.curves.iter().map(|curve| curve.to_json(&sets)).collect::<Vec<_>>(),
        })
    }

    /// Largest number of values behind a point of a curve.
    pub(super) fn values_each(&self) -> usize {
        let each = |curve: &Curve<'_>| thin_each(curve.series.points.len());
        self.curves.iter().map(each).max().unwrap_or(1)
    }

    /// The metric's title, for texts.
    pub(super) fn title(&self) -> String {
        title(self.name)
    }
}

fn thin_each(len: usize) -> usize {
    len.div_ceil(super::thin::POINTS_MAX).max(1)
}

impl Curve<'_> {
    fn to_json(&self, sets: &[&str]) -> Value {
        let thinned = thin(&self.series.points);
        let place = self.set.and_then(|set| sets.iter().position(|known| *known == set));
        json!({
            "run": self.run,
            "isTest": self.set.is_some(),
            // Training has the first colour; the sets follow.
            "colour": place.map_or(0, |place| place + 1),
            "name": self.set.unwrap_or("train"),
            "isNoisy": self.set.is_none() && !is_smooth(&self.series.name),
            "each": thinned.each,
            "last": self.series.points.last().map_or(0, |(step, _)| *step),
            "x": thinned.steps,
            "mean": thinned.means,
            "low": thinned.lows,
            "high": thinned.highs,
            "gaps": thinned.gap_count,
        })
    }
}

/// True for metrics that are shown without smoothing, because they are settings or counts.
fn is_smooth(name: &str) -> bool {
    name == "learning_rate" || is_setting(name) || name.ends_with("_bytes")
}

fn unit(name: &str) -> &'static str {
    match name {
        _ if name.ends_with("_bytes") => "bytes",
        _ if name.ends_with("seconds") => "seconds",
        _ if name.ends_with("accuracy") => "fraction",
        _ => "number",
    }
}

/// The title of a metric, in words.
pub(super) fn title(name: &str) -> String {
    let words = match name {
        "seconds" => "seconds per step".to_owned(),
        _ => name.strip_suffix("_bytes").unwrap_or(name).replace('_', " "),
    };
    let mut chars = words.chars();
    let first = chars.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    first + chars.as_str()
}

/// A value of a metric, with its unit.
pub(super) fn quantity(name: &str, value: f64) -> String {
    match unit(name) {
        _ if !value.is_finite() => "not finite".to_owned(),
        "bytes" if value >= 0.0 => format_bytes(value as u64),
        "seconds" if value.abs() < 1.0 => format!("{} ms", digits(1e3 * value)),
        "seconds" => format!("{} s", digits(value)),
        "fraction" => format!("{:.2} %", 100.0 * value),
        _ => digits(value),
    }
}

/// A whole number with separated thousands: `12,345`.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number with six digits. Whole numbers are exact; large numbers are rounded to whole ones, with
/// separated thousands.
fn digits(value: f64) -> String {
    let size = value.abs();
    if (size >= 1e4 || value == value.trunc()) && size < 1e15 {
        let sign = if value < 0.0 { "-" } else { "" };
        return sign.to_owned() + &grouped(size.round() as u64);
    }
    if !(1e-4..1e4).contains(&size) {
        return format!("{value:.4e}");
    }
    let decimals = (5 - size.log10().floor() as i32).clamp(0, 9) as usize;
    let text = format!("{value:.decimals$}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
