//! Strided layouts: pure arithmetic on element counts.

#[cfg(feature = "cuda")]
mod cuda;
mod into_shape;
mod nest;
pub(crate) mod shape;

use std::ops::Range;

use crate::axis::Axis;
use crate::error::TensorError;
pub use into_shape::IntoShape;
pub(crate) use nest::Nest;
pub use shape::{RANK_MAX, Shape};

/// The places of a tensor's elements in its storage: element `[i, j, ..]` is at
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

    /// A layout of any strides, from the start of a storage.
    #[cfg(feature = "testing")]
    pub(crate) fn with_strides(shape: Shape, strides: &[usize]) -> Self {
        let mut layout = Layout::contiguous(shape);
        layout.strides[..strides.len()].copy_from_slice(strides);
        layout
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

    /// True if the elements lie side by side in row-major order.
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

    /// The range from the first element that the layout touches to one past the last. Layouts whose
    /// spans meet count as overlapping, even if they interleave (the even and the odd columns).
    pub(crate) fn span(&self) -> Range<usize> {
        self.offset..self.offset + self.span_len()
    }

    /// True if two different indices may lead to the same element, as in a broadcast dimension. The
    /// test is conservative: a stride counts if it does not step over all elements that smaller
    /// strides reach.
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

    /// The dimensions from the largest stride to the smallest, which is their order in memory. Axes
    /// beyond the rank are last.
    pub(crate) fn axes_by_stride(&self) -> [usize; RANK_MAX] {
        let mut axes = std::array::from_fn(|axis| axis);
        axes[..self.shape.rank].sort_by_key(|&axis| std::cmp::Reverse(self.strides[axis]));
        axes
    }

    /// The layout of these elements in row-major order under another shape; `None` if no strides
    /// express it.
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

    /// Every `step`-th position along `axis`, from the first on.
    pub(crate) fn step(&self, axis: usize, step: usize) -> Layout {
        let mut layout = *self;
        layout.shape.dims[axis] = self.shape[axis].div_ceil(step);
        // With one position left the stride is never used, and may overflow.
        layout.strides[axis] = self.strides[axis].saturating_mul(step);
        layout
    }

    /// The diagonal of `a` and `b` as a last dimension: `len` elements from position 0 on.
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

    /// Windows of `len` positions along `axis`, `step` apart, as a last dimension; `None` if the
    /// number of elements overflows. The caller has checked that a window and one more dimension
    /// fit.
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

/// The index of `axis` in a tensor of this shape.
pub(crate) fn check_axis(
    op: &'static str,
    shape: &Shape,
    axis: impl Into<Axis>,
) -> Result<usize, TensorError> {
    axis.into().index(op, shape.len())
}

/// The indices of `axes` in a tensor of this shape. No axis may be named twice.
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
