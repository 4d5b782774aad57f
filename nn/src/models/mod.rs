//! Reference models, with PyTorch's parameter names.

mod gpt;
mod simple_cnn;

pub use gpt::{Gpt, GptShape};
pub use simple_cnn::{SimpleCnn, SimpleCnnShape};
