//! Reductions along one dimension, in lines of a fixed number of lanes.
//!
//! A contiguous `[outer, len, inner]` is reduced over `len`. If `inner` is 1, a line is a piece of
//! one row, and its lanes are added up at the end. Else the lanes are neighbouring columns, each
//! with a reduction of its own. Both cases read memory in order, and a kernel is written once for
//! both.

use std::ops::Range;

use half::f16;

use super::math::SimdFloat;
use super::simd::{Fused, Simd, SimdKernel};
use crate::dtype::{Element, is_same_type};
use crate::layout::{Nest, Shape};

/// Loads `from` into a line of the computing type, padded with `pad`.
#[inline(always)]
pub(crate) fn load<E: Element, T: Element, const W: usize>(from: &[E], pad: T, to: &mut [T; W]) {
    if is_same_type::<E, T>() {
        let from: &[T] = bytemuck::cast_slice(from);
        // A copy of known length is a few instructions; a copy of unknown length is a call.
        if let Ok(from) = <&[T; W]>::try_from(from) {
            *to = *from;
            return;
        }
        for lane in 0..W {
            to[lane] = if lane < from.len() { from[lane] } else { pad };
        }
        return;
    }
    // A loop of known length becomes a few vectors, except for f16, which is converted only as a
    // slice.
    if let (false, Ok(from)) = (is_same_type::<E, f16>(), <&[E; W]>::try_from(from)) {
        for lane in 0..W {
            to[lane] = from[lane].cast();
        }
        return;
    }
    *to = [pad; W];
    E::cast_slice(from, &mut to[..from.len()]);
}

/// Writes the first lanes of `line` to all of `to`.
#[inline(always)]
pub(crate) fn store<E: Element, T: Element, const W: usize>(line: &[T; W], to: &mut [E]) {
    if is_same_type::<E, T>() {
        let to: &mut [T] = bytemuck::cast_slice_mut(to);
        if let Ok(to) = <&mut [T; W]>::try_from(&mut *to) {
            *to = *line;
            return;
        }
        to.copy_from_slice(&line[..to.len()]);
        return;
    }
    if let (false, Ok(to)) = (is_same_type::<E, f16>(), <&mut [E; W]>::try_from(&mut *to)) {
        for lane in 0..W {
            to[lane] = line[lane].cast();
        }
        return;
    }
    T::cast_slice(&line[..to.len()], to);
}

/// Combines all lanes, in an order that does not depend on the processor.
#[inline(always)]
pub(crate) fn fold<T: Copy, const W: usize>(lanes: &[T; W], combine: impl Fn(T, T) -> T) -> T {
    let mut lanes = *lanes;
    let mut len = W;
    while len > 1 {
        len /= 2;
        for lane in 0..len {
            lanes[lane] = combine(lanes[lane], lanes[lane + len]);
        }
    }
    lanes[0]
}

/// The role of the lanes of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lanes {
    /// Parts of one reduction.
    Row,
    /// Lanes with a reduction each.
    Columns,
}

/// Places of the lines of one reduction, or of one reduction for each lane.
#[derive(Clone, Copy)]
pub(crate) struct Lines {
    pub(crate) lanes: Lanes,
    /// Start of the first line, in elements.
    pub(crate) start: usize,
    count: usize,
    step: usize,
    width: usize,
    last_width: usize,
}

impl Lines {
    /// A row of `len` elements from `start` on.
    #[inline(always)]
    pub(crate) fn row<const W: usize>(start: usize, len: usize) -> Self {
        let count = len.div_ceil(W);
        let last_width = len - count.saturating_sub(1) * W;
        Lines { lanes: Lanes::Row, start, count, step: W, width: W, last_width }
    }

    /// The places of each line.
    #[inline(always)]
    pub(crate) fn places(&self) -> Places {
        Places { lines: *self, index: 0 }
    }

