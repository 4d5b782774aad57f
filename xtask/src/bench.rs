//! `cargo xtask bench`: runs the benches and writes one Markdown report.
//!
//! This file alone knows the files of criterion under `target/criterion`: for each case,
//! `new/benchmark.json` has the name and `new/estimates.json` has the times in nanoseconds.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::workspace;

/// The word in the name of a baseline, which the other cases of the group are compared with.
const BASELINE: &str = "baseline";

/// One measured case.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Criterion's group, `crate/subject/variant`.
    pub group: String,
    /// The function, empty if the group has only parameters.
    pub function: String,
    /// The parameter, empty if there is none.
    pub parameter: String,
    /// Median time of one iteration.
    pub median_ns: f64,
    /// Median absolute deviation from the median time.
    pub spread_ns: f64,
    /// Work of one iteration, if the bench declares it.
    pub work: Option<Work>,
}

/// The work of one iteration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    /// Bytes moved.
    Bytes(f64),
    /// Elements, operations or requests.
    Elements(f64),
    /// Bits moved.
    Bits(f64),
}

impl Case {
    fn name(&self) -> String {
        match (self.function.as_str(), self.parameter.as_str()) {
            ("", "") => self.group.clone(),
            ("", name) | (name, "") => name.to_owned(),
            (function, parameter) => format!("{function}/{parameter}"),
        }
    }

    fn is_baseline(&self) -> bool {
        self.name().contains(BASELINE)
    }
}

/// The circumstances of a measurement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// The commit, marked if the tree had changes.
    pub commit: String,
    /// `YYYY-MM-DD`, UTC.
    pub date: String,
    /// The processor's own name.
    pub cpu: String,
    /// Number of hardware threads that this process may use.
    pub core_count: usize,
    /// The compiler's version line.
    pub rustc: String,
    /// The command that measures again.
    pub command: String,
}

/// Runs the benches, writes `target/bench-report.md` and prints its path. False if a bench failed.
///
/// # Errors
/// One line about arguments, files that cannot be read or written, or a filter that matches no
/// bench.
pub fn run(root: &Path, arguments: &[String]) -> Result<bool, String> {
    let filter = match arguments {
        [] => None,
        [filter] if !filter.starts_with('-') => Some(filter.as_str()),
        _ => return Err(format!("bench takes one filter, got `{}`", arguments.join(" "))),
    };
    let package = filter.and_then(|folder| workspace::package_in(root, folder));
    let command = command_line(filter, package.as_deref());
    let target = workspace::target(root);
    let start = file_time(&target).map_err(|error| format!("{}: {error}", target.display()))?;
    let status = workspace::cargo(root)
        .args(&command)
        .status()
        .map_err(|error| format!("cargo does not start: {error}"))?;
    if !status.success() {
        eprintln!("xtask: a bench failed, no report written");
        return Ok(false);
    }
    let cases = read_cases(&target.join("criterion"), start)?;
    if cases.is_empty() {
        return Err("no bench measured anything; is the filter right?".to_owned());
    }
    let machine = describe_machine(root, &format!("cargo {}", command.join(" ")));
    let path = target.join("bench-report.md");
    fs::write(&path, report(&machine, &cases))
        .map_err(|error| format!("{}: {error}", path.display()))?;
    println!("{}", path.display());
    Ok(true)
}

/// The present time of the clock that stamps files, which may lag behind the system's clock.
fn file_time(folder: &Path) -> std::io::Result<SystemTime> {
    fs::create_dir_all(folder)?;
    let marker = folder.join("bench-start");
    fs::write(&marker, "")?;
    let time = fs::metadata(&marker)?.modified()?;
    fs::remove_file(&marker)?;
    Ok(time)
}

/// The arguments of cargo. A filter that is a crate selects the crate's benches; any other filter
/// selects cases by name.
pub fn command_line(filter: Option<&str>, package: Option<&str>) -> Vec<String> {
    let command = match (package, filter) {
        (Some(package), _) => vec!["bench", "-p", package, "--benches"],
        (None, Some(name)) => vec!["bench", "--workspace", "--benches", "--", name],
        (None, None) => vec!["bench", "--workspace", "--benches"],
    };
    command.into_iter().map(str::to_owned).collect()
}

/// The cases under `criterion_folder` measured at `since` or later, by group and name.
///
/// Criterion keeps the results of benches that no longer exist, in files that are older than
/// `since`.
///
/// # Errors
/// One line about the file that cannot be read.
pub fn read_cases(criterion_folder: &Path, since: SystemTime) -> Result<Vec<Case>, String> {
    let mut folders = Vec::new();
    if criterion_folder.is_dir() {
        collect_results(criterion_folder, since, &mut folders)
            .map_err(|error| format!("{}: {error}", criterion_folder.display()))?;
    }
    let mut cases = Vec::new();
    for folder in folders {
        let benchmark = read_json(&folder.join("benchmark.json"))?;
        let estimates = read_json(&folder.join("estimates.json"))?;
        let case = parse_case(&benchmark, &estimates)
            .ok_or_else(|| format!("{}: unknown criterion format", folder.display()))?;
        cases.push(case);
    }
    cases.sort_by(|a, b| (&a.group, a.name()).cmp(&(&b.group, b.name())));
    Ok(cases)
}

fn collect_results(
    folder: &Path,
    since: SystemTime,
    found: &mut Vec<PathBuf>,
) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if !path.is_dir() {
            continue;
        }
        let estimates = path.join("estimates.json");
        if path.file_name().is_some_and(|name| name == "new") && estimates.is_file() {
            if fs::metadata(&estimates)?.modified()? >= since {
                found.push(path);
            }
        } else {
            collect_results(&path, since, found)?;
        }
    }
    Ok(())
}

