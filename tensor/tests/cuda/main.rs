//! Tensors on the pretend device, next to the same on the processor.

mod alike;
mod elementwise;
mod gpu;
mod gradients;
mod products;
mod reduce;
mod storage;
