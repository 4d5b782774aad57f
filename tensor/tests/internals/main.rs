//! Laws of parts that no call of the library shows: kernels with every instruction set, layouts,
//! codes, caches.

mod codes;
mod conv2d;
#[cfg(feature = "cuda")]
mod divisor;
mod dtype;
mod gemm;
mod int8;
#[cfg(all(feature = "cuda", unix))]
mod kernel_cache;
mod layout;
mod max_pool2d;
mod random;
mod rearrange;
mod simd;
mod turn;
mod uncached;
mod unfused;
mod windows;
