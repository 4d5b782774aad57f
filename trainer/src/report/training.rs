//! Loss, micro-batch, retries and metrics over steps, on one axis.

use serde_json::json;

use super::sample::{smooth, smooth_window_len, thin};
use super::svg::{self, Plot, Scale, key, line_path, no_data, strip};
use super::{Report, escape, grouped, json_island};

/// Rows of the table of retries; the rest is counted.
const RETRY_ROWS_MAX: usize = 20;
/// Retries that are marked in the picture.
const RETRY_MARKS_MAX: usize = 400;

pub(super) fn section(report: &Report) -> String {
    let axis = step_axis(report);
    let mut html = format!("<section>\n<h2>Loss</h2>\n{}</section>\n", loss(report, axis));
    if report.metrics.is_empty() {
        let note = no_data("No data: nothing was evaluated.");
        html += &format!("<section>\n<h2>Evaluation</h2>\n{note}</section>\n");
    }
    for (name, points) in &report.metrics {
        let (name, curve) = (escape(name), metric(name, points, axis));
        html += &format!("<section>\n<h2>{name}</h2>\n{curve}</section>\n");
    }
    html
}

/// All plots share the axis, so that a dip in one is found above the others.
fn step_axis(report: &Report) -> Scale {
    let points = report.loss.iter().chain(report.metrics.iter().flat_map(|(_, points)| points));
    let points = points.map(|(step, _)| *step);
    let retries = report.retries.iter().map(|(step, _)| *step);
    let steps = points.chain(retries);
    let low = steps.clone().min().unwrap_or(0);
    Scale::new(low as f64, steps.max().unwrap_or(low) as f64)
}

fn step_ticks(axis: Scale) -> Vec<(f64, String)> {
    let (ticks, _) = axis.ticks(5, 1.0);
    ticks.into_iter().map(|step| (step, grouped(step as u64))).collect()
}

fn loss(report: &Report, axis: Scale) -> String {
    let (steps, losses): (Vec<u64>, Vec<f64>) =
        report.loss.iter().copied().filter(|(_, loss)| loss.is_finite()).unzip();
    let Some(last) = losses.last() else {
        let note = if report.loss.is_empty() {
            "No data: no step was recorded."
        } else {
            "No data: no loss was finite."
        };
        return no_data(note) + &retries_table(&report.retries);
    };

    let smoothed = smooth(&losses);
    let kept = thin(&losses);
    let y = loss_scale(&losses);
    let points = |values: &[f64]| {
        line_path(kept.iter().map(|&index| (axis.x(steps[index] as f64), y.y(values[index]))))
    };
    let (ticks, decimals) = y.ticks(5, 0.0);
    let lowest = losses.iter().copied().fold(f64::INFINITY, f64::min);
    let plot = Plot {
        class: "tall",
        alt: format!(
            "Loss over {} steps, from {:.4} to {last:.4}",
            grouped(report.loss.len() as u64),
            losses[0]
        ),
        x: axis,
        y,
        x_ticks: step_ticks(axis),
        y_ticks: ticks.into_iter().map(|tick| (tick, format!("{tick:.decimals$}"))).collect(),
        drawing: format!(
            "{retries}<path class=\"raw\" d=\"{raw}\"/>\n<path class=\"smooth\" d=\"{smooth}\"/>\n",
            retries = retry_marks(&report.retries, axis),
            raw = points(&losses),
            smooth = points(&smoothed),
        ),
        overlay: String::new(),
    };
    let at_kept = |values: &[f64]| kept.iter().map(|&index| rounded(values[index])).collect();
    let raw: Vec<f64> = at_kept(&losses);
    let smooth: Vec<f64> = at_kept(&smoothed);
    let data = json!({
        "low": axis.low, "high": axis.high, "raw": raw, "smooth": smooth,
        "x": kept.iter().map(|&index| steps[index]).collect::<Vec<_>>(),
    });
    format!(
        "<figure data-kind=\"loss\">\n{legend}{readout}{plot}{strip}{data}</figure>\n{retries}",
        legend = loss_legend(report, losses.len()),
        readout = readout(&format!("last {last:.4} · lowest {lowest:.4}")),
        plot = plot.to_html(),
        strip = micro_batch_strip(&report.micro_batch, axis),
        data = json_island(&data),
        retries = retries_table(&report.retries),
    )
}

/// From zero where that costs less than half of the height, else from the lowest loss.
fn loss_scale(losses: &[f64]) -> Scale {
    let low = losses.iter().copied().fold(f64::INFINITY, f64::min);
    let high = losses.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let margin = 0.04 * (high - low);
    let from_zero = low >= 0.0 && low < 0.5 * high;
    Scale::new(if from_zero { 0.0 } else { low - margin }, high + margin)
}

