//! Laws of the allocator, one module per subject.

mod budget;
mod common;
mod expandable_model;
mod explain;
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
mod shelf;
mod simulation;
mod snapshot;
mod synthetic;
mod timeline;
mod torch;
mod torch_expandable;
mod torch_ladder;
mod torch_model;
mod torch_settings;
mod traces;
mod viewer;
