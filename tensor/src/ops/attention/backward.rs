//! dq, dk and dv. A task takes one head of k and v and reads its queries block by block.
//!
//! Scores have the keys along the lanes; each block of keys is transposed once. A task owns all
//! results that depend on its head of k and v, so threads add nothing up between them.

use super::block::{
    BLOCK, Problem, Rows, Sizes, Source, block, exp_fast, panels, scaled, transposed,
    transposed_back,
};
use super::heads_of;
use crate::cpu::chunk::{Blocks, Chunked, for_each_part_with_scratch};
use crate::cpu::gemm::Matrix;
use crate::cpu::math::SimdFloat;
use crate::cpu::panel::{PANEL_WIDTH_MAX, PanelProduct};
use crate::cpu::pool::Pool;
use crate::cpu::simd::{Simd, SimdKernel};
use crate::dtype::Element;
use crate::write_mode::WriteMode;

/// Number of tasks. Each task needs scratch memory.
pub(super) fn task_count(sizes: &Sizes) -> usize {
    sizes.batch * sizes.groups
}

/// Elements of scratch for one thread; linear in the number of queries.
pub(super) fn scratch_len(sizes: &Sizes, is_converted: bool) -> usize {
    Scratch::<f32>::lens(sizes, is_converted).iter().sum()
}

/// The scratch of a task, by role.
struct Scratch<'a, T> {
    /// k and v, transposed: `[panels][D][W]`.
    k: &'a mut [T],
    v: &'a mut [T],
    /// The gradients of k and v, transposed.
    dk: &'a mut [T],
    dv: &'a mut [T],
    /// k in panels of its columns: `[D / W][BLOCK][W]`.
    k_rows: &'a mut [T],
    /// Weights and gradients of scores for one panel of keys, `[BLOCK][W]`, and the factors of
    /// dropout.
    p: &'a mut [T],
    ds: &'a mut [T],
    kept: &'a mut [T],
    /// Gradients of scores for all keys of a block: `[BLOCK][BLOCK]`.
    ds_rows: &'a mut [T],
    /// dq of the heads that share the keys. Rows are padded to whole panels.
    dq: &'a mut [T],
    /// Σ dy·y of the queries of these heads.
    delta: &'a mut [T],
    /// q times the scale, multiplied as in forward, so that the scores have the same bits. Weights
    /// then sum to 1 even if rounding changes a score much.
    q: &'a mut [T],
    /// dy and rows of k, if they have to be converted.
    dy: &'a mut [T],
    k_converted: &'a mut [T],
}

impl<'a, T> Scratch<'a, T> {
    fn lens(sizes: &Sizes, is_converted: bool) -> [usize; 14] {
        let Sizes { heads, groups, queries, dim, v_dim, .. } = *sizes;
        let rows = heads / groups.max(1) * queries;
        let (padded, panel) = (padded(dim), BLOCK * PANEL_WIDTH_MAX);
        let converted = |len: usize| if is_converted { BLOCK * len } else { 0 };
        let [k, v, dk, dv, q] = [dim, v_dim, dim, v_dim, dim].map(|len| BLOCK * len);
        let [dy, k_converted] = [v_dim, dim].map(converted);
        let (k_rows, ds_rows) = (BLOCK * padded, BLOCK * BLOCK);
        let (dq, delta) = (rows * padded, rows);
        [k, v, dk, dv, k_rows, panel, panel, panel, ds_rows, dq, delta, q, dy, k_converted]
    }

    fn new(sizes: &Sizes, is_converted: bool, scratch: &'a mut [T]) -> Self {
        let mut rest = scratch;
        let parts = Self::lens(sizes, is_converted).map(|len| {
            let (part, later) = std::mem::take(&mut rest).split_at_mut(len);
            rest = later;
            part
        });
        let [k, v, dk, dv, k_rows, p, ds, kept, ds_rows, dq, delta, q, dy, k_converted] = parts;
        Scratch { k, v, dk, dv, k_rows, p, ds, kept, ds_rows, dq, delta, q, dy, k_converted }
    }
}

/// Columns of q, rounded up to whole panels.
fn padded(dim: usize) -> usize {
    dim.next_multiple_of(PANEL_WIDTH_MAX)
}

