//! Walks over the elements of several layouts together.

use super::shape::{RANK_MAX, Shape};

/// Visits the elements of `N` layouts of one shape together, row by row, without recursion.
///
/// Dimensions that lie side by side in every layout are merged, so that contiguous operands
/// become a single row.
pub(crate) struct Nest<const N: usize> {
    /// The sizes of the dimensions that are left after merging, then ones.
    pub(super) dims: [usize; RANK_MAX],
    /// Every operand's strides along the dimensions that are left after merging, then zeros.
    pub(super) strides: [[usize; RANK_MAX]; N],
    /// The number of dimensions that are left after merging, at least one.
    pub(super) rank: usize,
}

/// A run of elements along the innermost dimension: the start in each operand, and the length.
pub(crate) struct Row<const N: usize> {
    pub(crate) starts: [usize; N],
    pub(crate) len: usize,
}

impl<const N: usize> Nest<N> {
    /// The nest over `shape`. `strides[k]` are the strides of operand `k`; the caller adds the
    /// offsets.
    pub(crate) fn new(shape: &Shape, strides: [&[usize]; N]) -> Self {
        let mut nest = Nest { dims: [1; RANK_MAX], strides: [[0; RANK_MAX]; N], rank: 0 };
        for axis in (0..shape.len()).filter(|&axis| shape[axis] != 1) {
            let last = nest.rank.wrapping_sub(1);
            let merges = |k: usize| nest.strides[k][last] == strides[k][axis] * shape[axis];
            if nest.rank > 0 && (0..N).all(merges) {
                nest.dims[last] *= shape[axis];
            } else {
                nest.dims[nest.rank] = shape[axis];
                nest.rank += 1;
            }
            for (operand, of) in nest.strides.iter_mut().zip(&strides) {
                operand[nest.rank - 1] = of[axis];
            }
        }
        nest.rank = nest.rank.max(1);
        nest
    }

    /// True if the elements lie side by side in every operand.
    pub(crate) fn is_contiguous(&self) -> bool {
        self.rank == 1 && (self.dims[0] <= 1 || self.inner_strides() == [1; N])
    }

    /// The length of the outermost dimension, and every operand's stride along it.
    pub(crate) fn outermost(&self) -> (usize, [usize; N]) {
        (self.dims[0], std::array::from_fn(|k| self.strides[k][0]))
    }

    /// The strides inside a [`Row`].
    pub(crate) fn inner_strides(&self) -> [usize; N] {
        std::array::from_fn(|k| self.strides[k][self.rank - 1])
    }

    /// Calls `visit` for the rows that cover the elements `from..to` in row-major order.
    pub(crate) fn rows(&self, from: usize, to: usize, mut visit: impl FnMut(Row<N>)) {
        let mut walk = Walk::new(self, from, to);
        while let Some(row) = walk.next_row() {
            visit(row);
        }
    }

    /// Calls `visit(starts, len)` for runs that lie side by side in every operand, in row-major
    /// order: all elements at once where all operands are contiguous, one by one at the worst.
    pub(crate) fn runs(&self, element_count: usize, mut visit: impl FnMut([usize; N], usize)) {
        let strides = self.inner_strides();
        self.rows(0, element_count, |row| {
            if strides == [1; N] {
                return visit(row.starts, row.len);
            }
            (0..row.len)
                .for_each(|i| visit(std::array::from_fn(|k| row.starts[k] + i * strides[k]), 1));
        });
    }
}

/// The state of a visit of a [`Nest`]'s rows. Separate from [`Nest::rows`], so that the many
/// visitors of the crate share its code.
struct Walk<'a, const N: usize> {
    nest: &'a Nest<N>,
    index: [usize; RANK_MAX],
    starts: [usize; N],
    at: usize,
    to: usize,
}

impl<'a, const N: usize> Walk<'a, N> {
    fn new(nest: &'a Nest<N>, from: usize, to: usize) -> Self {
        let mut walk = Walk { nest, index: [0; RANK_MAX], starts: [0; N], at: from, to };
        if from >= to {
            return walk;
        }
        let mut rest = from;
        for axis in (0..nest.rank).rev() {
            walk.index[axis] = rest % nest.dims[axis];
            rest /= nest.dims[axis];
            for (start, strides) in walk.starts.iter_mut().zip(&nest.strides) {
                *start += walk.index[axis] * strides[axis];
            }
        }
        walk
    }

    fn next_row(&mut self) -> Option<Row<N>> {
        if self.at >= self.to {
            return None;
        }
        let last = self.nest.rank - 1;
        let len = (self.nest.dims[last] - self.index[last]).min(self.to - self.at);
        let row = Row { starts: self.starts, len };
        self.at += len;
        if self.at < self.to {
            self.turn(last);
        }
        Some(row)
    }

    /// Goes to the next row: the innermost index starts over, and the indices before it count on.
    fn turn(&mut self, last: usize) {
        let Nest { dims, strides, .. } = self.nest;
        for (start, strides) in self.starts.iter_mut().zip(strides) {
            *start -= self.index[last] * strides[last];
        }
        self.index[last] = 0;
        for axis in (0..last).rev() {
            self.index[axis] += 1;
            let ended = self.index[axis] == dims[axis];
            for (start, strides) in self.starts.iter_mut().zip(strides) {
                *start += strides[axis];
                if ended {
                    *start -= dims[axis] * strides[axis];
                }
            }
            if !ended {
                break;
            }
            self.index[axis] = 0;
        }
    }
}
