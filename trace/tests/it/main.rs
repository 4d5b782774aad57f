//! Laws of recordings, one module per subject.

#[expect(dead_code, reason = "some of what the allocator's tests need")]
#[path = "../../../allocator/tests/it/common.rs"]
mod common;
mod events;
mod expandable_model;
mod expandable_naive;
mod explain;
mod explain_traces;
mod exports;
mod json_lines;
mod memory_viz;
mod modules;
mod pickle;
mod recordings;
mod rerun;
mod settings;
#[expect(dead_code, reason = "some of what the allocator's tests need")]
#[path = "../../../allocator/tests/it/shelf.rs"]
mod shelf;
mod snapshot;
mod synthetic;
mod timeline;
mod traces;
mod viewer;
