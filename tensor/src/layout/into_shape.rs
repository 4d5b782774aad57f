//! Shapes as arguments of operations.

use crate::error::{Result, TensorError};
use crate::layout::shape::Shape;

/// The sizes of a tensor's dimensions as operations take them: an array or a slice of numbers, or a
/// [`Shape`].
pub trait IntoShape {
    /// The shape for the operation `op`.
    ///
    /// # Errors
    /// `Size` for too many dimensions, or for more elements than a `usize` counts.
    fn into_shape(self, op: &'static str) -> Result<Shape>;
}

impl IntoShape for Shape {
    fn into_shape(self, _: &'static str) -> Result<Shape> {
        Ok(self)
    }
}

impl IntoShape for &[usize] {
    fn into_shape(self, op: &'static str) -> Result<Shape> {
        Shape::checked(self).ok_or_else(|| TensorError::Size { op, dims: self.into() })
    }
}

impl<const N: usize> IntoShape for [usize; N] {
    fn into_shape(self, op: &'static str) -> Result<Shape> {
        self.as_slice().into_shape(op)
    }
}
