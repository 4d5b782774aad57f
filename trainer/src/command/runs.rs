//! `lowtide runs` and `lowtide compare`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use crate::command::say;
use crate::error::{Result, TrainError};
use crate::human::format_bytes;
use crate::observers::checkpoints_in;
use crate::recipe::Recipe;
use crate::run_dir::RunDir;

#[derive(Args)]
pub(super) struct RunsArgs {
    /// The folder of the runs' folders.
    #[arg(default_value = "runs")]
    folder: PathBuf,
    /// Prints one JSON object for each run instead of a table.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Args)]
pub(super) struct CompareArgs {
    /// The folder of a run.
    run: PathBuf,
    /// The folder of another one.
    other: PathBuf,
    /// Prints one JSON object instead of a table.
    #[arg(long)]
    pub(super) json: bool,
}

/// What is known of a run.
struct Known {
    path: PathBuf,
    recipe: Option<Recipe>,
    /// Of a run that has ended.
    summary: Option<Value>,
    /// Steps of the last checkpoint of a run that was cut off.
    cut_off_after: Option<u64>,
}

impl Known {
    /// `None` where there is no run.
    fn read(path: &Path) -> Option<Known> {
        let run_dir = RunDir::open(path).ok()?;
        let text = fs::read(run_dir.summary()).ok();
        let summary = text.and_then(|text| serde_json::from_slice(&text).ok());
        let left = checkpoints_in(&run_dir.partial().checkpoints()).unwrap_or_default();
        let cut_off_after = left.first().map(|&(step, _)| step);
        let files = if summary.is_some() { run_dir } else { run_dir.partial() };
        let recipe = Recipe::load(&files.recipe()).ok();
        let is_run = summary.is_some() || recipe.is_some();
        is_run.then(|| Known { path: path.to_owned(), recipe, summary, cut_off_after })
    }

    fn state(&self) -> String {
        match (&self.summary, self.cut_off_after) {
            (_, Some(step)) => format!("cut off after step {step}"),
            (Some(_), None) => "done".to_owned(),
            (None, None) => "cut off".to_owned(),
        }
    }

    fn number(&self, key: &str) -> Option<f64> {
        self.summary.as_ref()?[key].as_f64()
    }

    /// The values of the last evaluation by name.
    fn values(&self) -> BTreeMap<String, f64> {
        let Some(Value::Object(summary)) = &self.summary else { return BTreeMap::new() };
        let of_test = summary.iter().filter(|(name, _)| name.starts_with("test_"));
        of_test.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?))).collect()
    }

    fn to_json(&self) -> Value {
        json!({
            "run": self.path.display().to_string(),
            "training": self.recipe.as_ref().map(Recipe::title),
            "state": self.state(),
            "summary": self.summary,
        })
    }
}

pub(super) fn list(arguments: &RunsArgs) -> Result<()> {
    let folder = &arguments.folder;
    let entries =
        fs::read_dir(folder).map_err(|source| TrainError::File { path: folder.clone(), source })?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    // `digits-9` before `digits-10`.
    paths.sort_by_key(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let (stem, number) = name.split_at(name.len() - digits);
        (stem.to_owned(), number.parse::<u64>().unwrap_or(0))
    });
    let runs: Vec<Known> = paths.iter().filter_map(|path| Known::read(path)).collect();
    if arguments.json {
        return runs.iter().try_for_each(|run| say(&run.to_json().to_string()));
    }
    if runs.is_empty() {
        return say(&format!("no run in {}", folder.display()));
    }
    let mut rows =
        vec![["run", "training", "state", "steps", "time", "peak", "values"].map(str::to_owned)];
    for run in &runs {
        let name = run.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let title = run.recipe.as_ref().map_or_else(String::new, Recipe::title);
        let steps = run.number("steps").map_or_else(String::new, |steps| format!("{steps}"));
        let time = run.number("seconds").map_or_else(String::new, |time| format!("{time:.1} s"));
        let peak = run.number("measured_peak_bytes");
        let peak = peak.map_or_else(String::new, |bytes| format_bytes(bytes as u64));
        let values = run.values().into_iter();
        let values = values.map(|(name, value)| format!("{} {value:.4}", name.replace('_', " ")));
        let values = values.collect::<Vec<_>>().join(", ");
        rows.push([name, title, run.state(), steps, time, peak, values]);
    }
    say_table(&rows)
}

