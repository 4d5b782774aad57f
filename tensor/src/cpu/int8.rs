//! Products of 8-bit integers with exact sums: y`[M, N]` from the codes of x`[M, K]` and w`[N, K]`.
//! Each row of x and of w has a scale.
//!
//! An exact sum does not depend on the instructions that add it up, nor on their order. So a
//! product is cut to suit the number of threads, and has the same bits with any number.

#![allow(unsafe_code, reason = "tasks share y")]

#[cfg(target_arch = "x86_64")]
use std::mem::MaybeUninit;
use std::ops::Range;

use super::chunk::{Chunked, for_each_chunk3};
use super::gemm::{Destination, Matrix, MatrixMut};
#[cfg(target_arch = "x86_64")]
use super::int8_packed::{LANES, Tile, pack, sliver_bytes};
#[cfg(target_arch = "x86_64")]
use super::int8_simd::Vnni;
use super::int8_simd::{Int8Kernel, Int8Simd, STEP_LEN_MAX, dispatch};
use super::math::SimdFloat;
use super::pool::Pool;
use super::simd::{Simd, SimdKernel};
use crate::dtype::Element;

/// Largest depth: the largest number of products whose sum fits an i32. A product is of a code from
/// -127 on and a code from -128 on.
pub(crate) const DEPTH_MAX: usize = i32::MAX as usize / (127 * 128);

/// Elements of x that are converted at once.
const RUN_LEN: usize = 256;
/// Elements of x in a task that quantises them.
const CHUNK_LEN: usize = 1 << 14;

/// Number of columns of y whose sums are computed together.
const WIDTH: usize = 48;
/// Largest number of rows of y that a packed sliver of w is used for.
const ROWS_MAX: usize = 128;
/// Smallest number of rows of y that is worth packing.
#[cfg(target_arch = "x86_64")]
const PACKED_ROWS_MIN: usize = 5;
/// Codes of a row of w that are packed at once: a sliver takes half of a first-level cache.
#[cfg(target_arch = "x86_64")]
const PACKED_DEPTH: usize = 512;
/// Number of multiplications that is worth a task.
const TASK_PRODUCT: usize = 1 << 19;

/// Number of codes from one row of x to the next: an odd number of cache lines, so that rows do not
/// evict each other from a set of the cache.
pub(crate) const fn row_stride(depth: usize) -> usize {
    (depth.div_ceil(STEP_LEN_MAX) | 1) * STEP_LEN_MAX
}

/// Rows of x in 8 bits: M scales, M sums, and M rows of codes, each [`row_stride`] long.
#[derive(Clone, Copy)]
pub(crate) struct QuantizedRows<'a, T> {
    /// Codes of the rows; 0 beyond the depth.
    pub(crate) codes: &'a [i8],
    /// The value of code 1 in each row.
    pub(crate) scales: &'a [T],
    /// The sum of the codes of each row.
    pub(crate) sums: &'a [i32],
}

/// Fills the parts of [`QuantizedRows`], in the order of its fields, from x of size `[M, K]`.
pub(crate) fn quantize<T: SimdFloat, E: Element>(
    pool: &Pool,
    [_, depth]: [usize; 2],
    x: Matrix<'_, E>,
    (codes, scales, sums): (&mut [i8], &mut [T], &mut [i32]),
) {
    let stride = row_stride(depth);
    let rows = (CHUNK_LEN / stride).max(1);
    let codes = Chunked::new(codes, rows * stride);
    let (scales, sums) = (Chunked::new(scales, rows), Chunked::new(sums, rows));
    for_each_chunk3(pool, codes, scales, sums, |index, codes, scales, sums| {
        T::dispatch(Quantize { depth, x: x.rows_from(index * rows), codes, scales, sums });
    });
}

/// The kernel that quantises the rows of one task.
struct Quantize<'a, T, E> {
    depth: usize,
    x: Matrix<'a, E>,
    codes: &'a mut [i8],
    scales: &'a mut [T],
    sums: &'a mut [i32],
}

