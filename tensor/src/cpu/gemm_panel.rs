//! Panels of matrix products: what one task multiplies.
//!
//! The innermost loop keeps a tile of y in registers and reads a *sliver* of each operand: as many
//! rows of a, or columns of b, as the tile has. Slivers of b are packed, in the order in which they
//! are read, and then meet every row of the panel while they lie in the first-level cache. Slivers
//! of a are read in place if the elements of a row lie side by side, and else packed too (K. Goto
//! and R. van de Geijn, *Anatomy of High-Performance Matrix Multiplication*, ACM TOMS 34(3), 2008).
//!
//! What is packed lies on the stack of the thread, some 340 KB of it: no memory is taken.

#![allow(unsafe_code, reason = "tasks share y, and the stack is used as it is found")]

use std::mem::MaybeUninit;
use std::ops::Range;

use super::gemm::{Matrix, Products};
use super::math::SimdFloat;
use super::packing::{pack_rows, pack_sliver};
use super::panel::add_product;
use super::simd::{LANE_COUNT_MAX, Simd, SimdKernel};
use crate::dtype::Element;
use crate::write_mode::WriteMode;

/// Depth that is packed at once: a sliver of b then takes 36 KB at most of a first-level cache.
const DEPTH: usize = 192;

/// Room for the slivers of a panel that packs all of its a: half of a second-level cache.
const BLOCK_BYTES: usize = 300 << 10;

/// Room for a sliver of b.
const SLIVER_BYTES: usize = 37 << 10;

/// Rows of a panel, at most: whole tiles of every height.
const fn panel_rows<T>() -> usize {
    BLOCK_BYTES / (DEPTH * size_of::<T>()) / 48 * 48
}

/// Multiplications that are worth a panel of their own.
const PANEL_PRODUCT: usize = 1 << 18;

/// Rows that a tile may have.
const TILE_ROWS: [usize; 5] = [1, 2, 4, 6, TILE_ROWS_MAX];
const TILE_ROWS_MAX: usize = 8;
const TILE_COLS_MAX: usize = 3 * LANE_COUNT_MAX;

/// Addresses this far apart share a set of the first-level cache of x86-64 processors.
const CACHE_PERIOD_BYTES: usize = 4096;

/// Rows and vectors of a whole tile. Its sums, a vector of b for each column and a factor fit the
/// registers.
const fn tile_size<T, S: Simd<T>>() -> [usize; 2] {
    if S::REGISTER_COUNT == 32 { [TILE_ROWS_MAX, 3] } else { [6, 2] }
}

/// Rows and columns of a whole tile, for those who have no instruction set at hand.
struct TileSize<'a>(&'a mut [usize; 2]);

impl<T> SimdKernel<T> for TileSize<'_> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, _: S) {
        let [rows, vectors] = tile_size::<T, S>();
        *self.0 = [rows, vectors * S::LANE_COUNT];
    }
}

/// How a product `[M, N]` is cut in panels and these in tiles. No element's sum depends on it: each
/// is taken over the whole depth in its order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    size: [usize; 2],
    /// Rows and columns of a tile; those at the end may be smaller.
    tile: [usize; 2],
    /// Tiles below each other, and side by side.
    tiles: [usize; 2],
    /// Panels below each other, and side by side.
    panels: [usize; 2],
}

impl Grid {
    /// For one of `count` products of `[M, K, N]`, none of them 0, on so many threads.
    pub(super) fn new<T: SimdFloat>([m, k, n]: [usize; 3], count: usize, threads: usize) -> Self {
        let mut grid = Self::single::<T>([m, n]);
        let product = count.saturating_mul(m * n).saturating_mul(k);
        let panels_wanted = threads.min(product / PANEL_PRODUCT);
        grid.panels[0] = m.div_ceil(panel_rows::<T>());
        if grid.panels[0] > 1 && count == 1 {
            // So that all threads end at the same time.
            grid.panels[0] = grid.panels[0].next_multiple_of(threads).min(grid.tiles[0]);
        }
        while count * grid.panel_count() < panels_wanted {
            // Each panel packs what it meets, so the longer side is cut.
            let [rows, cols] = [m / grid.panels[0], n / grid.panels[1]];
            let axis = if rows > cols { 0 } else { 1 };
            if 2 * grid.panels[axis] > grid.tiles[axis] {
                break;
            }
            grid.panels[axis] *= 2;
        }
        grid
    }

    /// One panel, of at most [`panel_rows`].
    pub(super) fn single<T: SimdFloat>([m, n]: [usize; 2]) -> Self {
        let mut tile = [0; 2];
        T::dispatch(TileSize(&mut tile));
        // As equal as can be: of nine rows two tiles of six, not one of eight and one of a row.
        let rows = m.div_ceil(m.div_ceil(tile[0]));
        tile[0] = TILE_ROWS.into_iter().find(|&whole| whole >= rows).unwrap_or(rows);
        let tiles = [m.div_ceil(tile[0]), n.div_ceil(tile[1])];
        Grid { size: [m, n], tile, tiles, panels: [1, 1] }
    }

