//! Laws of the allocator, one module per subject.

mod adaptors;
mod budget;
mod checked;
mod common;
mod faults;
mod host;
mod model;
mod pickle;
mod pinned;
mod reports;
mod scopes;
mod simulation;
mod snapshot;
mod torch;
mod torch_model;
mod torch_named;
mod traces;
mod watch;
