//! Panels of matrix products. A task multiplies whole panels.
//!
//! The innermost loop keeps a tile of y in registers. The loop reads a *sliver* of each operand:
//! the rows of a, or the columns of b, that belong to the tile. Slivers of b are packed in the
//! order of reading, and then multiplied with every row of the panel while they lie in the
//! first-level cache. Slivers of a are read in place if the elements of a row lie side by side, and
//! else packed too (K. Goto and R. van de Geijn, *Anatomy of High-Performance Matrix
//! Multiplication*, ACM TOMS 34(3), 2008). Packing converts half types or joins them in pairs, but
//! contiguous rows of bf16 are pairs already. If y is of a half type, the sums of a panel stay in
//! the computing type until they are complete.
//!
//! Packed slivers and sums lie on the stack of the thread, about 490 KB. Nothing is allocated.

#![allow(unsafe_code, reason = "tasks share y")]

use std::ops::Range;

use super::gemm::{Destination, Matrix, Products};
use super::math::SimdFloat;
use super::packing::{PackedRows, pack_rows, pack_stored_sliver, tile_len};
use super::pairs::{pack_pair_rows, pack_pair_sliver};
use super::panel::add_product;
use super::scratch::{SCRATCH_BYTES, Scratch, with_scratch};
use super::simd::{LANE_COUNT_MAX, Simd, SimdKernel};
use super::stored::{KeptSums, Results, RoundSums, StartSums};
use crate::write_mode::WriteMode;

/// Largest depth that is packed at once. A sliver of b then takes at most 36 KB of a first-level
/// cache.
const DEPTH: usize = 192;

/// Bytes for the slivers of a panel that packs all of its a: half of a second-level cache.
const BLOCK_BYTES: usize = 300 << 10;

/// Bytes for a sliver of b.
const SLIVER_BYTES: usize = 37 << 10;

/// Bytes for the sums of a panel whose y is of a half type.
const SUMS_BYTES: usize = 147 << 10;

const _: () = assert!(BLOCK_BYTES + SLIVER_BYTES + SUMS_BYTES <= SCRATCH_BYTES);

/// Largest number of rows in a panel: a multiple of every height of a tile.
const fn panel_rows<T>() -> usize {
    BLOCK_BYTES / (DEPTH * size_of::<T>()) / 48 * 48
}

/// Largest number of rows in a panel, of any type.
pub(super) const ROWS_MAX: usize = panel_rows::<f32>();

/// Number of multiplications that is worth a panel of its own.
const PANEL_PRODUCT: usize = 1 << 18;

/// Numbers of rows that a tile may have.
const TILE_ROWS: [usize; 5] = [1, 2, 4, 6, TILE_ROWS_MAX];
const TILE_ROWS_MAX: usize = 8;
const TILE_COLS_MAX: usize = 3 * LANE_COUNT_MAX;

/// Rows and vectors of a whole tile. The registers hold the sums of the tile, a vector of b for
/// each column, and a factor.
const fn tile_size<T, S: Simd<T>>() -> [usize; 2] {
    if S::REGISTER_COUNT == 32 { [TILE_ROWS_MAX, 3] } else { [6, 2] }
}

/// The kernel that finds the rows and columns of a whole tile, for code that is not generic over
/// the instruction set.
struct TileSize<'a>(&'a mut [usize; 2]);

impl<T> SimdKernel<T> for TileSize<'_> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, _: S) {
        let [rows, vectors] = tile_size::<T, S>();
        *self.0 = [rows, vectors * S::LANE_COUNT];
    }
}

/// The cut of a product `[M, N]` into panels, and of panels into tiles. No sum depends on the cut:
/// each runs over the whole depth in order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    size: [usize; 2],
    /// Rows and columns of a tile; tiles at the end may be smaller.
    tile: [usize; 2],
    /// Number of tiles along the rows and along the columns of the product.
    tiles: [usize; 2],
    /// Number of panels along the rows and along the columns of the product.
    panels: [usize; 2],
}

