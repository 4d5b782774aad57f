//! Reference models, with PyTorch's parameter names.

mod simple_cnn;

pub use simple_cnn::{SimpleCnn, SimpleCnnShape};
