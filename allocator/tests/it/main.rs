//! Laws of the allocator, one module per subject.

mod budget;
mod common;
mod faults;
mod host;
mod model;
mod reports;
mod scopes;
mod simulation;
mod traces;
