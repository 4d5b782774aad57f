#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod call;
pub mod case;
pub mod compare;
pub mod onnx;
pub mod ops;
pub mod outcome;
mod parameters;
pub mod report;
pub mod run;
mod ties;
pub mod transformers;
