//! The factors of dropout, 16 blocks of the stream at a time.

use super::Dropout;
use crate::cpu::math::SimdFloat;
use crate::cpu::simd::{Simd, SimdKernel};
use crate::cpu::tiles::Source;
use crate::dtype::Float;
use crate::random::RandomKey;

const BLOCKS: usize = 16;

/// The factors by which elements are multiplied.
pub(super) struct Factors {
    pub(super) key: RandomKey,
    pub(super) first: u64,
    /// Words below this number drop their element.
    pub(super) threshold: u64,
    pub(super) scale: f64,
}

impl Factors {
    pub(super) fn new(Dropout { probability, key, first }: Dropout) -> Self {
        let probability = probability.clamp(0.0, 1.0);
        // A word w drops its element if w / 2^32 is less than the probability.
        let threshold = (probability * (1u64 << 32) as f64).ceil() as u64;
        let scale = if probability < 1.0 { 1.0 / (1.0 - probability) } else { 0.0 };
        Factors { key, first, threshold, scale }
    }
}

struct Fill<'a, T> {
    factors: &'a Factors,
    from: u64,
    to: &'a mut [T],
}

impl<T: Float> SimdKernel<T> for Fill<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, _: S) {
        let Fill { factors, from, to } = self;
        let scale = T::from_f64(factors.scale);
        let mut skipped = (from % 4) as usize;
        let mut block = from / 4;
        let mut done = 0;
        let mut line = [T::ZERO; 4 * BLOCKS];
        while done < to.len() {
            let words = factors.key.blocks::<BLOCKS>(block);
            for i in 0..BLOCKS {
                for word in 0..4 {
                    let is_kept = u64::from(words[word][i]) >= factors.threshold;
                    line[4 * i + word] = if is_kept { scale } else { T::ZERO };
                }
            }
            let len = (line.len() - skipped).min(to.len() - done);
            to[done..done + len].copy_from_slice(&line[skipped..skipped + len]);
            done += len;
            skipped = 0;
            block += BLOCKS as u64;
        }
    }
}

impl<T: SimdFloat> Source<T> for Factors {
    fn write(&self, from: usize, to: &mut [T]) {
        T::dispatch(Fill { factors: self, from: self.first.wrapping_add(from as u64), to });
    }
}

/// Writes the product of the factors and x, or of the factors and the values in `to`.
pub(super) fn multiply<T: Float>(sources: &[&[T]], to: &mut [T]) {
    let factors = &sources[0][..to.len()];
    match sources.get(1) {
        Some(x) => {
            let x = &x[..to.len()];
            for i in 0..to.len() {
                to[i] = x[i] * factors[i];
            }
        }
        None => {
            for i in 0..to.len() {
                to[i] *= factors[i];
            }
        }
    }
}
