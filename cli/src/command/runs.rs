//! `lowtide runs` and `lowtide compare`.

use std::collections::BTreeMap;
use std::fs;
use std::iter;
use std::path::{Path, PathBuf};

use clap::Args;
use lowtide_allocator::files::read_input;
use lowtide_trace::{beginning, printable};
use lowtide_trainer::{NewFile, Result, TrainError, checkpoints_in};
use serde_json::{Map, Value, json};

use crate::command::say;
use crate::human::format_bytes;
use crate::recipe::Recipe;
use crate::report::{self, About, Row, figures, recipe_differences};
use crate::run_dir::{RunDir, SUMMARY_BYTES_MAX};

#[derive(Args)]
pub(super) struct RunsArgs {
    /// The folder that contains the folders of the runs.
    #[arg(default_value = "runs")]
    folder: PathBuf,
    /// Prints one JSON object for each run instead of a table.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Args)]
pub(super) struct CompareArgs {
    /// The folders of the runs.
    #[arg(required = true, num_args = 2.., value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Writes a page with the curves of all runs to FILE, instead of printing a table.
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    page: Option<PathBuf>,
    /// Prints one JSON object instead of a table.
    #[arg(long)]
    pub(super) json: bool,
}

/// The known facts of a run.
struct Known {
    path: PathBuf,
    recipe: Option<Recipe>,
    /// The summary of a run that has ended.
    summary: Option<Value>,
    /// Number of steps in the last checkpoint of a run that was cut off.
    cut_off_after: Option<u64>,
}

impl Known {
    /// Reads a run; `None` if there is none at the path.
    fn read(path: &Path) -> Option<Known> {
        let run_dir = RunDir::open(path).ok()?;
        // A run without a readable summary is listed by its recipe, as one that was cut off.
        let text = read_input(&run_dir.summary(), SUMMARY_BYTES_MAX).ok();
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
    // Sorted by number, so that `digits-9` comes before `digits-10`.
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
    let titles = ["run", "training", "state", "steps", "time", "peak", "values"];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
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
        rows.push(vec![name, title, run.state(), steps, time, peak, values]);
    }
    say_table(&rows)
}

/// Largest number of characters in a cell of a table. A name in a stranger's file may be longer.
const CELL_LEN_MAX: usize = 240;

/// Prints rows with each column as wide as its widest cell. Cells are printable and not longer than
/// [`CELL_LEN_MAX`].
fn say_table(rows: &[Vec<String>]) -> Result<()> {
    let cell = |cell: &String| beginning(&printable(cell), CELL_LEN_MAX);
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(cell).collect()).collect();
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}"));
        say(cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

/// `Ok` if no run is named twice.
///
/// # Errors
/// `Setting`.
fn check_different(runs: &[PathBuf]) -> Result<()> {
    let places: Vec<Option<PathBuf>> = runs.iter().map(|run| run.canonicalize().ok()).collect();
    let is_again =
        |&index: &usize| places[index].is_some() && places[..index].contains(&places[index]);
    match (0..runs.len()).find(is_again) {
        Some(index) => Err(TrainError::Setting {
            place: runs[index].display().to_string(),
            problem: "is named twice, and a run has no difference from itself".to_owned(),
        }),
        None => Ok(()),
    }
}

pub(super) fn compare(arguments: &CompareArgs) -> Result<()> {
    check_different(&arguments.runs)?;
    let read = |path: &PathBuf| {
        let run = report::Run::read(path)?;
        // The path as given, because two folders may have the same name.
        let title = path.display().to_string();
        Ok(report::Run { about: About { title, ..run.about }, ..run })
    };
    let runs = arguments.runs.iter().map(read).collect::<Result<Vec<_>>>()?;
    if let Some(page) = &arguments.page {
        NewFile::write(page, &report::compare(&runs))?;
        return say(&format!("the comparison is in {}", page.display()));
    }
    let (settings, figures) = (recipe_differences(&runs), figures(&runs));
    let titles = runs.iter().map(|run| run.about.title.clone());
    if arguments.json {
        let by_name = |rows: Vec<Row>| rows.into_iter().map(|(name, values)| (name, json!(values)));
        let recipe: Map<String, Value> = by_name(settings).collect();
        let curves: Vec<Map<String, Value>> = runs.iter().map(last_values).collect();
        let names: Vec<String> = titles.collect();
        return say(&json!({ "runs": names, "recipe": recipe, "values": curves }).to_string());
    }
    let mut rows = vec![iter::once(String::new()).chain(titles).collect::<Vec<_>>()];
    for (name, values) in settings.into_iter().chain(figures) {
        let values = values.into_iter().map(Option::unwrap_or_default);
        rows.push(iter::once(name).chain(values).collect());
    }
    say_table(&rows)
}

/// The last value of every metric, and all other numbers of the run's summary.
fn last_values(run: &report::Run) -> Map<String, Value> {
    let series = run.curves.series().iter();
    let last = series.filter_map(|series| Some((series.name.clone(), json!(series.last()?.1))));
    let own = [
        ("steps", json!(run.curves.last_step())),
        ("seconds", json!(run.seconds)),
        ("retries", json!(run.curves.retries().len())),
    ];
    last.chain(own.map(|(name, value)| (name.to_owned(), value))).collect()
}
