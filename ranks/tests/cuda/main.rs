//! Ranks with an NVIDIA device each, on the pretend driver with its NCCL.

mod common;
#[path = "../it/faults.rs"]
mod faults;
#[path = "../it/memory.rs"]
mod memory;
mod nccl;
#[path = "../it/sums.rs"]
mod sums;
#[path = "../it/values.rs"]
mod values;
