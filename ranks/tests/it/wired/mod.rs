//! The laws of ranks that have messages alone.

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
