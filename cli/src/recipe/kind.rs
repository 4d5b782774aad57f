//! Tables of a recipe that are one of several kinds.

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error};
use toml::{Table, Value};

/// Reads a table; a table without `kind` gets `kind`. An error names the wrong key.
pub(super) fn with_default<'de, D, T>(deserializer: D, kind: &str) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let mut table = Table::deserialize(deserializer)?;
    table.entry("kind").or_insert_with(|| kind.into());
    if let Some(other) = table.get("kind").filter(|kind| !kind.is_str()) {
        return Err(D::Error::custom(format!("unfit value of `kind`: {other} is no name")));
    }
    let parse = |table: Table| Value::Table(table).try_into::<T>();
    parse(table.clone()).map_err(|error| {
        // The first key that the kind alone refuses.
        let is_wrong = |key: &&String| {
            let pair = |key: &str| table.get(key).map(|value| (key.to_owned(), value.clone()));
            let alone = ["kind", key.as_str()].into_iter().filter_map(pair);
            parse(alone.collect()).is_err()
        };
        let message = error.message();
        let culprit = table.keys().filter(|key| *key != "kind").find(is_wrong);
        match culprit.filter(|_| !message.starts_with("unknown") && !message.starts_with("missing"))
        {
            Some(key) => D::Error::custom(format!("unfit value of `{key}`: {message}")),
            None => D::Error::custom(message),
        }
    })
}