impl Grid {
    /// The grid for one of the products, on `threads` threads. No size of the product is 0.
    pub(super) fn new<T: SimdFloat>(products: &Products<'_, T>, threads: usize) -> Self {
        let ([m, _, n], count) = (products.size, products.batch.len());
        let k = products.steps();
        let mut grid = Self::single::<T>([m, n]);
        let product = count.saturating_mul(m * n).saturating_mul(k);
        let panels_wanted = threads.min(product / PANEL_PRODUCT);
        grid.panels[0] = m.div_ceil(panel_rows::<T>());
        if grid.panels[0] > 1 && count == 1 {
            // All threads then end at the same time.
            grid.panels[0] = grid.panels[0].next_multiple_of(threads).min(grid.tiles[0]);
        }
        if products.y.is_rounded() && k > DEPTH {
            let tiles = SUMS_BYTES / (grid.panel_size()[0] * grid.tile[1] * size_of::<T>());
            grid.panels[1] = grid.tiles[1].div_ceil(tiles);
        }
        while count * grid.panel_count() < panels_wanted {
            // Each panel packs its own operands, so the longer side is cut.
            let [rows, cols] = [m / grid.panels[0], n / grid.panels[1]];
            let axis = if rows > cols { 0 } else { 1 };
            if 2 * grid.panels[axis] > grid.tiles[axis] {
                break;
            }
            grid.panels[axis] *= 2;
        }
        grid
    }

    /// A grid of one panel of any height.
    fn single<T: SimdFloat>([m, n]: [usize; 2]) -> Self {
        let mut tile = [0; 2];
        T::dispatch(TileSize(&mut tile));
        // Tiles are as equal as possible: nine rows make two tiles of up to six rows, not one tile
        // of eight rows and one of a single row.
        let rows = m.div_ceil(m.div_ceil(tile[0]));
        tile[0] = TILE_ROWS.into_iter().find(|&whole| whole >= rows).unwrap_or(rows);
        let tiles = [m.div_ceil(tile[0]), n.div_ceil(tile[1])];
        Grid { size: [m, n], tile, tiles, panels: [1, 1] }
    }

    pub(super) fn panel_count(&self) -> usize {
        self.panels[0] * self.panels[1]
    }

    /// Largest number of rows and of columns in a panel.
    fn panel_size(&self) -> [usize; 2] {
        [0, 1].map(|axis| self.tiles[axis].div_ceil(self.panels[axis]) * self.tile[axis])
    }

    /// Rows and columns of panel `index`. A panel consists of whole tiles, and panels differ by at
    /// most one tile in each direction.
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

/// Multiplies the panels `range` of all products of a batch on the calling thread. The panels are
/// inside y, and no other task has them.
pub(super) fn run_panels<T: SimdFloat>(
    products: &Products<'_, T>,
    grid: &Grid,
    range: Range<usize>,
) {
    let lens = scratch_lens(products, grid, grid.panel_size());
    with_scratch::<T, _>(lens, |scratch| {
        let panels = Panels { products, grid, range, scratch };
        if products.are_pairs { T::dispatch_pairs(panels) } else { T::dispatch(panels) }
    });
}

/// Lengths of the scratch of a panel of this size: packed rows of a, a sliver of b, and the sums of
/// half types.
fn scratch_lens<T: SimdFloat>(
    products: &Products<'_, T>,
    grid: &Grid,
    [m, n]: [usize; 2],
) -> [usize; 3] {
    let (k, [tile_rows, tile_cols]) = (products.steps(), grid.tile);
    let depth = DEPTH.min(k);
    // A tile that is not whole is packed even where rows are read in place.
    let packed_rows = if products.rows_in_place().is_some() { tile_rows } else { m };
    let kept_cols = match (products.y.is_rounded(), k <= DEPTH) {
        (false, _) => 0,
        (true, true) => tile_cols,
        (true, false) => n.next_multiple_of(tile_cols),
    };
    let tiles = match goes_by_columns(products, grid) {
        true => k.div_ceil(DEPTH),
        false => packed_rows.div_ceil(tile_rows),
    };
    // Writes to a sliver may run past its end by up to a vector.
    let block = tiles * tile_len(tile_rows, depth) + LANE_COUNT_MAX;
    [block, tile_cols * depth + LANE_COUNT_MAX, m.next_multiple_of(tile_rows) * kept_cols]
}

/// True if panels multiply a sliver of b over its whole depth before the next sliver. With a single
/// tile of rows, no part of b is read twice. If elements along the depth are neighbours, they are
/// read in longer runs. In return, all of a is packed at once.
fn goes_by_columns<T: SimdFloat>(products: &Products<'_, T>, grid: &Grid) -> bool {
    let (k, [depth_stride, _]) = (products.steps(), products.b.strides());
    let packed_len = k.div_ceil(DEPTH) * tile_len(grid.tile[0], DEPTH) + LANE_COUNT_MAX;
    let fits = k > DEPTH && packed_len * size_of::<T>() <= BLOCK_BYTES;
    grid.panel_size()[0] == grid.tile[0] && depth_stride == 1 && fits
}

struct Panels<'a, T> {
    products: &'a Products<'a, T>,
    grid: &'a Grid,
    range: Range<usize>,
    scratch: Scratch<'a>,
}