fn read_json(path: &Path) -> Result<Value, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
}

fn parse_case(benchmark: &Value, estimates: &Value) -> Option<Case> {
    let text = |key: &str| benchmark[key].as_str().unwrap_or_default().to_owned();
    Some(Case {
        group: benchmark["group_id"].as_str()?.to_owned(),
        function: text("function_id"),
        parameter: text("value_str"),
        median_ns: estimates["median"]["point_estimate"].as_f64()?,
        spread_ns: estimates["median_abs_dev"]["point_estimate"].as_f64()?,
        work: parse_work(&benchmark["throughput"]),
    })
}

fn parse_work(throughput: &Value) -> Option<Work> {
    let of = |key: &str| throughput[key].as_f64();
    of("Bytes")
        .or_else(|| of("BytesDecimal"))
        .map(Work::Bytes)
        .or_else(|| of("Elements").map(Work::Elements))
        .or_else(|| of("Bits").map(Work::Bits))
        .or_else(|| throughput["ElementsAndBytes"]["bytes"].as_f64().map(Work::Bytes))
}

/// The report: the circumstances, then one table per group.
pub fn report(machine: &Machine, cases: &[Case]) -> String {
    let Machine { commit, date, cpu, core_count, rustc, command } = machine;
    let mut text = format!(
        "# Benchmark report\n\n\
         - commit: {commit}\n- date: {date}\n- cpu: {cpu}, {core_count} cores\n\
         - rustc: {rustc}\n- command: `{command}`\n\n\
         Spread is the median absolute deviation. Ratio is the median divided by that of the\n\
         group's baseline: below 1 is faster than the baseline.\n"
    );
    for group in cases.chunk_by(|a, b| a.group == b.group) {
        let _ = write!(
            text,
            "\n## {}\n\n| case | median | spread | throughput | ratio |\n|---|--:|--:|--:|--:|\n",
            group[0].group
        );
        for case in group {
            let throughput = case.work.map_or_else(|| "-".to_owned(), |w| rate(w, case.median_ns));
            let ratio = baseline_of(case, group)
                .map_or_else(|| "-".to_owned(), |b| format!("{:.2}", case.median_ns / b.median_ns));
            let _ = writeln!(
                text,
                "| {} | {} | {} | {throughput} | {ratio} |",
                case.name().replace('|', "\\|"),
                duration(case.median_ns),
                duration(case.spread_ns),
            );
        }
    }
    text
}

/// The baseline with the same parameter, or the group's only baseline if it has no parameter.
///
/// Cases with different parameters cannot be compared by a ratio.
fn baseline_of<'a>(case: &Case, group: &'a [Case]) -> Option<&'a Case> {
    let baselines: Vec<&Case> = group.iter().filter(|case| case.is_baseline()).collect();
    let same = baselines.iter().find(|baseline| baseline.parameter == case.parameter);
    match (same, baselines.as_slice()) {
        (Some(same), _) => Some(same),
        (None, [only]) => {
            let stands_for_all = only.parameter.is_empty() || only.parameter.contains(BASELINE);
            stands_for_all.then_some(only)
        }
        (None, _) => None,
    }
}

fn duration(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns < 1e3 => (ns, "ns"),
        ns if ns < 1e6 => (ns / 1e3, "µs"),
        ns if ns < 1e9 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    format!("{value:.2} {unit}")
}

fn rate(work: Work, ns: f64) -> String {
    let per_s = |count: f64| count / ns * 1e9;
    match work {
        Work::Bytes(bytes) => scaled(per_s(bytes), 1024.0, ["B", "KiB", "MiB", "GiB"]),
        Work::Bits(bits) => scaled(per_s(bits), 1000.0, ["bit", "kbit", "Mbit", "Gbit"]),
        Work::Elements(len) => scaled(per_s(len), 1000.0, ["elem", "Kelem", "Melem", "Gelem"]),
    }
}

fn scaled(mut value: f64, step: f64, units: [&str; 4]) -> String {
    let mut unit = units[0];
    for larger in &units[1..] {
        if value < step {
            break;
        }
        value /= step;
        unit = larger;
    }
    format!("{value:.2} {unit}/s")
}

pub(crate) fn describe_machine(root: &Path, command: &str) -> Machine {
    let unknown = || "unknown".to_owned();
    let commit = workspace::first_line_of(root, "git", &["rev-parse", "--short=12", "HEAD"]);
    let changed = workspace::first_line_of(root, "git", &["status", "--porcelain"]).is_some();
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let cpu_info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    Machine {
        commit: commit.map_or_else(unknown, |c| if changed { format!("{c} + changes") } else { c }),
        date: date_of(since_epoch.as_secs()),
        cpu: cpu_name(&cpu_info).unwrap_or_else(unknown),
        core_count: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        rustc: workspace::first_line_of(root, "rustc", &["--version"]).unwrap_or_else(unknown),
        command: command.to_owned(),
    }
}

fn cpu_name(cpu_info: &str) -> Option<String> {
    let line = cpu_info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// `YYYY-MM-DD` of a Unix time: `civil_from_days` of Howard Hinnant, "chrono-compatible low-level
/// date algorithms". Years start in March, so that the leap day is the last day of a year.
pub fn date_of(unix_s: u64) -> String {
    let days = unix_s / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}
