//! The sample of cases that is checked in, and how cases are read and compared.

mod cases;
mod onnx;
mod sample;