    /// The places of the lines that fill all `W` lanes, which come before the
    /// [others](Self::others). Kernels loop over whole lines and over others separately: a single
    /// loop over lines of any length would keep whole lines in memory, not in registers.
    #[inline(always)]
    pub(crate) fn whole<const W: usize>(&self) -> WholePlaces<W> {
        WholePlaces { start: self.start, step: self.step, count: self.whole_count::<W>() }
    }

    /// The places of the lines that do not fill all `W` lanes.
    #[inline(always)]
    pub(crate) fn others<const W: usize>(&self) -> Places {
        Places { lines: *self, index: self.whole_count::<W>() }
    }

    #[inline(always)]
    fn whole_count<const W: usize>(&self) -> usize {
        match (self.width == W, self.last_width == W) {
            (false, _) => 0,
            (true, true) => self.count,
            (true, false) => self.count.saturating_sub(1),
        }
    }

    /// The number of lanes that have a reduction of their own.
    #[inline(always)]
    pub(crate) fn reductions(&self) -> usize {
        match self.lanes {
            Lanes::Row => 1,
            Lanes::Columns => self.width,
        }
    }

    /// Combines the lanes of a row and gives the result to all lanes. Columns are left as they are.
    #[inline(always)]
    pub(crate) fn fold<T: Copy, const W: usize>(
        &self,
        lanes: &mut [T; W],
        combine: impl Fn(T, T) -> T,
    ) {
        if self.lanes == Lanes::Row {
            *lanes = [fold(lanes, combine); W];
        }
    }
}

/// The places of lines, in order. The type is an iterator, so that the body of a kernel's loop is
/// compiled as part of the kernel. A closure would be a function of its own, compiled for any
/// processor.
pub(crate) struct Places {
    lines: Lines,
    index: usize,
}

impl Iterator for Places {
    type Item = Range<usize>;

    #[inline(always)]
    fn next(&mut self) -> Option<Range<usize>> {
        let Places { lines, index } = self;
        if *index == lines.count {
            return None;
        }
        let start = lines.start + *index * lines.step;
        *index += 1;
        let width = if *index == lines.count { lines.last_width } else { lines.width };
        Some(start..start + width)
    }
}

/// The places of lines of `W` elements, in order.
pub(crate) struct WholePlaces<const W: usize> {
    start: usize,
    step: usize,
    count: usize,
}

impl<const W: usize> Iterator for WholePlaces<W> {
    type Item = Range<usize>;

    #[inline(always)]
    fn next(&mut self) -> Option<Range<usize>> {
        self.count = self.count.checked_sub(1)?;
        let start = self.start;
        self.start += self.step;
        Some(start..start + W)
    }
}

/// A kernel over the lines of the rows or slabs of one task.
pub(crate) trait LinesKernel<T> {
    /// The operand, and the number of its rows or slabs in the task.
    fn extent(&self) -> (Blocks, usize);

    /// Computes one reduction, or one for each lane. Must be `#[inline(always)]`.
    fn lines<F: Fused, const W: usize>(&mut self, lines: &Lines);
}

/// Runs a [`LinesKernel`], in short lines if long lines would be mostly padding.
pub(crate) struct AllLines<K>(pub(crate) K);

impl<T: SimdFloat, K: LinesKernel<T>> SimdKernel<T> for AllLines<K> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(mut self, _: S) {
        match self.0.extent().0.is_narrow() {
            true => each_lines::<T, K, S, 16>(&mut self.0),
            false => each_lines::<T, K, S, 64>(&mut self.0),
        }
    }
}

#[inline(always)]
fn each_lines<T, K: LinesKernel<T>, F: Fused, const W: usize>(kernel: &mut K) {
    let (blocks, outer) = kernel.extent();
    for index in 0..blocks.lines_count::<W>(outer) {
        kernel.lines::<F, W>(&blocks.lines::<W>(index));
    }
}

/// A contiguous operand as `[outer, len, inner]`, reduced over `len`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocks {
    pub(crate) outer: usize,
    pub(crate) len: usize,
    pub(crate) inner: usize,
}

