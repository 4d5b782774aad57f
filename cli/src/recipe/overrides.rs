//! Keys of a recipe that are set elsewhere than in its file.

use std::path::Path;

use lowtide_trainer::{Result, TrainError};
use toml::{Table, Value};

use crate::recipe::{Recipe, Shipped, read};

impl Recipe {
    /// The recipe at `path`, or the shipped one of that name, or the default one, with keys set in
    /// order: `TABLE.KEY=VALUE`, the value as in TOML or a plain word.
    ///
    /// # Errors
    /// The errors of [`Recipe::load`]; `Setting` that names the first one which cannot be.
    pub fn load_with(path: Option<&Path>, sets: &[String]) -> Result<Recipe> {
        match path {
            // A file of that name comes first. A folder may be the data's.
            Some(path) => match Shipped::find(path).filter(|_| !path.is_file()) {
                Some(shipped) => Recipe::parse_with(shipped.text, path, sets),
                None => Recipe::parse_with(&read(path)?, path, sets),
            },
            None => Recipe::parse_with("", Path::new("recipe"), sets),
        }
    }

    /// [`Recipe::load_with`] of a text; `path` is what errors call it.
    ///
    /// # Errors
    /// The errors of [`Recipe::load_with`], without `File`.
    pub fn parse_with(text: &str, path: &Path, sets: &[String]) -> Result<Recipe> {
        // The text by itself: its mistakes are told with their lines.
        let mut recipe = Recipe::parse(text, path)?;
        let mut table: Table = text.parse().expect("it is a recipe");
        // A key may need one that is set after it, as a kind of schedule needs its steps.
        let mut mistake = None;
        for set in sets {
            let wrong = |problem: String| TrainError::Setting {
                place: format!("--set {set}"),
                problem: problem.lines().collect::<Vec<_>>().join(" "),
            };
            put(&mut table, set).map_err(wrong)?;
            match of_table(&table) {
                Ok(with_set) => (recipe, mistake) = (with_set, None),
                Err(problem) => mistake = mistake.or(Some(wrong(problem))),
            }
        }
        mistake.map_or(Ok(recipe), Err)
    }
}

/// The recipe of a table, or what is wrong with it.
fn of_table(table: &Table) -> std::result::Result<Recipe, String> {
    let recipe: Recipe =
        table.clone().try_into().map_err(|error: toml::de::Error| error.message().to_owned())?;
    recipe.check().map_err(|error| error.to_string())?;
    Ok(recipe)
}

/// Sets one key. A table that is not there begins as the default recipe's, unless it becomes one of
/// another kind.
fn put(table: &mut Table, set: &str) -> std::result::Result<(), String> {
    let expected = "expected TABLE.KEY=VALUE, such as train.epochs=3";
    let (path, value) = set.split_once('=').ok_or(expected)?;
    let (section, key) = path.trim().split_once('.').ok_or(expected)?;
    let value = value.trim();
    let parsed = format!("value = {value}").parse::<Table>();
    let value = match parsed.ok().and_then(|mut table| table.remove("value")) {
        Some(value) => value,
        None => Value::String(value.to_owned()),
    };
    if !table.contains_key(section) {
        let defaults: Table = Recipe::default().to_toml().parse().expect("it was just written");
        let default = defaults.get(section).filter(|_| key != "kind").cloned();
        table.insert(section.to_owned(), default.unwrap_or_else(|| Value::Table(Table::new())));
    }
    let Some(section) = table.get_mut(section).and_then(Value::as_table_mut) else {
        return Err(format!("{section} is no table of a recipe"));
    };
    if key == "kind" && section.get(key) != Some(&value) {
        // Another kind has keys of its own.
        section.clear();
    }
    // A key may be of a table inside, as those of adapters are.
    let mut tables: Vec<&str> = key.split('.').collect();
    let last = tables.pop().unwrap_or_default();
    let mut place = section;
    for name in tables {
        let inside = place.entry(name).or_insert_with(|| Value::Table(Table::new()));
        place = inside.as_table_mut().ok_or_else(|| format!("{name} is no table"))?;
    }
    place.insert(last.to_owned(), value);
    Ok(())
}
