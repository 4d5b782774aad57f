//! The scratch memory of a convolution, known before any allocation.

use std::fmt::{self, Display};

use super::{Conv2d, Conv2dGeometry, Product};
use crate::dtype::DType;
use crate::error::{Result, TensorError};
use crate::layout::Shape;
use crate::spec::DeviceKind;

/// Bytes of scratch that a convolution and its gradients take beside their results. The bytes
/// depend on the sizes and the kind of device, not on the number of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2dWorkspace {
    /// Bytes of [`Tensor::conv2d`](crate::Tensor::conv2d).
    pub forward_bytes: usize,
    /// Bytes of [`Tensor::conv2d_backward_input`](crate::Tensor::conv2d_backward_input).
    pub backward_input_bytes: usize,
    /// Bytes of [`Tensor::conv2d_backward_weight`](crate::Tensor::conv2d_backward_weight).
    pub backward_weight_bytes: usize,
}

impl Conv2dWorkspace {
    /// The workspace of a convolution of `x` with `w`, both of `dtype`, on a device of this `kind`,
    /// simulated or not. There is no bias, and no tf32. Operands that are not contiguous are copied
    /// in addition.
    ///
    /// # Errors
    /// As [`Tensor::conv2d`](crate::Tensor::conv2d).
    pub fn of(
        kind: DeviceKind,
        x: Shape,
        w: Shape,
        geometry: Conv2dGeometry,
        dtype: DType,
    ) -> Result<Self> {
        let op = "conv2d";
        let shape = geometry.with(op, &x, &w)?;
        if !dtype.is_float() {
            return Err(TensorError::DType { op, left: dtype, right: DType::F32 });
        }
        let bytes = |product| {
            let conv = Conv2d { op, product, shape, dtype, has_bias: false, is_in_tf32: false };
            conv.workspace_len(kind) * dtype.computed().size_bytes()
        };
        Ok(Conv2dWorkspace {
            forward_bytes: bytes(Product::Forward),
            backward_input_bytes: bytes(Product::BackwardInput),
            backward_weight_bytes: bytes(Product::BackwardWeight),
        })
    }
}

impl Display for Conv2dWorkspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Conv2dWorkspace { forward_bytes, backward_input_bytes, backward_weight_bytes } = self;
        write!(
            f,
            "forward {forward_bytes} B, backward of the input {backward_input_bytes} B, \
             of the weight {backward_weight_bytes} B"
        )
    }
}