    pub(super) fn panel_count(&self) -> usize {
        self.panels[0] * self.panels[1]
    }

    /// Rows and columns of panel `index`: whole tiles, and as many as in any other but for one.
    fn panel(&self, index: usize) -> [Range<usize>; 2] {
        let at = [index / self.panels[1], index % self.panels[1]];
        [0, 1].map(|axis| {
            let edge = |at: usize| {
                let tiles = at * self.tiles[axis] / self.panels[axis];
                (tiles * self.tile[axis]).min(self.size[axis])
            };
            edge(at[axis])..edge(at[axis] + 1)
        })
    }
}

/// Whether rows of a are read where they lie. If they start in the same set of the cache, those of
/// a tile would drive each other out.
fn is_in_place<T>(a: Matrix<'_, T>) -> bool {
    a.col_stride == 1 && !(a.row_stride * size_of::<T>()).is_multiple_of(CACHE_PERIOD_BYTES)
}

/// The panels `range` of all products of a batch, on the caller: they are inside y, and no other
/// task has them.
pub(super) struct Panels<'a, T> {
    pub(super) products: &'a Products<'a, T>,
    pub(super) grid: Grid,
    pub(super) range: Range<usize>,
}

impl<T: SimdFloat> SimdKernel<T> for Panels<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, simd: S) {
        let mut scratch = Scratch::new();
        for index in self.range {
            let panels = self.grid.panel_count();
            let panel = Panel {
                products: self.products,
                offsets: self.products.batch.offsets(index / panels),
                grid: &self.grid,
                range: self.grid.panel(index % panels),
            };
            match self.grid.tile[0] {
                1 => panel.run::<S, 1>(simd, &mut scratch),
                2 => panel.run::<S, 2>(simd, &mut scratch),
                4 => panel.run::<S, 4>(simd, &mut scratch),
                6 => panel.run::<S, 6>(simd, &mut scratch),
                TILE_ROWS_MAX if tile_size::<T, S>()[0] == TILE_ROWS_MAX => {
                    panel.run::<S, TILE_ROWS_MAX>(simd, &mut scratch);
                }
                rows => unreachable!("tiles of {rows} rows"),
            }
        }
    }
}

/// Room on the stack, from the start of a cache line on: vectors do not straddle lines then.
#[repr(C, align(64))]
struct Scratch {
    sliver: MaybeUninit<[u8; SLIVER_BYTES]>,
    block: MaybeUninit<[u8; BLOCK_BYTES]>,
}

impl Scratch {
    fn new() -> Self {
        Scratch { sliver: MaybeUninit::uninit(), block: MaybeUninit::uninit() }
    }

    /// Elements for slivers of a and for one of b, and a vector after each, all 0.
    fn zeroed<T: SimdFloat>(&mut self, lens: [usize; 2]) -> [&mut [T]; 2] {
        let [block, sliver] = lens.map(|len| len + LANE_COUNT_MAX);
        [prefix(&mut self.block, block), prefix(&mut self.sliver, sliver)]
    }
}

/// The first `len` elements, made 0.
pub(super) fn prefix<T: Element, const BYTES: usize>(
    room: &mut MaybeUninit<[u8; BYTES]>,
    len: usize,
) -> &mut [T] {
    assert!(len * size_of::<T>() <= BYTES, "{len} elements in {BYTES} bytes");
    let start = room.as_mut_ptr().cast::<T>();
    assert!(start.is_aligned());
    // SAFETY: the elements are inside the room.
    unsafe { start.write_bytes(0, len) };
    // SAFETY: the elements are aligned, inside the room and borrowed with it; all bits 0 are a
    // number.
    unsafe { std::slice::from_raw_parts_mut(start, len) }
}

/// One panel of one product.
struct Panel<'a, T> {
    products: &'a Products<'a, T>,
    /// Where its a, b and y start.
    offsets: [usize; 3],
    grid: &'a Grid,
    /// Rows and columns.
    range: [Range<usize>; 2],
}

/// Where a tile goes.
struct TileTarget<'a, T> {
    at: usize,
    rows: usize,
    cols: usize,
    start: WriteMode,
    /// What is added to each of its columns, unless there is none.
    bias: &'a [T],
}

