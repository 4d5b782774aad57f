//! Kernels of the processor as plain calls, for the tests of this crate.

mod gemm;
mod int8;
mod simd;
pub mod unfused;

pub use self::gemm::{MatrixProducts, Multiplied};
pub use self::int8::{DEPTH_MAX, Int8Multiplied, Int8Rows, STEP_LEN_MAX, row_stride};
pub use self::simd::{LANE_COUNT_MAX, Vectors, narrow, turn_doubled, widen};
use super::{Cpu, uncached};
use crate::dtype::Element;

/// A processor of some threads, the caller included.
pub fn cpu(threads: usize) -> Cpu {
    Cpu::new(threads)
}

/// Runs a test with each instruction set of this processor. Only this thread is narrowed: a
/// processor of the test has to have no other.
pub fn on_every_instruction_set(test: impl Fn()) {
    super::simd::on_every_instruction_set(test);
}

/// True if products of bf16 are computed in pairs.
pub fn has_pairs() -> bool {
    super::simd::has_pairs()
}

/// Copies past the caches. [`fence`] follows before another thread reads.
///
/// # Panics
/// If the lengths differ.
pub fn copy_uncached<T: Element>(from: &[T], to: &mut [T]) {
    uncached::copy(from, to);
}

/// Makes the stores of [`copy_uncached`] visible.
pub fn fence() {
    uncached::fence();
}
