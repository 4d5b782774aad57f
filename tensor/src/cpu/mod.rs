//! The processor as a device: threads, vectors and matrix products, with no policy.
//!
//! The bits of a result do not depend on the number of threads. A kernel cuts its work into chunks
//! that depend on the shape alone, or, like products, so that no sum depends on the cut.

pub(crate) mod arithmetic;
mod batch;
pub(crate) mod chunk;
pub(crate) mod gemm;
pub(crate) mod int8;
pub(crate) mod lines;
pub(crate) mod math;
pub(crate) mod pairs;
pub(crate) mod panel;
pub(crate) mod pool;
pub(crate) mod simd;
pub(crate) mod stored;
#[cfg(feature = "testing")]
pub mod testing;
pub(crate) mod tiles;
pub(crate) mod turn;

mod gemm_panel;
mod half_types;
mod handle;
#[cfg(target_arch = "x86_64")]
mod int8_packed;
mod int8_simd;
mod packing;
mod scratch;
mod sync;
mod uncached;

pub use handle::Cpu;
