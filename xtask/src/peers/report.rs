//! Rows and the Markdown table of a comparison.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::programs::MKL_AVX512;
use super::{STEP, Sample};
use crate::bench::Machine;

/// Number of the worst operations in the report.
const WORST: usize = 10;

/// An operation in all programs, with the time of the fastest of all runs in milliseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Network, layer, operation and part; or `whole-step` and the network.
    pub operation: String,
    /// lowtide's time.
    pub own_ms: f64,
    /// lowtide's time in the slowest round divided by its time in the fastest round.
    pub spread: f64,
    /// The fastest other program as installed, and its time.
    pub other: (String, f64),
    /// The fastest other program if MKL may use AVX-512, and its time, if this was measured.
    pub with_mkl_avx512: Option<(String, f64)>,
    /// True if the programs computed different numbers.
    pub differs: bool,
    /// Memory of a step in MB: lowtide's, and the smallest of the other programs.
    pub peak_mb: Option<[f64; 2]>,
}

impl Row {
    /// lowtide's time divided by the fastest other program's time; below 1, lowtide is faster.
    pub fn ratio(&self) -> f64 {
        self.own_ms / self.other.1
    }

    /// True for a whole step.
    pub(super) fn is_step(&self) -> bool {
        self.operation.starts_with(STEP)
    }

    pub(super) fn network(&self) -> &str {
        self.operation.split(' ').next().unwrap_or_default()
    }

    /// The operation without network and layer.
    fn kind(&self) -> String {
        self.operation.split(' ').skip(2).collect::<Vec<_>>().join(" ")
    }
}

/// The smallest memory of some programs.
fn least_mb(of: &[&Sample]) -> Option<f64> {
    of.iter().filter_map(|sample| sample.peak_mb).reduce(f64::min)
}

/// The operations that both lowtide and another program have measured, in the order of the samples.
pub fn rows(samples: &[Sample], dtype: &str) -> Vec<Row> {
    let tolerance = if dtype == "f32" { 1e-3 } else { 3e-2 };
    let of = |operation: &str, is_own: bool| -> Vec<&Sample> {
        let is_one = |sample: &&Sample| {
            sample.operation == operation && (sample.peer == "lowtide") == is_own
        };
        samples.iter().filter(is_one).collect()
    };
    let fastest = |of: &[&Sample]| {
        of.iter().min_by(|a, b| a.min_ms.total_cmp(&b.min_ms)).map(|&sample| sample.clone())
    };
    let mut names: Vec<&str> = Vec::new();
    for sample in samples {
        if !names.contains(&sample.operation.as_str()) {
            names.push(&sample.operation);
        }
    }
    let is_installed = |sample: &&Sample| !sample.peer.ends_with(MKL_AVX512);
    let row = |name: &str| {
        let (own, others) = (of(name, true), of(name, false));
        let installed: Vec<&Sample> = others.iter().copied().filter(is_installed).collect();
        let (fastest_own, other) = (fastest(&own)?, fastest(&installed)?);
        let is_more = installed.len() < others.len();
        let of_all = fastest(&others).filter(|_| is_more);
        let slowest_ms = own.iter().map(|sample| sample.min_ms).fold(0.0, f64::max);
        let magnitude = fastest_own.magnitude;
        let is_far = |other: &&Sample| {
            (other.magnitude - magnitude).abs() > tolerance * magnitude.abs().max(1e-12)
        };
        Some(Row {
            operation: name.to_owned(),
            own_ms: fastest_own.min_ms,
            spread: slowest_ms / fastest_own.min_ms,
            other: (other.peer, other.min_ms),
            with_mkl_avx512: of_all.map(|other| (other.peer, other.min_ms)),
            differs: others.iter().any(is_far),
            peak_mb: least_mb(&own).zip(least_mb(&installed)).map(<[f64; 2]>::from),
        })
    };
    names.into_iter().filter_map(row).collect()
}

/// The rows with the other program's time if MKL may use AVX-512, which MKL uses only on Intel's
/// CPUs.
pub(super) fn with_mkl_avx512(rows: &[Row]) -> Vec<Row> {
    let with = |row: &Row| Some(Row { other: row.with_mkl_avx512.clone()?, ..row.clone() });
    rows.iter().filter_map(with).collect()
}

/// The geometric mean of some numbers.
pub(super) fn mean(ratios: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = ratios.fold((0.0, 0), |(sum, count), x| (sum + x.ln(), count + 1));
    (sum / f64::from(count.max(1))).exp()
}

