//! Laws of the allocator, one module per subject.

mod budget;
mod common;
mod faults;
mod host;
mod model;
mod pickle;
mod reports;
mod scopes;
mod simulation;
mod snapshot;
mod torch;
mod torch_model;
mod traces;
