//! Laws of the record and its backward walk, one module per subject.

mod checker;
mod common;
mod errors;
mod faults;
mod graphs;
mod memory;
mod reuse;
mod rules;
