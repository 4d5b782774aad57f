//! y and its log-sum-exp. A task takes one block of queries.
//!
//! Scores have the queries along the lanes. k and v are then read in place, and vector operations
//! find the largest score and the sum of a query. Only q and y are transposed, once for each block
//! of queries.

use super::block::{BLOCK, Problem, Rows, Sizes, block, exp_fast, transposed};
use super::heads_of;
use crate::cpu::chunk::{Blocks, Chunked, for_each_part_with_scratch};
use crate::cpu::math::SimdFloat;
use crate::cpu::panel::{PANEL_WIDTH_MAX, PanelProduct};
use crate::cpu::pool::Pool;
use crate::cpu::simd::{Simd, SimdKernel};
use crate::cpu::turn::turn_rows;
use crate::dtype::Element;
use crate::write_mode::WriteMode;

/// Number of tasks. Each task needs scratch memory.
pub(super) fn task_count(sizes: &Sizes) -> usize {
    sizes.batch * sizes.heads * sizes.queries.div_ceil(BLOCK).max(1)
}

/// Elements of scratch for one thread: the transposed q, the sums of y, the scores, and k and v if
/// they have to be converted.
pub(super) fn scratch_len(sizes: &Sizes, is_converted: bool) -> usize {
    let dims = sizes.dim + sizes.v_dim;
    BLOCK * (dims + PANEL_WIDTH_MAX + if is_converted { dims } else { 0 })
}

/// Overwrites y and lse.
pub(super) fn forward<E: Element, T: SimdFloat>(
    pool: &Pool,
    problem: &Problem<'_, E>,
    y: &mut [E],
    lse: &mut [T],
    scratch: &mut [T],
) {
    let sizes = problem.sizes;
    let len = scratch_len(&sizes, size_of::<E>() != size_of::<T>());
    let groups = [sizes.batch * sizes.heads, sizes.queries];
    let parts = (Blocks::new(y, groups, BLOCK, sizes.v_dim), Blocks::new(lse, groups, BLOCK, 1));
    let block_count = sizes.queries.div_ceil(BLOCK).max(1);
    for_each_part_with_scratch(
        pool,
        parts,
        Chunked::new(scratch, len),
        |index, (y, lse), scratch| {
            let (row, first) = (index / block_count, index % block_count * BLOCK);
            T::dispatch(Queries { problem, row, first, y, lse, scratch });
        },
    );
}

/// A block of queries of head `row`, from query `first` on. `lse` has one element for each query.
struct Queries<'a, E, T> {
    problem: &'a Problem<'a, E>,
    row: usize,
    first: usize,
    y: &'a mut [E],
    lse: &'a mut [T],
    scratch: &'a mut [T],
}

impl<E: Element, T: SimdFloat> SimdKernel<T> for Queries<'_, E, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, simd: S) {
        let Queries { problem, row, first, y, lse, scratch } = self;
        let Sizes { keys, dim, v_dim, .. } = problem.sizes;
        let (width, count) = (COLS * S::LANE_COUNT, lse.len());
        if count == 0 {
            return;
        }
        let heads = heads_of(&problem.sizes, row);
        let (q_transposed, rest) = scratch.split_at_mut(BLOCK * dim);
        let (sums, rest) = rest.split_at_mut(BLOCK * v_dim);
        let (scores, converted) = rest.split_at_mut(BLOCK * PANEL_WIDTH_MAX);
        let converted_len = if converted.is_empty() { 0 } else { BLOCK * dim };
        let (k_converted, v_converted) = converted.split_at_mut(converted_len);
        let factor = T::from_f64(problem.scale());
        transposed(
            simd,
            problem.q.at(heads.b, heads.h),
            first,
            [count, dim],
            width,
            factor,
            q_transposed,
        );
        sums.fill(T::ZERO);
        let mut state = [Running::<T>::new(); BLOCK / 8];
        let (k, v) = (problem.k.at(heads.b, heads.g), problem.v.at(heads.b, heads.g));
        let key_end = problem.visible(first + count - 1).min(keys);
        for j in (0..key_end).step_by(BLOCK) {
            let key_count = BLOCK.min(key_end - j);
            let k = block(k, j, [key_count, dim], k_converted);
            let v = block(v, j, [key_count, v_dim], v_converted).transposed();
            for panel in 0..count.div_ceil(width) {
                let i = first + panel * width;
                let last = first + count.min((panel + 1) * width) - 1;
                let key_count = key_count.min(problem.visible(last).saturating_sub(j));
                if key_count == 0 {
                    continue;
                }
                let scores = &mut scores[..key_count * width];
                let q = &q_transposed[panel * dim * width..][..dim * width];
                simd.call(PanelProduct {
                    size: [key_count, dim],
                    a: k,
                    b: q,
                    start: WriteMode::Overwrite,
                    c: scores,
                    c_stride: width,
                });
                problem.add_mask(heads, Rows::Keys, [i, j], width, scores);
                if problem.visible(i) < j + key_count {
                    hide(problem, [i, j], width, scores);
                }
                let sums = &mut sums[panel * v_dim * width..][..v_dim * width];
                state[panel].meet::<S>(width, scores, sums);
                problem.multiply_dropout(heads, Rows::Keys, [i, j], width, scores);
                simd.call(PanelProduct {
                    size: [v_dim, key_count],
                    a: v,
                    b: scores,
                    start: WriteMode::Accumulate,
                    c: sums,
                    c_stride: width,
                });
            }
        }
        for (panel, lse) in lse.chunks_mut(width).enumerate() {
            let state = &state[panel];
            let mut factors = [T::ZERO; PANEL_WIDTH_MAX];
            for (lane, lse) in lse.iter_mut().enumerate() {
                let (max, total) = (state.max[lane], state.total[lane]);
                *lse = max + total.ln();
                // A query that sees no key has sums of 0.
                factors[lane] = if total == T::ZERO { T::ZERO } else { T::ONE / total };
            }
            let sums = &mut sums[panel * v_dim * width..][..v_dim * width];
            for row in sums.chunks_exact_mut(width) {
                row.iter_mut().zip(&factors).for_each(|(sum, &factor)| *sum *= factor);
            }
            let y = &mut y[panel * width * v_dim..][..lse.len() * v_dim];
            turn_rows(simd, (sums, width), [v_dim, lse.len()], (y, v_dim), |y| y, T::cast);
        }
    }
}

