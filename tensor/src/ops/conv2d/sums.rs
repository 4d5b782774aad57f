//! Combines partial sums of dw, and writes dw.

use crate::cpu::chunk::for_each_chunk;
use crate::cpu::math::SimdFloat;
use crate::cpu::pool::Pool;
use crate::cpu::simd::{Simd, SimdKernel};
use crate::cpu::stored::round_slice;
use crate::cpu::turn::turn_rows;
use crate::dtype::Element;

/// Rounds sums of dw to the type of dw, with all threads.
pub(super) fn round_weights<E: Element, T: SimdFloat>(pool: &Pool, sums: &[T], dw: &mut [E]) {
    const CHUNK_LEN: usize = 16 * 1024;
    for_each_chunk(pool, dw, CHUNK_LEN, |chunk, dw| {
        round_slice(&sums[chunk * CHUNK_LEN..][..dw.len()], dw);
    });
}

/// Adds `others` to `total`: the sums of the other parts, each as long as `total`, in order.
pub(super) fn add_partials<T: SimdFloat>(pool: &Pool, total: &mut [T], others: &[T]) {
    const CHUNK_LEN: usize = 4096;
    let total_len = total.len();
    for_each_chunk(pool, total, CHUNK_LEN, |chunk, total| {
        for other in others.chunks_exact(total_len) {
            let other = &other[chunk * CHUNK_LEN..][..total.len()];
            total.iter_mut().zip(other).for_each(|(total, &other)| *total += other);
        }
    });
}

/// Transposes sums `[K, O]`, in rows of `padded`, to dw `[O, K]`.
pub(super) struct TransposeWeights<'a, E, T> {
    pub(super) sums: &'a [T],
    pub(super) padded: usize,
    pub(super) k_len: usize,
    pub(super) dw: &'a mut [E],
}

impl<E: Element, T: SimdFloat> SimdKernel<T> for TransposeWeights<'_, E, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, simd: S) {
        let TransposeWeights { sums, padded, k_len, dw } = self;
        let size = [k_len, dw.len() / k_len];
        turn_rows(simd, (sums, padded), size, (dw, k_len), |sum| sum, T::cast);
    }
}
