//! Shapes and strided layouts: pure arithmetic on element counts.

use std::fmt::{Debug, Display};
use std::ops::{Deref, Range};

use crate::axis::Axis;
use crate::error::TensorError;

/// The largest number of dimensions a tensor can have.
pub const RANK_MAX: usize = 8;

/// The sizes of a tensor's dimensions; at most [`RANK_MAX`] of them, no heap.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    dims: [usize; RANK_MAX],
    rank: usize,
}

impl Shape {
    /// The shape with these dimensions.
    ///
    /// # Panics
    /// With more than [`RANK_MAX`] dimensions, or when the element count overflows.
    pub fn new(dims: &[usize]) -> Self {
        assert!(dims.len() <= RANK_MAX, "{} dimensions, at most {RANK_MAX}", dims.len());
        let mut shape = Shape { dims: [0; RANK_MAX], rank: dims.len() };
        shape.dims[..dims.len()].copy_from_slice(dims);
        dims.iter().try_fold(1usize, |len, &dim| len.checked_mul(dim)).expect("too many elements");
        shape
    }

    /// [`Shape::new`], unless there are too many dimensions or elements.
    pub(crate) fn checked(dims: &[usize]) -> Option<Self> {
        dims.iter().try_fold(1usize, |len, &dim| len.checked_mul(dim))?;
        (dims.len() <= RANK_MAX).then(|| Shape::new(dims))
    }

    /// The number of elements.
    pub fn element_count(&self) -> usize {
        self.iter().product()
    }

    /// Strides of the row-major contiguous layout of this shape.
    fn contiguous_strides(&self) -> [usize; RANK_MAX] {
        let mut strides = [0; RANK_MAX];
        let mut step = 1;
        for axis in (0..self.rank).rev() {
            strides[axis] = step;
            step *= self.dims[axis].max(1);
        }
        strides
    }

    /// The shape that both broadcast to (trailing dimensions aligned, 1 stretches), if any.
    pub fn broadcast(&self, other: &Shape) -> Option<Shape> {
        let rank = self.rank.max(other.rank);
        let mut dims = [0; RANK_MAX];
        for (axis, dim) in dims.iter_mut().enumerate().take(rank) {
            let at = |shape: &Shape| {
                (axis + shape.rank).checked_sub(rank).map_or(1, |index| shape.dims[index])
            };
            *dim = match (at(self), at(other)) {
                (left, right) if left == right => left,
                (1, right) => right,
                (left, 1) => left,
                _ => return None,
            };
        }
        // Two stretched shapes can each be small and have a product that is not.
        dims[..rank].iter().try_fold(1usize, |len, &dim| len.checked_mul(dim))?;
        Some(Shape { dims, rank })
    }

    /// This shape without dimension `axis`.
    pub(crate) fn without(&self, axis: usize) -> Shape {
        let mut dims = self.to_vec();
        dims.remove(axis);
        Shape::new(&dims)
    }

    /// This shape with dimension `axis` set to `len`.
    pub(crate) fn with(&self, axis: usize, len: usize) -> Shape {
        let mut shape = *self;
        shape.dims[axis] = len;
        shape
    }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.dims[..self.rank]
    }
}

impl Debug for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Debug::fmt(&**self, f)
    }
}

impl Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Debug::fmt(&**self, f)
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        Shape::new(&dims)
    }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Self {
        Shape::new(dims)
    }
}

/// Where in a storage the elements of a tensor lie: element `[i, j, ..]` is at
/// `offset + i * strides[0] + j * strides[1] + ..`, counted in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    shape: Shape,
    strides: [usize; RANK_MAX],
    offset: usize,
}

impl Layout {
    /// The row-major layout of `shape` from the start of a storage.
    pub fn contiguous(shape: Shape) -> Self {
        Layout { shape, strides: shape.contiguous_strides(), offset: 0 }
    }

    /// The sizes of the dimensions.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Elements between neighbours along each dimension; 0 where a dimension is broadcast.
    pub fn strides(&self) -> &[usize] {
        &self.strides[..self.shape.rank]
    }

    /// The first element's place in the storage.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Whether the elements lie side by side in row-major order.
    pub fn is_contiguous(&self) -> bool {
        let expected = self.shape.contiguous_strides();
        let matches = |axis: usize| self.shape[axis] <= 1 || self.strides[axis] == expected[axis];
        self.shape.element_count() == 0 || (0..self.shape.rank).all(matches)
    }