/// Sets the scores of keys that causality hides from a query to -∞.
#[inline(always)]
fn hide<E: Element, T: SimdFloat>(
    problem: &Problem<'_, E>,
    [i, j]: [usize; 2],
    width: usize,
    scores: &mut [T],
) {
    for lane in 0..width {
        let visible = problem.visible(i + lane).saturating_sub(j);
        for score in scores.iter_mut().skip(lane).step_by(width).skip(visible) {
            *score = T::NEG_INFINITY;
        }
    }
}

/// The largest score of each query so far, and the sum of the exponentials relative to it.
#[derive(Clone, Copy)]
struct Running<T> {
    max: [T; PANEL_WIDTH_MAX],
    total: [T; PANEL_WIDTH_MAX],
}

impl<T: SimdFloat> Running<T> {
    fn new() -> Self {
        Running { max: [T::NEG_INFINITY; PANEL_WIDTH_MAX], total: [T::ZERO; PANEL_WIDTH_MAX] }
    }

    /// Replaces scores by their exponentials relative to the largest score so far, and rescales
    /// earlier sums.
    #[inline(always)]
    fn meet<S: Simd<T>>(&mut self, width: usize, scores: &mut [T], sums: &mut [T]) {
        let mut max = self.max;
        let best = &mut max[..width];
        for row in scores.chunks_exact(width) {
            for (max, &score) in best.iter_mut().zip(row) {
                *max = if score > *max { score } else { *max };
            }
        }
        let mut shift = [T::ZERO; PANEL_WIDTH_MAX];
        let mut factor = [T::ONE; PANEL_WIDTH_MAX];
        let mut changed = false;
        for lane in 0..width {
            // If all keys have been hidden so far, any shift is right.
            let is_seen = max[lane] > T::NEG_INFINITY;
            shift[lane] = if is_seen { max[lane] } else { T::ZERO };
            factor[lane] = exp_fast::<T, S>(self.max[lane] - shift[lane]);
            changed |= max[lane] != self.max[lane];
        }
        let (shift, factor) = (&shift[..width], &factor[..width]);
        let mut added = [T::ZERO; PANEL_WIDTH_MAX];
        let added = &mut added[..width];
        for row in scores.chunks_exact_mut(width) {
            for lane in 0..width {
                row[lane] = exp_fast::<T, S>(row[lane] - shift[lane]);
                added[lane] += row[lane];
            }
        }
        for lane in 0..width {
            self.total[lane] = self.total[lane] * factor[lane] + added[lane];
        }
        self.max = max;
        if changed {
            for row in sums.chunks_exact_mut(width) {
                for lane in 0..width {
                    row[lane] *= factor[lane];
                }
            }
        }
    }
}