impl<T: SimdFloat> SimdKernel<T> for Panels<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, simd: S) {
        let Panels { products, grid, range, mut scratch } = self;
        for index in range {
            let panels = grid.panel_count();
            let offsets = products.batch.offsets(index / panels);
            let panel = Panel { products, offsets, grid, range: grid.panel(index % panels) };
            match grid.tile[0] {
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

/// One panel of one product.
struct Panel<'a, T> {
    products: &'a Products<'a, T>,
    /// Starts of the product's a, b and y.
    offsets: [usize; 3],
    grid: &'a Grid,
    /// Rows and columns of the panel.
    range: [Range<usize>; 2],
}

/// Rows of a in one range of the depth, in the computing type.
struct Rows<'a, T> {
    /// The first `packed_from` rows, which are read in place; `None` if all rows are packed.
    in_place: Option<Matrix<'a, T>>,
    packed_from: usize,
    packed: &'a [T],
    layout: PackedRows,
    depth: usize,
}

impl<'a, T: Copy> Rows<'a, T> {
    /// The tile of `R` rows from row `i` on.
    fn tile<const R: usize>(&self, i: usize) -> Matrix<'a, T> {
        match self.in_place {
            Some(a) if i < self.packed_from => a.from(i, 0),
            _ => {
                let data = &self.packed[(i - self.packed_from) / R * self.layout.tile_len..];
                let [row_stride, col_stride] = self.layout.strides;
                Matrix { data, row_stride, col_stride }
            }
        }
    }
}

/// The destination of a column of tiles.
struct Target<'a, T> {
    y: &'a Destination<'a, T>,
    at: usize,
    /// Rows and columns of the destination; a tile may have more.
    size: [usize; 2],
    start: WriteMode,
    /// The bias: the start value of each column. Empty without a bias.
    bias: &'a [T],
}

