//! Passes over one gradient in fixed chunks.

use crate::Float;
use crate::cpu::Cpu;
use crate::cpu::chunk::for_each_chunk;
use std::sync::atomic::{AtomicBool, Ordering};

const CHUNK_LEN: usize = 1 << 14;
/// Partial sums of [`sum_of_squares`]; they live on the stack.
const PARTIAL_COUNT: usize = 64;

/// `x *= scale`; whether every result is finite.
pub(super) fn scale_and_check<T: Float>(cpu: &Cpu, x: &mut [T], scale: T) -> bool {
    let finite = AtomicBool::new(true);
    for_each_chunk(cpu.pool(), x, CHUNK_LEN, |_, chunk| {
        let mut all = true;
        for x in chunk {
            *x *= scale;
            all &= x.is_finite();
        }
        // Only ever lowered, so the order of the chunks does not matter.
        if !all {
            finite.store(false, Ordering::Relaxed);
        }
    });
    finite.into_inner()
}

/// `Σ x²` in f64.
pub(super) fn sum_of_squares<T: Float>(cpu: &Cpu, x: &[T]) -> f64 {
    let chunk_len = x.len().div_ceil(PARTIAL_COUNT).max(CHUNK_LEN);
    let mut partials = [0.0; PARTIAL_COUNT];
    for_each_chunk(cpu.pool(), &mut partials, 1, |index, partial| {
        let end = x.len().min((index + 1) * chunk_len);
        let chunk = x.get(index * chunk_len..end).unwrap_or_default();
        partial[0] = chunk.iter().map(|x| x.to_f64() * x.to_f64()).sum();
    });
    partials.iter().sum()
}
