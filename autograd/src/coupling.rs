//! Samples of a batch that depend on each other.

use std::fmt;
use std::panic::Location;

/// The place where a pass computed a value from several samples together, as batch normalisation
/// does: see [`Pass::couple_samples`](crate::Pass::couple_samples).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coupling {
    /// The path of the module that made the call; empty outside of modules.
    pub path: String,
    /// The line of the call.
    pub site: &'static Location<'static>,
}

impl fmt::Display for Coupling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path[..] {
            "" => write!(f, "{}", self.site),
            path => write!(f, "module {path} at {}", self.site),
        }
    }
}
