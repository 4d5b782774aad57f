//! Shapes: the sizes of a tensor's dimensions.

use std::fmt::{Debug, Display};
use std::ops::Deref;

/// The largest number of dimensions a tensor can have.
pub const RANK_MAX: usize = 8;

/// The sizes of a tensor's dimensions; at most [`RANK_MAX`] dimensions, without the heap.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    pub(super) dims: [usize; RANK_MAX],
    pub(super) rank: usize,
}

impl Shape {
    /// The shape with these dimensions.
    ///
    /// # Panics
    /// With more than [`RANK_MAX`] dimensions, or when the product of all dimensions that are not 0
    /// overflows. [`IntoShape`](crate::IntoShape) returns an error instead.
    pub fn new(dims: &[usize]) -> Self {
        assert!(dims.len() <= RANK_MAX, "{} dimensions, at most {RANK_MAX}", dims.len());
        Shape::checked(dims).expect("too many elements")
    }

    /// [`Shape::new`], unless there are too many dimensions or elements.
    pub(crate) fn checked(dims: &[usize]) -> Option<Self> {
        check_count(dims)?;
        let mut shape = Shape { dims: [0; RANK_MAX], rank: dims.len() };
        shape.dims.get_mut(..dims.len())?.copy_from_slice(dims);
        Some(shape)
    }

    /// [`Shape::new`] for an error; the shape of a number if there is no such shape.
    pub(crate) fn shown(dims: &[usize]) -> Self {
        Shape::checked(dims).unwrap_or(Shape { dims: [0; RANK_MAX], rank: 0 })
    }

    /// The number of elements.
    pub fn element_count(&self) -> usize {
        self.iter().product()
    }

    /// Strides of the row-major contiguous layout of this shape.
    pub(super) fn contiguous_strides(&self) -> [usize; RANK_MAX] {
        let mut strides = [0; RANK_MAX];
        let mut step = 1;
        for axis in (0..self.rank).rev() {
            strides[axis] = step;
            step *= self.dims[axis].max(1);
        }
        strides
    }

    /// The shape that both broadcast to (trailing dimensions aligned, 1 stretches); `None` if there
    /// is none.
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
        // Two small shapes can broadcast to a shape whose element count overflows.
        check_count(&dims[..rank])?;
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

/// `Some` if a `usize` counts the elements, in whatever order the dimensions are, and after any of
/// them that are 0 are gone.
fn check_count(dims: &[usize]) -> Option<usize> {
    dims.iter().try_fold(1_usize, |len, &dim| len.checked_mul(dim.max(1)))
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