impl<T: SimdFloat> Panel<'_, T> {
    /// In tiles of `R` rows.
    #[inline(always)]
    fn run<S: Simd<T>, const R: usize>(&self, simd: S, scratch: &mut Scratch) {
        let Products { size: [_, k, _], a, b, bias, ref y, .. } = *self.products;
        let [rows, cols] = self.range.clone();
        let [m, n] = [rows.len(), cols.len()];
        let bias = bias.get(cols.clone()).unwrap_or_default();
        let a = a.skip(self.offsets[0]).from(rows.start, 0);
        let b = b.skip(self.offsets[1]).from(0, cols.start);
        let y_at = y.at(self.offsets[2], rows.start, cols.start);
        let tile_cols = self.grid.tile[1];
        // The last rows may be fewer than a tile's, which would read past their end.
        let packed_from = if is_in_place(a) { m - m % R } else { 0 };
        let packed_rows = (m - packed_from).next_multiple_of(R);
        let depth_max = DEPTH.min(k);
        let [block, sliver] = scratch.zeroed([packed_rows * depth_max, tile_cols * depth_max]);
        for p in (0..k).step_by(DEPTH) {
            let depth = DEPTH.min(k - p);
            let start = if p == 0 { self.products.start } else { WriteMode::Accumulate };
            if packed_from < m {
                pack_rows::<T, S, R>(simd, a.from(packed_from, p), [m - packed_from, depth], block);
            }
            for j in (0..n).step_by(tile_cols) {
                let cols = tile_cols.min(n - j);
                let width = cols.next_multiple_of(S::LANE_COUNT);
                let bias = bias.get(j..j + cols).unwrap_or_default();
                pack_sliver(simd, b.from(p, j).transposed(), [n - j, depth], width, sliver);
                for i in (0..m).step_by(R) {
                    let a = if i < packed_from {
                        a.from(i, p)
                    } else {
                        let data = &block[(i - packed_from) * depth..];
                        Matrix { data, row_stride: 1, col_stride: R }
                    };
                    let at = y.at(y_at, i, j);
                    let place = TileTarget { at, rows: R.min(m - i), cols, start, bias };
                    match width / S::LANE_COUNT {
                        1 => self.tile::<S, R, 1>(simd, depth, a, sliver, place),
                        2 => self.tile::<S, R, 2>(simd, depth, a, sliver, place),
                        3 if tile_size::<T, S>()[1] == 3 => {
                            self.tile::<S, R, 3>(simd, depth, a, sliver, place);
                        }
                        vectors => unreachable!("tiles of {vectors} vectors"),
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn tile<S: Simd<T>, const R: usize, const COLS: usize>(
        &self,
        simd: S,
        depth: usize,
        a: Matrix<'_, T>,
        b: &[T],
        place: TileTarget<'_, T>,
    ) {
        let mut sums = [[simd.splat(T::ZERO); COLS]; R];
        add_product(simd, depth, a, b, &mut sums);
        self.store(simd, sums, place);
    }

    /// Writes the sums of a tile to y, or adds them.
    #[inline(always)]
    fn store<S: Simd<T>, const R: usize, const COLS: usize>(
        &self,
        simd: S,
        sums: [[S::Vector; COLS]; R],
        TileTarget { at, rows, cols, start, bias }: TileTarget<'_, T>,
    ) {
        let lanes = S::LANE_COUNT;
        let y = &self.products.y;
        let [row_stride, col_stride] = y.strides;
        if rows == R && cols == COLS * lanes && col_stride == 1 {
            for (r, sums) in sums.iter().enumerate() {
                // SAFETY: the row of the tile is inside y, and no other task has it.
                let y = unsafe { y.row(at + r * row_stride, COLS * lanes) };
                for (col, &sum) in sums.iter().enumerate() {
                    let y = &mut y[col * lanes..];
                    let sum = match (start, bias) {
                        (WriteMode::Accumulate, _) => simd.add(simd.load(y), sum),
                        (WriteMode::Overwrite, []) => sum,
                        (WriteMode::Overwrite, _) => simd.add(simd.load(&bias[col * lanes..]), sum),
                    };
                    simd.store(sum, y);
                }
            }
            return;
        }
        let mut values = [[T::ZERO; TILE_COLS_MAX]; R];
        for (values, sums) in values.iter_mut().zip(&sums) {
            for (values, &sum) in values.chunks_exact_mut(lanes).zip(sums) {
                simd.store(sum, values);
            }
        }
        for (r, values) in values.iter().enumerate().take(rows) {
            for (c, &value) in values.iter().enumerate().take(cols) {
                // SAFETY: the element of the tile is inside y, and no other task has it.
                let y = unsafe { y.element(at + r * row_stride + c * col_stride) };
                *y = match (start, bias) {
                    (WriteMode::Accumulate, _) => *y + value,
                    (WriteMode::Overwrite, []) => value,
                    (WriteMode::Overwrite, _) => bias[c] + value,
                };
            }
        }
    }
}