    /// One past the last element that the layout touches, counted from `offset`.
    pub(crate) fn span_len(&self) -> usize {
        if self.shape.element_count() == 0 {
            return 0;
        }
        let last = |(dim, stride): (&usize, &usize)| (dim - 1) * stride;
        self.shape.iter().zip(self.strides()).map(last).sum::<usize>() + 1
    }

    /// From the first element that the layout touches to one past the last. Layouts whose spans
    /// meet count as overlapping, interleaved ones (the even and the odd columns) too.
    pub(crate) fn span(&self) -> Range<usize> {
        self.offset..self.offset + self.span_len()
    }

    /// Whether two different indices may lead to the same element (a broadcast dimension's do).
    /// Each stride has to step over all that the smaller ones reach; what does not, counts.
    pub(crate) fn repeats_elements(&self) -> bool {
        if self.shape.element_count() == 0 {
            return false;
        }
        let mut reach = 0;
        self.axes_by_stride()[..self.shape.rank].iter().rev().any(|&axis| {
            let (dim, stride) = (self.shape[axis], self.strides[axis]);
            let repeats = dim > 1 && stride <= reach;
            reach += (dim - 1) * stride;
            repeats
        })
    }

    /// The dimensions from the largest stride to the smallest: the order in which walking the
    /// elements goes through memory. Those beyond the rank are last.
    pub(crate) fn axes_by_stride(&self) -> [usize; RANK_MAX] {
        let mut axes = std::array::from_fn(|axis| axis);
        axes[..self.shape.rank].sort_by_key(|&axis| std::cmp::Reverse(self.strides[axis]));
        axes
    }

    /// The same elements in row-major order under another shape, where strides can say that.
    ///
    /// Neighbouring dimensions that step evenly through memory are one block, and each block has
    /// to be the product of some of the new dimensions.
    pub(crate) fn reshape(&self, shape: Shape) -> Option<Layout> {
        let mut layout = Layout { offset: self.offset, ..Layout::contiguous(shape) };
        if self.is_contiguous() {
            return Some(layout);
        }
        let (mut axis, mut to) = (self.shape.rank, shape.rank);
        while axis > 0 {
            axis -= 1;
            let (mut len, stride) = (self.shape[axis], self.strides[axis]);
            let continues = |axis: usize, len: usize| {
                self.shape[axis] == 1 || self.strides[axis] == len * stride
            };
            while axis > 0 && continues(axis - 1, len) {
                axis -= 1;
                len *= self.shape[axis];
            }
            let mut placed = 1;
            while to > 0 && (placed < len || shape[to - 1] == 1) {
                to -= 1;
                layout.strides[to] = placed * stride;
                placed *= shape[to];
            }
            if placed != len {
                return None;
            }
        }
        (to == 0).then_some(layout)
    }

    /// The beginning of each row of a matrix in elements that are so many times smaller, as many as
    /// there are of the larger ones.
    #[cfg(feature = "cuda")]
    pub(crate) fn front_of_rows(&self, times: usize) -> Layout {
        let mut layout = *self;
        layout.strides[0] *= times;
        layout.offset *= times;
        layout
    }

    /// Every `step`-th position along `axis`, from the first on.
    pub(crate) fn step(&self, axis: usize, step: usize) -> Layout {
        let mut layout = *self;
        layout.shape.dims[axis] = self.shape[axis].div_ceil(step);
        // With one position left the stride is never used, and may be beyond the numbers.
        layout.strides[axis] = self.strides[axis].saturating_mul(step);
        layout
    }

    /// The `len` elements from position 0 along `a` and `b` at once, as a last dimension.
    pub(crate) fn diagonal(&self, a: usize, b: usize, len: usize) -> Layout {
        let kept = |axis: &usize| *axis != a && *axis != b;
        let axes: Vec<usize> = (0..self.shape.rank).filter(kept).collect();
        let mut layout = self.permute(&axes);
        let last = axes.len();
        layout.shape.rank = last + 1;
        layout.shape.dims[last] = len;
        layout.strides[last] = self.strides[a] + self.strides[b];
        layout.shape.dims[last + 1..].fill(0);
        layout.strides[last + 1..].fill(0);
        layout
    }

