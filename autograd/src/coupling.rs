//! Samples of a batch that depend on each other.

use std::fmt;
use std::panic::Location;

/// Where a pass computed something of several samples together, as batch normalisation does: see
/// [`Pass::couple_samples`](crate::Pass::couple_samples).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coupling {
    /// The names of the modules around the call; empty outside of all.
    pub path: String,
    /// Where the call is in the source.
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