/// Elements of a task: large enough to hide the fork, small enough for the L2 cache.
const CHUNK_LEN: usize = 1 << 14;

impl Blocks {
    /// The blocks along `axis`; a tensor without dimensions counts as one dimension of length 1.
    pub(crate) fn of(shape: &Shape, axis: usize) -> Self {
        let outer = shape[..axis.min(shape.len())].iter().product();
        let inner = shape.get(axis + 1..).unwrap_or_default().iter().product();
        Blocks { outer, len: shape.get(axis).copied().unwrap_or(1), inner }
    }

    pub(crate) fn element_count(&self) -> usize {
        self.outer * self.len * self.inner
    }

    /// The number of rows or slabs, out of `outer`, that one task takes: a function of the shape
    /// alone.
    pub(crate) fn outer_per_task(&self) -> usize {
        (CHUNK_LEN / (self.len * self.inner).max(1)).max(1)
    }

    /// True if 16 lanes hold a row, or all columns. Longer lines would be mostly padding.
    fn is_narrow(&self) -> bool {
        (if self.inner == 1 { self.len } else { self.inner }) <= 16
    }

    /// The number of [`Lines`] that hold all reductions of `outer` rows or slabs.
    #[inline(always)]
    fn lines_count<const W: usize>(&self, outer: usize) -> usize {
        if self.inner == 1 { outer } else { outer * self.inner.div_ceil(W) }
    }

    /// The `index`-th group of lines.
    #[inline(always)]
    fn lines<const W: usize>(&self, index: usize) -> Lines {
        if self.inner == 1 {
            return Lines::row::<W>(index * self.len, self.len);
        }
        let per_slab = self.inner.div_ceil(W);
        let (slab, column) = (index / per_slab, index % per_slab * W);
        let width = W.min(self.inner - column);
        let start = slab * self.len * self.inner + column;
        let (count, step) = (self.len, self.inner);
        Lines { lanes: Lanes::Columns, start, count, step, width, last_width: width }
    }
}

/// `N` sums over the lines of a row: lanes add up 16 lines and are then carried to sums in f64, so
/// that the error does not grow with the row.
pub(crate) struct Sums<T, const N: usize, const W: usize> {
    totals: [f64; N],
    lanes: [[T; W]; N],
    lines: usize,
}

impl<T: SimdFloat, const N: usize, const W: usize> Sums<T, N, W> {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Sums { totals: [0.0; N], lanes: [[T::ZERO; W]; N], lines: 0 }
    }

    /// The lanes that the terms of the next line are added to.
    #[inline(always)]
    pub(crate) fn next_line(&mut self) -> &mut [[T; W]; N] {
        if self.lines == 16 {
            self.carry();
        }
        self.lines += 1;
        &mut self.lanes
    }

    #[inline(always)]
    fn carry(&mut self) {
        for k in 0..N {
            self.totals[k] += fold(&self.lanes[k], |a, b| a + b).to_f64();
        }
        self.lanes = [[T::ZERO; W]; N];
        self.lines = 0;
    }

    #[inline(always)]
    pub(crate) fn totals(mut self) -> [f64; N] {
        self.carry();
        self.totals
    }
}

/// Calls `visit(starts)` for the rows along `axis` of `N` operands of one shape, whatever their
/// strides, in row-major order of the other dimensions.
pub(crate) fn each_strided_row<const N: usize>(
    layouts: [&crate::layout::Layout; N],
    axis: usize,
    mut visit: impl FnMut([usize; N]),
) {
    let kept = layouts.map(|layout| layout.select(axis, 0));
    let shape = *kept[0].shape();
    let nest = Nest::new(&shape, kept.each_ref().map(|layout| layout.strides()));
    let steps = nest.inner_strides();
    nest.rows(0, shape.element_count(), |row| {
        for at in 0..row.len {
            visit(std::array::from_fn(|k| row.starts[k] + at * steps[k]));
        }
    });
}
