//! Tensors on the pretend device, next to the same on the processor.

mod conv2d;
mod cross_entropy;
mod elementwise;
mod gpu;
mod max_pool2d;
mod simulation;
mod storage;
