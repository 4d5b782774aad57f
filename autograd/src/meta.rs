//! The shape and element type of a tensor, apart from its values.

use std::fmt;

use lowtide_tensor::{DType, Shape, Tensor, TensorError, TensorResult};

/// The shape and element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMeta {
    /// The dimensions of the value.
    pub shape: Shape,
    /// The element type.
    pub dtype: DType,
}

impl TensorMeta {
    /// The shape and element type of `tensor`.
    pub fn of(tensor: &Tensor) -> Self {
        TensorMeta { shape: *tensor.shape(), dtype: tensor.dtype() }
    }

    /// `Ok` if `tensor` has this shape and type.
    pub(crate) fn check(self, op: &'static str, tensor: &Tensor) -> TensorResult<()> {
        let found = TensorMeta::of(tensor);
        if found.shape != self.shape {
            return Err(TensorError::Shape { op, left: found.shape, right: self.shape });
        }
        if found.dtype != self.dtype {
            return Err(TensorError::DType { op, left: found.dtype, right: self.dtype });
        }
        Ok(())
    }
}

impl fmt::Display for TensorMeta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.dtype, self.shape)
    }
}
