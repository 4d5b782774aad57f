//! Parsing of some members of a JSON object. The other members are skipped.

use crate::source::json_lines::error::LineError;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

/// The members `names` of the object on a line. If a name occurs twice, the last member counts.
pub(super) fn fields_of<'a, T: Deserialize<'a>, const N: usize>(
    line: &'a [u8],
    names: [&str; N],
) -> Result<[T; N], LineError> {
    let found = found_fields_of(line, names)?;
    if let Some(at) = found.iter().position(Option::is_none) {
        return Err(missing(names[at]));
    }
    Ok(found.map(|value| value.expect("a missing member was returned above")))
}

/// The members `names` of the object on a line; `None` for a missing member. See [`fields_of`].
pub(super) fn found_fields_of<'a, T: Deserialize<'a>, const N: usize>(
    line: &'a [u8],
    names: [&str; N],
) -> Result<[Option<T>; N], LineError> {
    let json = |source| LineError::Json { source };
    let mut parser = serde_json::Deserializer::from_slice(line);
    let visitor = Members { names, value: PhantomData };
    let found = parser.deserialize_map(visitor).map_err(json)?;
    parser.end().map_err(json)?;
    Ok(found)
}

pub(super) fn missing(name: &str) -> LineError {
    LineError::MissingField { field: name.to_owned() }
}

struct Members<'n, T, const N: usize> {
    names: [&'n str; N],
    value: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>, const N: usize> Visitor<'de> for Members<'_, T, N> {
    type Value = [Option<T>; N];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = std::array::from_fn(|_| None);
        while let Some(name) = map.next_key::<Cow<'de, str>>()? {
            match self.names.iter().position(|wanted| *wanted == name) {
                Some(at) => found[at] = Some(map.next_value()?),
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(found)
    }
}
