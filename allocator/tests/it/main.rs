//! Laws of the allocator, one module per subject.

mod budget;
mod common;
mod early_reuse;
mod faults;
mod host;
mod model;
mod pickle;
mod reclaim;
mod reports;
mod scopes;
mod simulation;
mod snapshot;
mod stitching;
mod stream_model;
mod streams;
mod stress;
mod torch;
mod torch_model;
mod traces;
