//! The laws of ranks that are threads and read each other's tensors.

#[path = "../common.rs"]
mod common;
mod engine;
#[path = "../faults.rs"]
mod faults;
mod late;
#[path = "../memory.rs"]
mod memory;
#[path = "../sums.rs"]
mod sums;
#[path = "../values.rs"]
mod values;
