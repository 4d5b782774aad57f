//! Dimensions, counted from the first forwards or from the last backwards.

use crate::error::TensorError;

/// A dimension: 0 is the first, -1 the last. Operations take `impl Into<Axis>`, so that plain
/// numbers of type `usize`, `isize` and `i32` work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// The number of dimensions before this one.
    FromFirst(usize),
    /// The number of dimensions from this one to the last; not 0.
    FromLast(usize),
}

impl From<usize> for Axis {
    fn from(axis: usize) -> Self {
        Axis::FromFirst(axis)
    }
}

impl From<isize> for Axis {
    fn from(axis: isize) -> Self {
        let count = axis.unsigned_abs();
        if axis < 0 { Axis::FromLast(count) } else { Axis::FromFirst(count) }
    }
}

impl From<i32> for Axis {
    fn from(axis: i32) -> Self {
        Axis::from(axis as isize)
    }
}

impl Axis {
    /// The index of this dimension, from 0, in a tensor of `rank` dimensions.
    ///
    /// # Errors
    /// `Index` if the tensor has no such dimension.
    pub fn index(self, op: &'static str, rank: usize) -> Result<usize, TensorError> {
        match self {
            Axis::FromFirst(index) if index < rank => Ok(index),
            Axis::FromLast(count) if (1..=rank).contains(&count) => Ok(rank - count),
            Axis::FromFirst(index) => Err(TensorError::index(op, index, rank)),
            Axis::FromLast(count) => {
                let index = 0isize.saturating_sub_unsigned(count);
                Err(TensorError::Index { op, index, len: rank })
            }
        }
    }
}
