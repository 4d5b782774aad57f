//! Laws of the allocator, one module per subject.

mod budget;
mod common;
mod expandable_model;
mod explain;
mod faults;
mod host;
mod model;
mod pickle;
mod recordings;
mod reports;
mod rerun;
mod scopes;
mod shelf;
mod simulation;
mod snapshot;
mod timeline;
mod torch;
mod torch_expandable;
mod torch_ladder;
mod torch_model;
mod torch_settings;
mod traces;