impl<T: SimdFloat> Panel<'_, T> {
    /// Multiplies the panel in tiles of `R` rows.
    #[inline(always)]
    fn run<S: Simd<T>, const R: usize>(&self, simd: S, scratch: &mut Scratch<'_>) {
        let Products { size: [_, numbers, _], are_pairs, a, b, ref y, .. } = *self.products;
        let (k, step_len) = (self.products.steps(), self.products.step_len());
        let [m, n] = self.range.each_ref().map(ExactSizeIterator::len);
        let a = a.skip(self.offsets[0]).from(self.range[0].start, 0);
        let b = b.skip(self.offsets[1]).from(0, self.range[1].start);
        let tile_cols = self.grid.tile[1];
        let in_place = self.products.rows_in_place();
        let in_place =
            in_place.map(|rows| rows.skip(self.offsets[0] / step_len).from(self.range[0].start, 0));
        // The last rows may be fewer than a tile; a whole tile would read past their end.
        let packed_from = if in_place.is_some() { m - m % R } else { 0 };
        let lens = scratch_lens(self.products, self.grid, [m, n]);
        let [block, sliver, sums] = scratch.zeroed(lens);
        let by_columns = goes_by_columns(self.products, self.grid);
        let (depths, slivers) = (k.div_ceil(DEPTH), n.div_ceil(tile_cols));
        for index in 0..depths * slivers {
            let [nth, j] = match by_columns {
                true => [index % depths, index / depths],
                false => [index / slivers, index % slivers],
            };
            let (p, j) = (nth * DEPTH, j * tile_cols);
            let depth = DEPTH.min(k - p);
            let first = p * step_len;
            let len = (depth * step_len).min(numbers - first);
            let at = if by_columns { nth * tile_len(R, DEPTH) } else { 0 };
            let packed = &mut block[at..];
            if j == 0 && packed_from < m {
                let (a, size) = (a.from(packed_from, first), [m - packed_from, len]);
                match are_pairs {
                    true => pack_pair_rows::<T, R>(a, size, packed),
                    false => pack_rows::<T, S, R>(simd, a, size, packed),
                }
            }
            let in_place = in_place.map(|a| a.from(0, p));
            let layout = PackedRows::of::<R>(a.strides(), depth);
            let rows = Rows { in_place, packed_from, packed, layout, depth };
            let size = [m, tile_cols.min(n - j)];
            let width = size[1].next_multiple_of(S::LANE_COUNT);
            let b = b.from(first, j).transposed();
            match are_pairs {
                true => pack_pair_sliver(b, [n - j, len], width, sliver),
                false => pack_stored_sliver(simd, b, [n - j, len], width, sliver),
            }
            let whole = [m.next_multiple_of(R), width];
            let kept_len = whole[0] * tile_cols;
            let kept_at = if by_columns || k <= DEPTH { 0 } else { j / tile_cols * kept_len };
            let mut kept = KeptSums {
                y,
                at: y.at(self.offsets[2], self.range[0].start, self.range[1].start + j),
                first_col: self.range[1].start + j,
                size,
                sums: sums.get_mut(kept_at..kept_at + kept_len).unwrap_or_default(),
                stride: tile_cols,
            };
            let mut start = if p == 0 { self.products.start } else { WriteMode::Accumulate };
            if p == 0 && y.is_rounded() && (start == WriteMode::Accumulate || y.has_bias()) {
                simd.call(StartSums(&mut kept, start));
                start = WriteMode::Accumulate;
            }
            let sums = Destination::row_major(kept.sums, tile_cols);
            let target = match y {
                Results::Computed(y) => {
                    let bias = y.bias.get(kept.first_col..).unwrap_or_default();
                    Target { y, at: kept.at, size, start, bias }
                }
                _ => Target { y: &sums, at: 0, size: whole, start, bias: &[] },
            };
            match width / S::LANE_COUNT {
                1 => tiles::<T, S, R, 1>(simd, m, &rows, sliver, &target),
                2 => tiles::<T, S, R, 2>(simd, m, &rows, sliver, &target),
                3 if tile_size::<T, S>()[1] == 3 => {
                    tiles::<T, S, R, 3>(simd, m, &rows, sliver, &target);
                }
                vectors => unreachable!("tiles of {vectors} vectors"),
            }
            if y.is_rounded() && p + depth == k {
                simd.call(RoundSums(kept));
            }
        }
    }
}

/// Multiplies all tiles of `m` rows with one sliver of b.
#[inline(always)]
fn tiles<T: SimdFloat, S: Simd<T>, const R: usize, const COLS: usize>(
    simd: S,
    m: usize,
    rows: &Rows<'_, T>,
    b: &[T],
    target: &Target<'_, T>,
) {
    for i in (0..m).step_by(R) {
        let mut sums = [[simd.splat(T::ZERO); COLS]; R];
        add_product(simd, rows.depth, rows.tile::<R>(i), b, &mut sums);
        store(simd, sums, target, i);
    }
}

/// Writes the sums of the tile that starts at row `i` to y, or adds them to y.
#[inline(always)]
fn store<T: SimdFloat, S: Simd<T>, const R: usize, const COLS: usize>(
    simd: S,
    sums: [[S::Vector; COLS]; R],
    target: &Target<'_, T>,
    i: usize,
) {
    let Target { y, at, size, start, bias } = *target;
    let (at, rows, cols) = (y.at(at, i, 0), size[0] - i, size[1]);
    let lanes = S::LANE_COUNT;
    let [row_stride, col_stride] = y.strides;
    if rows >= R && cols == COLS * lanes && col_stride == 1 {
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