/// Overwrites dq, dk and dv.
pub(super) fn backward<E: Element, T: SimdFloat>(
    pool: &Pool,
    problem: &Problem<'_, E>,
    [y, dy]: [Source<'_, E>; 2],
    lse: &[T],
    [dq, dk, dv]: [&mut [E]; 3],
    scratch: &mut [T],
) {
    let sizes = problem.sizes;
    let Sizes { batch, heads, groups, queries, keys, dim, v_dim } = sizes;
    let is_converted = size_of::<E>() != size_of::<T>();
    let len = scratch_len(&sizes, is_converted);
    let (count, rows) = (batch * groups, heads / groups.max(1) * queries);
    let dq = Blocks::new(dq, [count, rows], rows, dim);
    let dk = Blocks::new(dk, [count, keys], keys, dim);
    let dv = Blocks::new(dv, [count, keys], keys, v_dim);
    let scratch = Chunked::new(scratch, len);
    for_each_part_with_scratch(pool, (dq, (dk, dv)), scratch, |index, (dq, (dk, dv)), scratch| {
        let scratch = Scratch::new(&sizes, is_converted, scratch);
        let lse = &lse[index * rows..][..rows];
        T::dispatch(Keys { problem, index, y, dy, lse, dq, dk, dv, scratch });
    });
}

/// A head of k and v, and the heads of q that share it.
struct Keys<'a, E, T> {
    problem: &'a Problem<'a, E>,
    index: usize,
    y: Source<'a, E>,
    dy: Source<'a, E>,
    lse: &'a [T],
    dq: &'a mut [E],
    dk: &'a mut [E],
    dv: &'a mut [E],
    scratch: Scratch<'a, T>,
}

impl<E: Element, T: SimdFloat> SimdKernel<T> for Keys<'_, E, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(mut self, simd: S) {
        let problem = self.problem;
        let Sizes { heads, groups, queries, keys, dim, v_dim, .. } = problem.sizes;
        let (width, shared) = (COLS * S::LANE_COUNT, heads / groups.max(1));
        let first_row = self.index / groups * heads + self.index % groups * shared;
        let scale = problem.scale();
        self.fill_delta(first_row);
        self.scratch.dq.fill(T::ZERO);
        for j in (0..keys).step_by(BLOCK) {
            let count = BLOCK.min(keys - j);
            let Scratch { k, v, dk, dv, k_rows, k_converted, .. } = &mut self.scratch;
            let (b, g) = (self.index / groups, self.index % groups);
            transposed(simd, problem.k.at(b, g), j, [count, dim], width, T::ONE, k);
            transposed(simd, problem.v.at(b, g), j, [count, v_dim], width, T::ONE, v);
            let rows = block(problem.k.at(b, g), j, [count, dim], k_converted);
            panels(rows, [count, dim], [BLOCK, width], k_rows);
            dk.fill(T::ZERO);
            dv.fill(T::ZERO);
            for head in 0..shared {
                for i in (0..queries).step_by(BLOCK) {
                    self.meet::<S, COLS>(simd, [first_row, head], [i, j]);
                }
            }
            let Scratch { dk, dv, .. } = &self.scratch;
            transposed_back(simd, dk, dim, width, &mut self.dk[j * dim..][..count * dim]);
            transposed_back(simd, dv, v_dim, width, &mut self.dv[j * v_dim..][..count * v_dim]);
        }
        let scale = T::from_f64(scale);
        let rows = self.scratch.dq.chunks_exact(padded(dim).max(1));
        for (dq, from) in self.dq.chunks_exact_mut(dim.max(1)).zip(rows) {
            dq.iter_mut().zip(from).for_each(|(dq, &x)| *dq = (x * scale).cast());
        }
    }
}

