//! Laws of decoders, their configurations and their files, one module per subject.

mod common;
mod configs;
mod devices;
mod faults;
mod files;
mod generate;
mod gguf;
mod hostile;
mod hostile_texts;
mod lora;
mod models;
mod onnx;
mod parity;
mod python;
mod quantized;
mod training;
