//! The laws of ranks that have only messages.

#[path = "../common.rs"]
mod common;
mod engine;
#[path = "../faults.rs"]
mod faults;
#[path = "../memory.rs"]
mod memory;
mod sent;
#[path = "../sums.rs"]
mod sums;
#[path = "../values.rs"]
mod values;