    /// Windows of `len` positions along `axis`, `step` apart, as a last dimension, if the elements
    /// can still be counted. There is room for one window and for one more dimension.
    pub(crate) fn unfold(&self, axis: usize, len: usize, step: usize) -> Option<Layout> {
        let mut layout = *self;
        layout.shape.dims[axis] = (self.shape[axis] - len) / step + 1;
        layout.strides[axis] = self.strides[axis].saturating_mul(step);
        layout.shape.dims[layout.shape.rank] = len;
        layout.strides[layout.shape.rank] = self.strides[axis];
        layout.shape.rank += 1;
        Shape::checked(&layout.shape).map(|_| layout)
    }

    pub(crate) fn transpose(&self, a: usize, b: usize) -> Layout {
        let mut layout = *self;
        layout.shape.dims.swap(a, b);
        layout.strides.swap(a, b);
        layout
    }

    pub(crate) fn permute(&self, axes: &[usize]) -> Layout {
        let mut layout = *self;
        for (to, &from) in axes.iter().enumerate() {
            layout.shape.dims[to] = self.shape.dims[from];
            layout.strides[to] = self.strides[from];
        }
        layout
    }

    pub(crate) fn narrow(&self, axis: usize, start: usize, len: usize) -> Layout {
        let mut layout = *self;
        layout.shape.dims[axis] = len;
        layout.offset += start * self.strides[axis];
        layout
    }

    pub(crate) fn select(&self, axis: usize, index: usize) -> Layout {
        let narrowed = self.narrow(axis, index, 1);
        let mut layout = Layout { shape: self.shape.without(axis), ..narrowed };
        layout.strides.copy_within(axis + 1.., axis);
        layout
    }

    pub(crate) fn unsqueeze(&self, axis: usize) -> Layout {
        let mut dims = self.shape.to_vec();
        dims.insert(axis, 1);
        let mut layout = Layout { shape: Shape::new(&dims), ..*self };
        layout.strides.copy_within(axis..RANK_MAX - 1, axis + 1);
        layout.strides[axis] = 0;
        layout
    }

    /// This layout stretched to `shape` with stride 0 where a dimension of 1 grows.
    pub(crate) fn expand(&self, shape: Shape) -> Option<Layout> {
        if self.shape.broadcast(&shape) != Some(shape) {
            return None;
        }
        let added = shape.rank - self.shape.rank;
        let mut layout = Layout { shape, strides: [0; RANK_MAX], offset: self.offset };
        for axis in 0..self.shape.rank {
            let stretched = self.shape[axis] != shape[axis + added];
            layout.strides[axis + added] = if stretched { 0 } else { self.strides[axis] };
        }
        Some(layout)
    }
}

/// `axis` as an index, if it is one of a tensor of this shape.
pub(crate) fn check_axis(
    op: &'static str,
    shape: &Shape,
    axis: impl Into<Axis>,
) -> Result<usize, TensorError> {
    axis.into().index(op, shape.len())
}

/// `axes` as indices, if each is one of a tensor of this shape and none is named twice.
pub(crate) fn check_axes(
    op: &'static str,
    shape: &Shape,
    axes: &[impl Into<Axis> + Copy],
) -> Result<Vec<usize>, TensorError> {
    let axes = axes.iter().map(|&axis| check_axis(op, shape, axis));
    let axes: Vec<usize> = axes.collect::<Result<_, _>>()?;
    if (1..axes.len()).any(|at| axes[..at].contains(&axes[at])) {
        let right = Shape::from(&axes[..axes.len().min(RANK_MAX)]);
        return Err(TensorError::Shape { op, left: *shape, right });
    }
    Ok(axes)
}

/// `index` itself if it is below `len`.
pub(crate) fn check_index(
    op: &'static str,
    index: usize,
    len: usize,
) -> Result<usize, TensorError> {
    if index < len { Ok(index) } else { Err(TensorError::index(op, index, len)) }
}

/// Visits the elements of `N` layouts of one shape together, row by row, without recursion.
///
/// Dimensions that lie side by side in every layout are merged, so that contiguous operands
/// become a single row.
pub(crate) struct Nest<const N: usize> {
    dims: [usize; RANK_MAX],
    strides: [[usize; RANK_MAX]; N],
    rank: usize,
}

/// A run of elements along the innermost dimension: where each operand starts, and how many.
pub(crate) struct Row<const N: usize> {
    pub(crate) starts: [usize; N],
    pub(crate) len: usize,
}

impl<const N: usize> Nest<N> {
    /// The nest over `shape`; `strides[k]` are those of operand `k`, offsets are the caller's.
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

