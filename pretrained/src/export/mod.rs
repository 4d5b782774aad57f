//! Models in the files of other programs: llama.cpp's and onnxruntime's.

pub(crate) mod gguf;
pub(crate) mod onnx;
mod pieces;
mod target;

pub use pieces::export_piece_len;