/// The report in Markdown. `before` has the samples of an earlier comparison.
pub fn report(machine: &Machine, title: &str, rows: &[Row], before: Option<&[Sample]>) -> String {
    let Machine { commit, date, cpu, core_count, rustc, command } = machine;
    let (steps, operations): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.is_step());
    let mut text = format!(
        "# Operations by shape and whole steps beside PyTorch: {title}\n\n\
         - commit: {commit}\n- date: {date}\n- cpu: {cpu}, {core_count} cores\n\
         - rustc: {rustc}\n- command: `{command}`\n\n\
         Times are those of the fastest run of all rounds, which the programs took in turns.\n\
         Ratios are lowtide's time by that of PyTorch's fastest mode: below 1 it is faster.\n",
    );
    for (name, rows) in [("steps", &steps), ("operations", &operations)] {
        if !rows.is_empty() {
            let _ = write!(
                text,
                "\nGeometric mean of {} {name}: **{:.2}**; {} above 1.5.\n",
                rows.len(),
                mean(rows.iter().map(|row| row.ratio())),
                rows.iter().filter(|row| row.ratio() > 1.5).count(),
            );
        }
    }
    let allowed = with_mkl_avx512(rows);
    if !allowed.is_empty() {
        let ratio = mean(allowed.iter().map(Row::ratio));
        let count = allowed.len();
        let _ = write!(
            text,
            "\nWith MKL's AVX-512 allowed, as on Intel's processors, of {count} rows: \
             **{ratio:.2}**.\n"
        );
    }
    if !steps.is_empty() {
        text += "\n## Whole steps\n";
        text += &table(&steps, before);
    }
    text += &memory(&steps);
    if !operations.is_empty() {
        text += &means(&operations, "network", |row| row.network().to_owned());
        text += &means(&operations, "operation", Row::kind);
        for (title, rows) in [("The worst", worst(&operations)), ("All", operations)] {
            let _ = write!(text, "\n## {title}\n");
            text += &table(&rows, before);
        }
    }
    if !allowed.is_empty() {
        text += "\n## With MKL's AVX-512 allowed\n";
        text += &table(&allowed.iter().collect::<Vec<_>>(), before);
    }
    text
}

/// A table of the memory of steps, if memory was measured.
fn memory(steps: &[&Row]) -> String {
    let line = |row: &&Row| {
        let [own, other] = row.peak_mb?;
        let (name, ratio) = (&row.operation, own / other);
        Some(format!("| {name} | {own:.0} | {other:.0} | {ratio:.2} |\n"))
    };
    let lines: String = steps.iter().filter_map(line).collect();
    if lines.is_empty() {
        return lines;
    }
    format!(
        "\nMemory is what no file is behind, each page once, above that before the first of three\n\
         steps, beside PyTorch's leanest mode (the compiler's own memory keeps `compiled` out).\n\n\
         | step | lowtide, MB | PyTorch, MB | ratio |\n|---|--:|--:|--:|\n{lines}"
    )
}

/// The rows with the largest ratios.
pub(super) fn worst<'a>(rows: &[&'a Row]) -> Vec<&'a Row> {
    let mut worst = rows.to_vec();
    worst.sort_by(|a, b| b.ratio().total_cmp(&a.ratio()));
    worst.truncate(WORST);
    worst
}

/// A line for each row.
fn table(rows: &[&Row], before: Option<&[Sample]>) -> String {
    let mut text =
        "\n| operation | lowtide, ms | spread | PyTorch, ms | mode | ratio | to before |\n\
                    |---|--:|--:|--:|---|--:|--:|\n"
            .to_owned();
    for row in rows {
        let Row { operation, own_ms, spread, other: (mode, other_ms), differs, .. } = row;
        let earlier = before
            .into_iter()
            .flatten()
            .filter(|sample| sample.peer == "lowtide" && sample.operation == *operation);
        let earlier = earlier.map(|sample| sample.min_ms).reduce(f64::min);
        let to_before = earlier.map_or_else(|| "-".to_owned(), |ms| format!("{:.2}", own_ms / ms));
        let note = if *differs { " (results differ)" } else { "" };
        let _ = writeln!(
            text,
            "| {operation}{note} | {own_ms:.3} | {spread:.2} | {other_ms:.3} | {} | {:.2} | \
             {to_before} |",
            mode.trim_start_matches("torch-"),
            row.ratio(),
        );
    }
    text
}

/// A table of the mean ratios of rows, grouped by `name`.
fn means(rows: &[&Row], title: &str, name: impl Fn(&Row) -> String) -> String {
    let mut text = format!("\n| {title} | operations | ratio | worst |\n|---|--:|--:|--:|\n");
    let mut by_name: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    rows.iter().for_each(|row| by_name.entry(name(row)).or_default().push(row.ratio()));
    for (name, ratios) in by_name {
        let (count, worst) = (ratios.len(), ratios.iter().copied().fold(0.0, f64::max));
        let ratio = mean(ratios.into_iter());
        let _ = writeln!(text, "| {name} | {count} | {ratio:.2} | {worst:.2} |");
    }
    text
}
