//! Keys of a recipe that are set outside its file.

use std::path::Path;

use lowtide_trainer::{Result, TrainError};
use toml::{Table, Value};

use crate::recipe::mistakes::{is_beyond_integers, readable};
use crate::recipe::{Recipe, Shipped, read};

impl Recipe {
    /// Loads the recipe at `path`, the shipped recipe of that name, or the default one. Then sets
    /// keys in order: `TABLE.KEY=VALUE`, with a TOML value or a plain word.
    ///
    /// # Errors
    /// Errors of [`Recipe::load`]; `Setting` that names the first key that cannot be set.
    pub fn load_with(path: Option<&Path>, sets: &[String]) -> Result<Recipe> {
        match path {
            // A file of that name comes first. A folder of that name may hold the data.
            Some(path) => match Shipped::find(path).filter(|_| !path.is_file()) {
                Some(shipped) => Recipe::parse_with(shipped.text, path, sets),
                None => Recipe::parse_with(&read(path)?, path, sets),
            },
            None => Recipe::parse_with("", Path::new("recipe"), sets),
        }
    }

    /// [`Recipe::load_with`] for a text. Errors name it `path`.
    ///
    /// # Errors
    /// Errors of [`Recipe::load_with`] except `File`.
    pub fn parse_with(text: &str, path: &Path, sets: &[String]) -> Result<Recipe> {
        // The text is parsed on its own first, so that its mistakes are reported with their lines.
        let (mut recipe, mut table) = Recipe::parse_table(text, path)?;
        // A key may need a later one, as a kind of schedule needs its steps.
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

/// The recipe of a table, or the reason why it is wrong.
fn of_table(table: &Table) -> std::result::Result<Recipe, String> {
    let recipe: Recipe =
        table.clone().try_into().map_err(|error: toml::de::Error| readable(error.message()))?;
    recipe.check().map_err(|error| error.to_string())?;
    Ok(recipe)
}

/// Sets one key. A missing table begins as the default recipe's, unless the key changes its kind.
fn put(table: &mut Table, set: &str) -> std::result::Result<(), String> {
    let expected = "expected TABLE.KEY=VALUE, such as train.epochs=3";
    let (path, value) = set.split_once('=').ok_or(expected)?;
    let (section, key) = path.trim().split_once('.').ok_or(expected)?;
    let value = value.trim();
    let value = match format!("value = {value}").parse::<Table>() {
        Err(error) if is_beyond_integers(error.message()) => return Err(readable(error.message())),
        parsed => {
            let parsed = parsed.ok().and_then(|mut table| table.remove("value"));
            parsed.unwrap_or_else(|| Value::String(value.to_owned()))
        }
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
        // Another kind has other keys.
        section.clear();
    }
    // The key may be in an inner table, such as the keys of adapters.
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
