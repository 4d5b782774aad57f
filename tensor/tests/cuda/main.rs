//! Tensors on the pretend device, or on any, next to the same on the processor; see `gpu`.

mod compiled;
mod elementwise;
mod gpu;
mod storage;
