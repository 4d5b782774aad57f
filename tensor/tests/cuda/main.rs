//! Tensors on the pretend device, next to the same on the processor.

mod conv2d;
mod elementwise;
mod gpu;
mod max_pool2d;
mod storage;
