//! Laws of the allocator, one module per subject.

mod budget;
mod common;
mod exports;
mod faults;
mod host;
mod json_lines;
mod memory_viz;
mod model;
mod pickle;
mod recordings;
mod reports;
mod scopes;
mod simulation;
mod snapshot;
mod torch;
mod torch_model;
mod traces;
mod viewer;