fn loss_legend(report: &Report, finite_len: usize) -> String {
    let mut keys = key("line raw", "each step");
    match smooth_window_len(finite_len) {
        1 => keys += &key("line smooth", "mean"),
        window => keys += &key("line smooth", &format!("mean of {} steps", grouped(window as u64))),
    }
    if !report.retries.is_empty() {
        keys += &key("line retry", "step tried again");
    }
    let gaps = report.loss.len() - finite_len;
    if gaps > 0 {
        let steps = if gaps == 1 { "step" } else { "steps" };
        keys += &format!(
            "<span class=\"key\">{} {steps} without a finite loss left out</span>",
            grouped(gaps as u64)
        );
    }
    format!("<p class=\"legend\">{keys}</p>\n")
}

fn retry_marks(retries: &[(u64, String)], axis: Scale) -> String {
    if retries.is_empty() {
        return String::new();
    }
    let mut xs: Vec<i64> = retries.iter().map(|(step, _)| axis.x(*step as f64)).collect();
    xs.dedup();
    xs.truncate(RETRY_MARKS_MAX);
    let marks: String = xs.iter().map(|x| format!("M{x} 0V{}", svg::HEIGHT)).collect();
    format!("<path class=\"retry\" d=\"{marks}\"/>\n")
}

fn micro_batch_strip(micro_batch: &[(u64, usize)], axis: Scale) -> String {
    if micro_batch.is_empty() {
        return String::new();
    }
    let starts: Vec<(f64, String)> =
        micro_batch.iter().map(|(step, size)| (*step as f64, grouped(*size as u64))).collect();
    strip("micro-batch", axis, &starts)
}

fn retries_table(retries: &[(u64, String)]) -> String {
    if retries.is_empty() {
        return String::new();
    }
    let mut rows = String::new();
    for (step, why) in retries.iter().take(RETRY_ROWS_MAX) {
        let (step, why) = (grouped(*step), escape(why));
        rows.push_str(&format!("<tr><td class=\"number\">{step}</td><td>{why}</td></tr>\n"));
    }
    let more = retries.len().saturating_sub(RETRY_ROWS_MAX);
    let more = match more {
        0 => String::new(),
        _ => format!("<p class=\"note\">and {} more</p>\n", grouped(more as u64)),
    };
    format!(
        "<table class=\"retries\">\n<thead><tr><th class=\"number\">Step</th>\
         <th>Why it was tried again</th></tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n{more}"
    )
}

fn metric(name: &str, points: &[(u64, f64)], axis: Scale) -> String {
    let points: Vec<(u64, f64)> =
        points.iter().copied().filter(|(_, value)| value.is_finite()).collect();
    let Some((_, last)) = points.last() else {
        return no_data("No data: no value was finite.");
    };
    let values = points.iter().map(|(_, value)| *value);
    let (high, low) =
        (values.clone().fold(f64::NEG_INFINITY, f64::max), values.fold(f64::INFINITY, f64::min));
    // With some room above and below the outermost dots.
    let room = (0.08 * (high - low)).max(1e-3 * high.abs()).max(1e-6);
    let floor = if low >= 0.0 { (low - room).max(0.0) } else { low - room };
    let y = Scale::new(floor, high + room);
    let (ticks, decimals) = y.ticks(4, 0.0);
    let place = |(step, value): &(u64, f64)| (axis.x(*step as f64), y.y(*value));
    // A line of no length with a round cap is a dot that keeps its shape when stretched.
    let dots: String = points.iter().map(place).map(|(x, y)| format!("M{x} {y}h0")).collect();
    let plot = Plot {
        class: "low",
        alt: format!("{name} of {} evaluations, last {last:.4}", points.len()),
        x: axis,
        y,
        x_ticks: step_ticks(axis),
        y_ticks: ticks.into_iter().map(|tick| (tick, format!("{tick:.decimals$}"))).collect(),
        drawing: format!(
            "<path class=\"thread\" d=\"{}\"/>\n<path class=\"dots\" d=\"{dots}\"/>\n",
            line_path(points.iter().map(place)),
        ),
        overlay: String::new(),
    };
    let data = json!({
        "low": axis.low, "high": axis.high,
        "x": points.iter().map(|(step, _)| step).collect::<Vec<_>>(),
        "raw": points.iter().map(|(_, value)| rounded(*value)).collect::<Vec<_>>(),
    });
    let summary = format!("last {last:.4} · lowest {low:.4} · highest {high:.4}");
    format!(
        "<figure data-kind=\"metric\">\n<p class=\"legend\">{}</p>\n{}{}<p class=\"axis\">step\
         </p>\n{}</figure>\n",
        key("dot", "evaluation"),
        readout(&summary),
        plot.to_html(),
        json_island(&data),
    )
}

fn readout(text: &str) -> String {
    format!("<p class=\"readout\">{}</p>\n", escape(text))
}

/// Six decimals: more than the readout shows.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}
