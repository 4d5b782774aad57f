//! Laws of the allocator, one module per subject.

mod budget;
mod common;
mod explain;
mod faults;
mod host;
mod model;
mod pickle;
mod recordings;
mod reports;
mod scopes;
mod simulation;
mod snapshot;
mod timeline;
mod torch;
mod torch_model;
mod traces;