impl<T: SimdFloat, E: Element> SimdKernel<T> for Quantize<'_, T, E> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, _: S) {
        let Quantize { depth, x, codes, scales, sums } = self;
        let code_max = T::from_f64(127.0);
        let rows = codes.chunks_exact_mut(row_stride(depth)).zip(scales).zip(sums);
        for (i, ((codes, scale), sum)) in rows.enumerate() {
            let x = x.rows_from(i);
            let largest = largest_magnitude::<T, E>(x, depth);
            let (codes, rest) = codes.split_at_mut(depth);
            rest.fill(0);
            if !largest.is_finite() {
                codes.fill(0);
                (*scale, *sum) = (T::from_f64(f64::NAN), 0);
                continue;
            }
            // A row of zeros must not be divided by 0.
            let divisor = if largest > T::ZERO { largest } else { T::ONE };
            let mut run = [T::ZERO; RUN_LEN];
            for (p, codes) in (0..).step_by(RUN_LEN).zip(codes.chunks_mut(RUN_LEN)) {
                x.from(0, p).converted([1, codes.len()], &mut run);
                for (code, &x) in codes.iter_mut().zip(&run) {
                    *code = (x / divisor * code_max).round_even().cast::<f32>() as i8;
                }
            }
            *scale = largest / code_max;
            *sum = codes.iter().map(|&code| i32::from(code)).sum();
        }
    }
}

/// The largest magnitude of a row; NaN if the row has a NaN.
#[inline(always)]
fn largest_magnitude<T: SimdFloat, E: Element>(x: Matrix<'_, E>, depth: usize) -> T {
    const LANES: usize = 16;
    let (mut lanes, mut run) = ([T::ZERO; LANES], [T::ZERO; RUN_LEN]);
    for p in (0..depth).step_by(RUN_LEN) {
        let len = RUN_LEN.min(depth - p);
        x.from(0, p).converted([1, len], &mut run);
        // Numbers beyond the end are left from an earlier run of the same row.
        for x in run[..len.next_multiple_of(LANES)].chunks_exact(LANES) {
            for (lane, x) in lanes.iter_mut().zip(x) {
                *lane = lane.larger(x.magnitude());
            }
        }
    }
    lanes.into_iter().fold(T::ZERO, T::larger)
}

/// A product, computed in T and written in E.
pub(crate) struct Int8Product<'a, T, E> {
    /// M, K and N.
    pub(crate) size: [usize; 3],
    pub(crate) x: QuantizedRows<'a, T>,
    /// The codes of w, row after row.
    pub(crate) w: &'a [i8],
    /// The value of code 127 in each row.
    pub(crate) w_scales: &'a [f32],
    /// The bias: N elements, or none.
    pub(crate) bias: &'a [E],
}

impl<T: SimdFloat, E: Element> Int8Product<'_, T, E> {
    /// Computes the product and overwrites y.
    ///
    /// # Panics
    /// If an operand does not have the size of the product, or K is more than [`DEPTH_MAX`].
    pub(crate) fn run(&self, pool: &Pool, y: MatrixMut<'_, E>) {
        let [m, k, n] = self.size;
        assert!(k <= DEPTH_MAX, "sums of {k} products");
        assert_eq!([self.x.codes.len(), self.w.len()], [m * row_stride(k), n * k]);
        assert_eq!([self.x.scales.len(), self.x.sums.len(), self.w_scales.len()], [m, m, n]);
        assert!(self.bias.is_empty() || self.bias.len() == n, "a bias of {}", self.bias.len());
        assert_eq!((y.data.len(), y.row_stride, y.col_stride), (m * n, n, 1));
        if m * n == 0 {
            return;
        }
        let (y, threads, slivers) = (Destination::new(y, &[]), pool.threads(), n.div_ceil(WIDTH));
        // If there are few columns, threads share the rows.
        let panels = m.div_ceil(ROWS_MAX).max(threads.div_ceil(slivers));
        let rows = m.div_ceil(panels).next_multiple_of(8).min(ROWS_MAX);
        let panels = m.div_ceil(rows);
        // A task first prepares its scratch, so it takes several slivers if there are many.
        let worth = TASK_PRODUCT / (rows.min(m) * k.max(1) * WIDTH);
        let cols = worth.max(slivers * panels / (16 * threads)).clamp(1, slivers) * WIDTH;
        let groups = n.div_ceil(cols);
        pool.run(panels * groups, &|task| {
            let [i, j] = [task % panels * rows, task / panels * cols];
            let (rows, cols) = (i..m.min(i + rows), j..n.min(j + cols));
            dispatch(Part { product: self, y: &y, rows, cols });
        });
    }
}

