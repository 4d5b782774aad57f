//! Arithmetic on layouts.

use std::ops::Range;

use crate::layout::{Layout, Nest, Shape};

/// The range from the first element to one past the last.
pub fn span(layout: &Layout) -> Range<usize> {
    layout.span()
}

/// True if two indices may lead to one element.
pub fn repeats_elements(layout: &Layout) -> bool {
    layout.repeats_elements()
}

/// The dimensions from the largest stride to the smallest.
pub fn axes_by_stride(layout: &Layout) -> Vec<usize> {
    layout.axes_by_stride()[..layout.shape().len()].to_vec()
}

/// A layout of any strides.
pub fn with_strides(shape: Shape, strides: &[usize]) -> Layout {
    Layout::with_strides(shape, strides)
}

/// `len` positions along `axis` from `start` on.
pub fn narrow(layout: &Layout, axis: usize, start: usize, len: usize) -> Layout {
    layout.narrow(axis, start, len)
}

/// Dimensions in another order.
pub fn permute(layout: &Layout, axes: &[usize]) -> Layout {
    layout.permute(axes)
}

/// One position along `axis`, which goes.
pub fn select(layout: &Layout, axis: usize, index: usize) -> Layout {
    layout.select(axis, index)
}

/// The layout with a new dimension of length 1 at `axis`.
pub fn unsqueeze(layout: &Layout, axis: usize) -> Layout {
    layout.unsqueeze(axis)
}

/// The rows of a walk over some elements of a layout.
#[derive(Debug)]
pub struct NestRows {
    /// The stride inside each row.
    pub inner_stride: usize,
    /// The start and the length of each row.
    pub rows: Vec<(usize, usize)>,
}

/// The rows that cover the elements `range` in row-major order.
pub fn nest_rows(layout: &Layout, range: Range<usize>) -> NestRows {
    let nest = Nest::new(layout.shape(), [layout.strides()]);
    let mut rows = Vec::new();
    nest.rows(range.start, range.end, |row| rows.push((row.starts[0], row.len)));
    NestRows { inner_stride: nest.inner_strides()[0], rows }
}
