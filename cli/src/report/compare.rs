//! A page that compares several runs.

use std::collections::{BTreeMap, BTreeSet};

use toml::Value;

use super::charts::{grouped, is_setting, quantity, title};
use super::curves::Series;
use super::page;
use super::run::{Run, duration};

/// A page with the curves of all runs in common charts, the differences of their recipes, and their
/// results. Colours and order follow `runs`.
///
/// ```no_run
/// # use std::path::Path;
/// # use lowtide_cli::report::{Run, compare};
/// # fn page() -> lowtide_trainer::Result<String> {
/// let runs = [Run::read(Path::new("runs/digits-1"))?, Run::read(Path::new("runs/digits-2"))?];
/// Ok(compare(&runs))
/// # }
/// ```
pub fn compare(runs: &[Run]) -> String {
    page::of_runs(runs)
}

/// A row of a comparison: a name, and a value for each run; `None` if a run has no value.
pub type Row = (String, Vec<Option<String>>);

/// The settings that differ between runs: a name, and a value for each run; `None` if a run has no
/// such setting. Recipes that are not TOML are compared as a whole.
pub fn recipe_differences(runs: &[Run]) -> Vec<Row> {
    let recipes: Vec<BTreeMap<String, String>> =
        runs.iter().map(|run| settings(&run.about.recipe)).collect();
    let names: BTreeSet<&String> = recipes.iter().flat_map(BTreeMap::keys).collect();
    let by_run = |name: &String| recipes.iter().map(|recipe| recipe.get(name).cloned()).collect();
    let rows = names.into_iter().map(|name| (name.clone(), by_run(name)));
    rows.filter(|(_, values): &(_, Vec<_>)| values.windows(2).any(|two| two[0] != two[1])).collect()
}

fn settings(recipe: &str) -> BTreeMap<String, String> {
    let mut settings = BTreeMap::new();
    match recipe.parse::<toml::Table>() {
        Ok(table) => flatten("", &Value::Table(table), &mut settings),
        Err(_) => drop(settings.insert("recipe".to_owned(), recipe.to_owned())),
    }
    settings
}

fn flatten(name: &str, value: &Value, settings: &mut BTreeMap<String, String>) {
    let Value::Table(table) = value else {
        settings.insert(name.to_owned(), value.to_string());
        return;
    };
    for (key, value) in table {
        let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
        flatten(&name, value, settings);
    }
}

/// Figures of each run: a name, and a value for each run. The last and the best value of every
/// curve come first, then the runs' own figures.
pub fn figures(runs: &[Run]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let mut row = |name: String, value: &dyn Fn(&Run) -> Option<String>| {
        if rows.iter().all(|(known, _)| *known != name) {
            let values: Vec<Option<String>> = runs.iter().map(value).collect();
            if values.iter().any(Option::is_some) {
                rows.push((name, values));
            }
        }
    };
    row("Steps".to_owned(), &|run| Some(grouped(run.curves.last_step())));
    row("Time".to_owned(), &|run| (run.seconds > 0.0).then(|| duration(run.seconds)));
    let series = runs.iter().flat_map(|run| run.curves.series());
    let names: BTreeSet<&str> =
        series.map(|s| s.name.as_str()).filter(|name| !is_setting(name)).collect();
    for name in names {
        row(format!("{}, last", title(name)), &|run| {
            let (_, value) = run.curves.get(name)?.last()?;
            Some(quantity(name, value))
        });
        row(format!("{}, best", title(name)), &|run| {
            let (step, value) = best(run.curves.get(name)?)?;
            Some(format!("{} at step {}", quantity(name, value), grouped(step)))
        });
    }
    row("Retries".to_owned(), &|run| Some(grouped(run.curves.retries().len() as u64)));
    for (name, _) in runs.iter().flat_map(|run| &run.facts) {
        let own = |run: &Run| run.facts.iter().find(|(own, _)| own == name).map(|(_, v)| v.clone());
        row(name.clone(), &own);
    }
    rows
}

/// The best value of a metric, if its better direction is known.
fn best(series: &Series) -> Option<(u64, f64)> {
    match series.name.as_str() {
        name if name.ends_with("loss") => series.lowest(),
        name if name.ends_with("accuracy") => series.highest(),
        _ => None,
    }
}
