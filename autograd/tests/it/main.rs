//! Laws of the record and its backward walk, one module per subject.

mod anomalies;
mod axes;
mod casts;
mod cheap;
mod checker;
mod common;
mod coverage;
mod einsum;
mod errors;
mod faults;
mod graphs;
mod memory;
mod misuse;
mod offload;
mod origins;
mod outputs;
mod pytorch;
mod random;
mod reuse;
mod rules;
mod saved_bytes;
mod segments;
mod taking;
mod turns;
mod values;
