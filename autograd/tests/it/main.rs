//! Laws of the record and its backward walk, one module per subject.

mod anomalies;
mod casts;
mod checker;
mod common;
mod errors;
mod faults;
mod graphs;
mod memory;
mod offload;
mod outputs;
mod random;
mod reuse;
mod rules;
mod segments;
mod values;