    /// Whether the elements lie side by side in every operand.
    pub(crate) fn is_contiguous(&self) -> bool {
        self.rank == 1 && (self.dims[0] <= 1 || self.inner_strides() == [1; N])
    }

    /// The length of the outermost dimension, and every operand's stride along it.
    pub(crate) fn outermost(&self) -> (usize, [usize; N]) {
        (self.dims[0], std::array::from_fn(|k| self.strides[k][0]))
    }

    /// How many dimensions are left after merging, at least one.
    #[cfg(feature = "cuda")]
    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    /// The sizes of those dimensions, then ones.
    #[cfg(feature = "cuda")]
    pub(crate) fn dims(&self) -> [usize; RANK_MAX] {
        self.dims
    }

    /// Every operand's strides along those dimensions, then zeros.
    #[cfg(feature = "cuda")]
    pub(crate) fn strides(&self) -> [[usize; RANK_MAX]; N] {
        self.strides
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

/// Where a visit of a [`Nest`]'s rows stands. Apart from [`Nest::rows`], so that the many visitors
/// of the crate share its code.
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

    /// To the next row: the innermost index starts over, and the ones before it count on.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcast_aligns_trailing_dimensions() {
        let of = |a: &[usize], b: &[usize]| Shape::new(a).broadcast(&Shape::new(b));
        assert_eq!(of(&[4, 1, 3], &[2, 1]), Some(Shape::new(&[4, 2, 3])));
        assert_eq!(of(&[], &[5]), Some(Shape::new(&[5])));
        assert_eq!(of(&[0], &[1]), Some(Shape::new(&[0])));
        assert_eq!(of(&[2], &[3]), None);
    }

    #[test]
    fn nest_merges_contiguous_dimensions_and_keeps_order() {
        let shape = Shape::new(&[2, 3, 4]);
        let whole = Layout::contiguous(shape);
        let nest = Nest::new(&shape, [whole.strides()]);
        let mut rows = Vec::new();
        nest.rows(5, 20, |row| rows.push((row.starts[0], row.len)));
        assert_eq!(rows, [(5, 15)]);

        let turned = whole.permute(&[2, 0, 1]);
        let nest = Nest::new(turned.shape(), [turned.strides()]);
        let mut seen = Vec::new();
        nest.rows(0, 24, |row| {
            let step = nest.inner_strides()[0];
            seen.extend((0..row.len).map(|i| row.starts[0] + i * step));
        });
        let expected: Vec<usize> = (0..4).flat_map(|c| (0..6).map(move |ab| ab * 4 + c)).collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn span_is_from_the_first_element_to_the_last() {
        let rows = Layout::contiguous(Shape::new(&[4, 6]));
        assert_eq!(rows.narrow(0, 1, 2).narrow(1, 2, 3).span(), 8..17);
        assert_eq!(rows.narrow(1, 5, 1).span(), 5..24);
        assert!(rows.narrow(1, 3, 0).span().is_empty());
    }

    #[test]
    fn elements_repeat_where_a_stride_steps_into_what_smaller_ones_reach() {
        let of = |dims: &[usize], strides: &[usize]| {
            let mut layout = Layout::contiguous(Shape::new(dims));
            layout.strides[..strides.len()].copy_from_slice(strides);
            layout.repeats_elements()
        };
        assert!(of(&[2, 3], &[0, 1]) && of(&[3, 2], &[1, 2]) && of(&[4, 3], &[2, 1]));
        assert!(!of(&[2, 3], &[3, 1]) && !of(&[3, 2], &[1, 3]) && !of(&[2, 2, 2], &[4, 1, 2]));
        // One element, or none, does not repeat, whatever the stride.
        assert!(!of(&[1, 3], &[0, 1]) && !of(&[0, 3], &[0, 0]) && !of(&[], &[]));
        let turned = Layout::contiguous(Shape::new(&[2, 3, 4])).permute(&[2, 0, 1]);
        assert_eq!(turned.axes_by_stride()[..3], [1, 2, 0]);
    }

    #[test]
    fn select_and_unsqueeze_are_inverse() {
        let layout = Layout::contiguous(Shape::new(&[2, 3, 4]));
        let row = layout.narrow(1, 2, 1);
        assert_eq!(row.select(1, 0).unsqueeze(1).select(1, 0), layout.select(1, 2));
        assert_eq!(layout.select(1, 2).strides(), [12, 1]);
    }
}