/// The part of one task: no other task has these rows and columns of y.
struct Part<'a, T, E> {
    product: &'a Int8Product<'a, T, E>,
    y: &'a Destination<'a, E>,
    rows: Range<usize>,
    cols: Range<usize>,
}

impl<T: SimdFloat, E: Element> Int8Kernel for Part<'_, T, E> {
    #[inline(always)]
    fn dots<S: Int8Simd, const ROWS: usize, const COLS: usize>(self, simd: S) {
        let mut sums = [[0; WIDTH]; ROWS];
        for cols in self.slivers() {
            let mut i = self.rows.start;
            while i < self.rows.end {
                if self.rows.end - i >= ROWS {
                    self.dot_rows::<S, ROWS, COLS>(simd, i, cols.clone(), &mut sums);
                    i += ROWS;
                } else {
                    let sums = sums.first_chunk_mut::<1>().expect("a row at least");
                    self.dot_rows::<S, 1, COLS>(simd, i, cols.clone(), sums);
                    i += 1;
                }
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn is_worth_packing(&self) -> bool {
        self.product.size[0] >= PACKED_ROWS_MIN
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn packed(self, simd: Vnni) {
        let Int8Product { size: [_, k, _], w, .. } = *self.product;
        let mut scratch = Scratch::new();
        let sliver_bytes = sliver_bytes(WIDTH / LANES, PACKED_DEPTH.min(k));
        let sliver = prefix::<u8, _>(&mut scratch.sliver, sliver_bytes);
        let sums = prefix::<i32, _>(&mut scratch.sums, self.rows.len() * WIDTH);
        for cols in self.slivers() {
            for p in (0..k).step_by(PACKED_DEPTH) {
                let depth = PACKED_DEPTH.min(k - p);
                pack(simd, &w[cols.start * k + p..], k, [cols.len(), depth], sliver);
                match cols.len().div_ceil(LANES) {
                    1 => self.tiles::<1>(simd, [p, depth], sliver, sums),
                    2 => self.tiles::<2>(simd, [p, depth], sliver, sums),
                    _ => self.tiles::<3>(simd, [p, depth], sliver, sums),
                }
            }
            for (row, sums) in self.rows.clone().zip(sums.chunks_exact(WIDTH)) {
                self.finish(row, cols.clone(), sums);
            }
        }
    }
}

impl<T: SimdFloat, E: Element> Part<'_, T, E> {
    /// The columns of the part, in slivers of [`WIDTH`].
    fn slivers(&self) -> impl Iterator<Item = Range<usize>> + use<T, E> {
        let end = self.cols.end;
        self.cols.clone().step_by(WIDTH).map(move |j| j..end.min(j + WIDTH))
    }

    /// Computes `R` rows of y from row `i` on by dot products.
    #[inline(always)]
    fn dot_rows<S: Int8Simd, const R: usize, const COLS: usize>(
        &self,
        simd: S,
        i: usize,
        cols: Range<usize>,
        sums: &mut [[i32; WIDTH]; R],
    ) {
        let mut j = cols.start;
        while j < cols.end {
            let at = j - cols.start;
            j += if cols.end - j >= COLS {
                self.dot_tile::<S, R, COLS>(simd, [i, j], at, sums)
            } else {
                self.dot_tile::<S, R, 1>(simd, [i, j], at, sums)
            };
        }
        for (row, sums) in (i..).zip(&*sums) {
            self.finish(row, cols.clone(), sums);
        }
    }

    /// Writes the sums of `R` rows and `C` columns to the rows of sums, from place `at` on. Returns
    /// `C`.
    #[inline(always)]
    fn dot_tile<S: Int8Simd, const R: usize, const C: usize>(
        &self,
        simd: S,
        [i, j]: [usize; 2],
        at: usize,
        sums: &mut [[i32; WIDTH]; R],
    ) -> usize {
        let Int8Product { size: [_, k, _], x, w, .. } = *self.product;
        let (stride, len) = (row_stride(k), k.next_multiple_of(S::STEP_LEN));
        let x_rows: [&[i8]; R] = std::array::from_fn(|r| &x.codes[(i + r) * stride..][..len]);
        // The rows of w are read past their ends, where the codes of x are 0.
        let w_rows: [&[i8]; C] = std::array::from_fn(|c| &w[(j + c) * k..]);
        let mut tile = [[simd.zero(); C]; R];
        for p in (0..k).step_by(S::STEP_LEN) {
            let w: [_; C] = std::array::from_fn(|c| simd.some_weights(&w_rows[c][p..]));
            for (x, tile) in x_rows.iter().zip(&mut tile) {
                let x = simd.activations(&x[p..]);
                for (tile, &w) in tile.iter_mut().zip(&w) {
                    *tile = simd.add_products(*tile, w, x);
                }
            }
        }
        for (r, (tile, sums)) in tile.iter().zip(sums).enumerate() {
            let start = x.sums[i + r].wrapping_mul(-S::OFFSET);
            for (sum, &tile) in sums[at..].iter_mut().zip(tile) {
                *sum = simd.total(tile).wrapping_add(start);
            }
        }
        C
    }

    /// Adds the products of a packed sliver of `C` vectors to the sums, or starts the sums with
    /// these products.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn tiles<const C: usize>(
        &self,
        simd: Vnni,
        [p, depth]: [usize; 2],
        sliver: &[u8],
        sums: &mut [i32],
    ) {
        let Int8Product { size: [_, k, _], x, .. } = *self.product;
        let stride = row_stride(k);
        let mut i = self.rows.start;
        while i < self.rows.end {
            let start = (p == 0).then(|| &x.sums[i..]);
            let tile = Tile { depth, x: &x.codes[i * stride + p..], stride, sliver, start };
            let sums = &mut sums[(i - self.rows.start) * WIDTH..];
            i += match self.rows.end - i {
                1 => tile.run::<1, C>(simd, sums, WIDTH),
                2..4 => tile.run::<2, C>(simd, sums, WIDTH),
                4..8 => tile.run::<4, C>(simd, sums, WIDTH),
                _ => tile.run::<8, C>(simd, sums, WIDTH),
            };
        }
    }

    /// Writes these columns of a row of y.
    #[inline(always)]
    fn finish(&self, row: usize, cols: Range<usize>, sums: &[i32]) {
        let Int8Product { size: [_, _, n], x, w_scales, bias, .. } = *self.product;
        // SAFETY: the columns are inside the row, `run` checked the size of y, and no other task
        // has them.
        let y = unsafe { self.y.row(row * n + cols.start, cols.len()) };
        let (x_scale, part) = (x.scales[row], T::ONE / T::from_f64(127.0));
        let mut values = [T::ZERO; WIDTH];
        for ((value, &sum), &scale) in values.iter_mut().zip(sums).zip(&w_scales[cols.clone()]) {
            *value = T::from_i64(sum.into()) * x_scale * (T::from_f32(scale) * part);
        }
        if !bias.is_empty() {
            let mut addends = [T::ZERO; WIDTH];
            E::cast_slice(&bias[cols.clone()], &mut addends[..cols.len()]);
            values.iter_mut().zip(&addends).for_each(|(value, &addend)| *value += addend);
        }
        T::cast_slice(&values[..cols.len()], y);
    }
}

/// Scratch memory on the stack, aligned to a cache line.
#[cfg(target_arch = "x86_64")]
#[repr(C, align(64))]
struct Scratch {
    sliver: MaybeUninit<[u8; sliver_bytes(WIDTH / LANES, PACKED_DEPTH)]>,
    sums: MaybeUninit<[u8; ROWS_MAX * WIDTH * size_of::<i32>()]>,
}

#[cfg(target_arch = "x86_64")]
impl Scratch {
    fn new() -> Self {
        Scratch { sliver: MaybeUninit::uninit(), sums: MaybeUninit::uninit() }
    }
}

/// The first `len` elements of `room`, set to 0.
#[cfg(target_arch = "x86_64")]
fn prefix<T: Element, const BYTES: usize>(
    room: &mut MaybeUninit<[u8; BYTES]>,
    len: usize,
) -> &mut [T] {
    assert!(len * size_of::<T>() <= BYTES, "{len} elements in {BYTES} bytes");
    let start = room.as_mut_ptr().cast::<T>();
    assert!(start.is_aligned());
    // SAFETY: the elements are inside the room.
    unsafe { start.write_bytes(0, len) };
    // SAFETY: the elements are aligned, inside the room and borrowed with it; zero bits are a valid
    // number.
    unsafe { std::slice::from_raw_parts_mut(start, len) }
}
