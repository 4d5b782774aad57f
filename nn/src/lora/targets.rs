//! The choice of linear layers that get an adapter.

use regex::Regex;
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::error::{AdapterProblem, Result};

/// Names of output layers. PEFT's `all-linear` leaves them out.
const OUTPUT_LAYERS: [&str; 5] = ["lm_head", "embed_out", "head", "score", "classifier"];

/// Targets of adapters: a choice of linear layers by name, PEFT's `target_modules`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "Spelling", into = "Spelling"))]
pub enum Targets {
    /// All linear layers but the output layer; see [`is_output_layer`].
    #[default]
    AllLinear,
    /// Layers whose name is an ending from the list, or ends with a dot and such an ending:
    /// `q_proj` chooses `layers.0.q_proj`.
    Endings(Vec<String>),
    /// Layers with a name that matches the regular expression as a whole: `layers\.[0-3]\..*_proj`.
    Pattern(String),
}

impl From<&str> for Targets {
    /// `all-linear`, or a pattern.
    fn from(text: &str) -> Self {
        if text == "all-linear" { Targets::AllLinear } else { Targets::Pattern(text.to_owned()) }
    }
}

/// The form of targets in files.
#[cfg(feature = "serde")]
#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum Spelling {
    One(String),
    Several(Vec<String>),
}

#[cfg(feature = "serde")]
impl From<Spelling> for Targets {
    fn from(spelling: Spelling) -> Self {
        match spelling {
            Spelling::One(text) => text.as_str().into(),
            Spelling::Several(endings) => Targets::Endings(endings),
        }
    }
}

#[cfg(feature = "serde")]
impl From<Targets> for Spelling {
    fn from(targets: Targets) -> Self {
        match targets {
            Targets::AllLinear => Spelling::One("all-linear".to_owned()),
            Targets::Endings(endings) => Spelling::Several(endings),
            Targets::Pattern(pattern) => Spelling::One(pattern),
        }
    }
}

impl Targets {
    /// The names in `layers` that match these targets.
    ///
    /// # Errors
    /// `Adapter` for targets that match no layer.
    pub(super) fn among(&self, layers: &[String]) -> Result<Vec<String>> {
        let matching = |matches: &dyn Fn(&str) -> bool| -> Vec<String> {
            layers.iter().filter(|name| matches(name)).cloned().collect()
        };
        let none = |target: &str| -> Result<Vec<String>> {
            let (target, layers) = (target.to_owned(), layers.to_vec());
            Err(AdapterProblem::NoMatch { target, layers }.into())
        };
        match self {
            Targets::AllLinear => {
                let names = matching(&|name| !is_output_layer(name));
                if names.is_empty() { none("all-linear") } else { Ok(names) }
            }
            Targets::Endings(endings) => {
                // PEFT ignores endings that match no layer. Here such an ending is an error.
                let is_lost = |ending: &&String| !layers.iter().any(|name| ends_with(name, ending));
                match endings.iter().find(is_lost) {
                    Some(ending) => none(ending),
                    None if endings.is_empty() => none(""),
                    None => {
                        let is_named = |name: &str| endings.iter().any(|end| ends_with(name, end));
                        Ok(matching(&is_named))
                    }
                }
            }
            Targets::Pattern(pattern) => {
                let regex = Regex::new(&format!(r"\A(?:{pattern})\z")).map_err(|source| {
                    AdapterProblem::Pattern { pattern: pattern.clone(), source: Box::new(source) }
                })?;
                let names = matching(&|name| regex.is_match(name));
                if names.is_empty() { none(pattern) } else { Ok(names) }
            }
        }
    }
}

/// True if the name is an output layer's: it is `lm_head`, `embed_out`, `head`, `score` or
/// `classifier`, or ends with a dot and one of these.
pub fn is_output_layer(name: &str) -> bool {
    OUTPUT_LAYERS.iter().any(|output| ends_with(name, output))
}

fn ends_with(name: &str, ending: &str) -> bool {
    let rest = name.strip_suffix(ending);
    rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}
