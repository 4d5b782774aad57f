//! Passes over one gradient in fixed chunks.

use crate::cpu::Cpu;
use crate::cpu::chunk::for_each_chunk;
use crate::cpu::tiles::TILE_LEN;
use crate::dtype::{Element, Float};
use std::sync::atomic::{AtomicBool, Ordering};

const CHUNK_LEN: usize = 1 << 14;
/// Number of partial sums of [`sum_of_squares`], which are on the stack.
const PARTIAL_COUNT: usize = 64;

/// Computes `x *= scale`. Returns true if every result is finite.
pub(super) fn scale_and_check<T: Float>(cpu: &Cpu, x: &mut [T], scale: T) -> bool {
    let finite = AtomicBool::new(true);
    for_each_chunk(cpu.pool(), x, CHUNK_LEN, |_, chunk| {
        let mut all = true;
        for x in chunk {
            *x *= scale;
            all &= x.is_finite();
        }
        // The flag only changes to false, so the order of the chunks does not matter.
        if !all {
            finite.store(false, Ordering::Relaxed);
        }
    });
    finite.into_inner()
}

/// [`scale_and_check`] for a half type. Products are in f32, and the stored values are checked.
pub(super) fn scale_and_check_half<T: Element>(cpu: &Cpu, x: &mut [T], scale: f32) -> bool {
    let finite = AtomicBool::new(true);
    for_each_chunk(cpu.pool(), x, CHUNK_LEN, |_, chunk| {
        let mut tile = [0.0f32; TILE_LEN];
        let mut all = true;
        for x in chunk.chunks_mut(TILE_LEN) {
            let tile = &mut tile[..x.len()];
            T::cast_slice(x, tile);
            tile.iter_mut().for_each(|x| *x *= scale);
            f32::cast_slice(tile, x);
            T::cast_slice(x, tile);
            for x in tile {
                all &= x.is_finite();
            }
        }
        if !all {
            finite.store(false, Ordering::Relaxed);
        }
    });
    finite.into_inner()
}

/// The sum `Σ x²` in f64.
pub(super) fn sum_of_squares<T: Element>(cpu: &Cpu, x: &[T]) -> f64 {
    let chunk_len = x.len().div_ceil(PARTIAL_COUNT).max(CHUNK_LEN);
    let mut partials = [0.0; PARTIAL_COUNT];
    for_each_chunk(cpu.pool(), &mut partials, 1, |index, partial| {
        let end = x.len().min((index + 1) * chunk_len);
        let chunk = x.get(index * chunk_len..end).unwrap_or_default();
        let mut tile = [0.0f64; TILE_LEN];
        partial[0] = 0.0;
        for x in chunk.chunks(TILE_LEN) {
            // Separate lanes make the additions independent of each other.
            let tile = &mut tile[..x.len()];
            T::cast_slice(x, tile);
            let mut lanes = [0.0; 8];
            let blocks = tile.chunks_exact(lanes.len());
            let rest: f64 = blocks.remainder().iter().map(|x| x * x).sum();
            for block in blocks {
                lanes.iter_mut().zip(block).for_each(|(lane, x)| *lane += x * x);
            }
            partial[0] += lanes.iter().sum::<f64>() + rest;
        }
    });
    partials.iter().sum()
}
