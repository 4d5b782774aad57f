//! The sample of cases that is checked in, and reading and comparison of cases.

mod cases;
mod onnx;
mod sample;