/// Rows with each column as wide as its widest cell.
fn say_table<const N: usize>(rows: &[[String; N]]) -> Result<()> {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..N).map(|column| width(column).unwrap_or(0)).collect();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}"));
        say(cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

pub(super) fn compare(arguments: &CompareArgs) -> Result<()> {
    let read = |path: &Path| {
        Known::read(path).filter(|run| run.summary.is_some()).ok_or_else(|| TrainError::Setting {
            place: path.display().to_string(),
            problem: "is no folder of a run that has ended".to_owned(),
        })
    };
    let runs = [read(&arguments.run)?, read(&arguments.other)?];
    let recipes = runs.each_ref().map(|run| {
        let text = run.recipe.as_ref().map(Recipe::to_toml).unwrap_or_default();
        flat(&text.parse::<toml::Table>().unwrap_or_default())
    });
    let mut keys: Vec<&String> = recipes.iter().flat_map(BTreeMap::keys).collect();
    keys.sort();
    keys.dedup();
    let differing = keys.into_iter().filter(|key| recipes[0].get(*key) != recipes[1].get(*key));
    let differences: Vec<[String; 3]> = differing
        .map(|key| {
            let [one, other] = recipes.each_ref().map(|keys| keys.get(key).cloned());
            [key.clone(), one.unwrap_or_default(), other.unwrap_or_default()]
        })
        .collect();
    let mut rows = vec![[
        String::new(),
        arguments.run.display().to_string(),
        arguments.other.display().to_string(),
    ]];
    rows.extend(differences.iter().cloned());
    let mut names: Vec<String> = runs.iter().flat_map(|run| run.values().into_keys()).collect();
    names.sort();
    names.dedup();
    let mut numbers: Vec<(String, [Option<f64>; 2])> = Vec::new();
    for name in names {
        let values = runs.each_ref().map(|run| run.values().get(&name).copied());
        numbers.push((name, values));
    }
    for name in ["train_loss_last", "steps", "seconds", "measured_peak_bytes", "retried_steps"] {
        numbers.push((name.to_owned(), runs.each_ref().map(|run| run.number(name))));
    }
    if arguments.json {
        let recipe: serde_json::Map<String, Value> =
            differences.into_iter().map(|[key, one, other]| (key, json!([one, other]))).collect();
        let values: serde_json::Map<String, Value> =
            numbers.into_iter().map(|(name, values)| (name, json!(values))).collect();
        let names = rows[0][1..].to_vec();
        return say(&json!({ "runs": names, "recipe": recipe, "values": values }).to_string());
    }
    for (name, values) in numbers {
        let show = |value: Option<f64>| match value {
            None => String::new(),
            Some(bytes) if name.ends_with("_bytes") => format_bytes(bytes as u64),
            Some(count) if count.fract() == 0.0 => format!("{count}"),
            Some(value) => format!("{value:.4}"),
        };
        let [one, other] = values.map(show);
        rows.push([name.replace('_', " "), one, other]);
    }
    say_table(&rows)
}

/// The keys of all tables, as `table.key`.
fn flat(table: &toml::Table) -> BTreeMap<String, String> {
    let mut keys = BTreeMap::new();
    for (name, value) in table {
        match value {
            toml::Value::Table(inner) => {
                let inner = flat(inner).into_iter();
                keys.extend(inner.map(|(key, value)| (format!("{name}.{key}"), value)));
            }
            value => drop(keys.insert(name.clone(), value.to_string())),
        }
    }
    keys
}
