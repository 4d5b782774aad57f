//! Datasets, one per file.

mod digits;
mod memory;

pub use digits::Digits;
pub use memory::InMemory;