impl<E: Element, T: SimdFloat> Keys<'_, E, T> {
    /// Σ dy·y of each query.
    #[inline(always)]
    fn fill_delta(&mut self, first_row: usize) {
        let Sizes { queries, v_dim, .. } = self.problem.sizes;
        for (at, delta) in self.scratch.delta.iter_mut().enumerate() {
            let heads = heads_of(&self.problem.sizes, first_row + at / queries);
            let [y, dy] = [self.y, self.dy].map(|x| x.at(heads.b, heads.h));
            let row = at % queries;
            if v_dim > 0 && [y.col_stride, dy.col_stride] == [1, 1] {
                let [y, dy] = [y, dy].map(|x| &x.data[row * x.row_stride..][..v_dim]);
                *delta = dot(y, dy);
                continue;
            }
            let element = |x: &Matrix<'_, E>, col: usize| {
                x.data[row * x.row_stride + col * x.col_stride].cast::<T>()
            };
            *delta =
                (0..v_dim).fold(T::ZERO, |sum, col| sum + element(&y, col) * element(&dy, col));
        }
    }

    /// Multiplies the block of queries from `i` on with the block of keys from `j` on. The queries
    /// are of the `head`-th head that shares these keys.
    #[inline(always)]
    fn meet<S: Simd<T>, const COLS: usize>(
        &mut self,
        simd: S,
        [first_row, head]: [usize; 2],
        [i, j]: [usize; 2],
    ) {
        let problem = self.problem;
        let Sizes { queries, dim, v_dim, .. } = problem.sizes;
        let width = COLS * S::LANE_COUNT;
        let count = BLOCK.min(queries - i);
        let key_count = BLOCK.min(problem.visible(i + count - 1).saturating_sub(j));
        if key_count == 0 {
            return;
        }
        let heads = heads_of(&problem.sizes, first_row + head);
        let Scratch { k, v, dk, dv, k_rows, p, ds, kept, ds_rows, dq, delta, q, dy, .. } =
            &mut self.scratch;
        let scale = T::from_f64(problem.scale());
        let q = scaled(problem.q.at(heads.b, heads.h), i, [count, dim], scale, q);
        let dy = block(self.dy.at(heads.b, heads.h), i, [count, v_dim], dy);
        let own = head * queries + i;
        let (lse, delta) = (&self.lse[own..][..count], &delta[own..][..count]);
        let (q_rows, dy_rows) = (q, dy);
        for panel in 0..key_count.div_ceil(width) {
            let first = j + panel * width;
            // Causality may hide these keys from the first queries.
            let hidden = (0..count).take_while(|row| problem.visible(i + row) <= first).count();
            let (i, count) = (i + hidden, count - hidden);
            let (q, dy) = (q_rows.rows_from(hidden), dy_rows.rows_from(hidden));
            let (lse, delta) = (&lse[hidden..], &delta[hidden..]);
            let [p, ds, kept] = [&mut *p, &mut *ds, &mut *kept].map(|x| &mut x[..count * width]);
            let (unseen, ds_rows) = ds_rows.split_at_mut(hidden * BLOCK);
            for unseen in unseen.chunks_exact_mut(BLOCK) {
                unseen[panel * width..][..width].fill(T::ZERO);
            }
            let lanes = width.min(key_count - panel * width);
            let part = |x: usize| panel * x * width..(panel + 1) * x * width;
            let (over, add) = (WriteMode::Overwrite, WriteMode::Accumulate);
            let (size, b) = ([count, dim], &k[part(dim)]);
            simd.call(PanelProduct { size, a: q, b, start: over, c: p, c_stride: width });
            let (size, b) = ([count, v_dim], &v[part(v_dim)]);
            simd.call(PanelProduct { size, a: dy, b, start: over, c: ds, c_stride: width });
            problem.add_mask(heads, Rows::Queries, [i, first], width, p);
            for (row, p) in p.chunks_exact_mut(width).enumerate() {
                let visible = problem.visible(i + row).saturating_sub(first).min(lanes);
                p[visible..].fill(T::NEG_INFINITY);
                // A query that sees no key has weights of 0, not 1.
                let shift = if lse[row] == T::NEG_INFINITY { T::INFINITY } else { lse[row] };
                for p in p {
                    *p = exp_fast::<T, S>(*p - shift);
                }
            }
            let is_dropped = problem.options.dropout.is_some();
            if is_dropped {
                kept.fill(T::ONE);
                problem.multiply_dropout(heads, Rows::Queries, [i, first], width, kept);
                ds.iter_mut().zip(&*kept).for_each(|(ds, &kept)| *ds *= kept);
            }
            for (row, (ds, p)) in ds.chunks_exact_mut(width).zip(p.chunks_exact(width)).enumerate()
            {
                let delta = delta[row];
                for (ds, &p) in ds.iter_mut().zip(p) {
                    *ds = p * (*ds - delta);
                }
                ds_rows[row * BLOCK + panel * width..][..width].copy_from_slice(ds);
            }
            if is_dropped {
                p.iter_mut().zip(&*kept).for_each(|(p, &kept)| *p *= kept);
            }
            let (size, a, c) = ([v_dim, count], dy.transposed(), &mut dv[part(v_dim)]);
            simd.call(PanelProduct { size, a, b: p, start: add, c, c_stride: width });
            let (size, a, c) = ([dim, count], q.transposed(), &mut dk[part(dim)]);
            simd.call(PanelProduct { size, a, b: ds, start: add, c, c_stride: width });
        }
        let ds = Matrix { data: ds_rows, row_stride: BLOCK, col_stride: 1 };
        for (panel, col) in (0..dim).step_by(width).enumerate() {
            let b = &k_rows[panel * BLOCK * width..][..key_count * width];
            let c = &mut dq[own * padded(dim) + col..];
            let (size, start) = ([count, key_count], WriteMode::Accumulate);
            simd.call(PanelProduct { size, a: ds, b, start, c, c_stride: padded(dim) });
        }
    }
}

/// Σ a·b, summed in the lanes of a few vectors.
#[inline(always)]
fn dot<E: Element, T: SimdFloat>(a: &[E], b: &[E]) -> T {
    const LANE_COUNT: usize = 16;
    let (mut sums, mut total) = ([T::ZERO; LANE_COUNT], T::ZERO);
    let (a, a_rest) = a.as_chunks::<LANE_COUNT>();
    let (b, b_rest) = b.as_chunks::<LANE_COUNT>();
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANE_COUNT {
            sums[lane] += a[lane].cast::<T>() * b[lane].cast();
        }
    }
    for (a, b) in a_rest.iter().zip(b_rest) {
        total += a.cast::<T>() * b.cast();
    }
    sums.into_iter().fold(total, |total, sum| total + sum)
}
