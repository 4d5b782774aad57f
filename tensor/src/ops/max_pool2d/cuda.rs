//! Both directions on NVIDIA devices, without scratch. See `max_pool2d.cu`.

use super::cpu::MaxPool2dShape;
use super::{Backward, Forward};
use crate::cuda::gate::{Argument, Parameter, Signature};
use crate::cuda::kernels::{MAX_POOL2D, divisor, grid, typed_name};
use crate::cuda::{Cuda, CudaOperands, OnCuda};
use crate::dtype::DType;
use crate::error::{Result, TensorError};

/// The kernel parameter `struct Pool`, in words.
const POOL: Parameter = Parameter::Words(29);

/// Checks that there are kernels: for floats, in planes whose sizes fit 32 bits.
fn check(op: &'static str, shape: &MaxPool2dShape, dtype: DType) -> Result<()> {
    let MaxPool2dShape { in_size, out_size, padding, stride, .. } = *shape;
    let padded = [0, 1].map(|axis| in_size[axis] + 2 * padding[axis] + stride[axis]);
    let fits = [padded, out_size]
        .iter()
        .all(|[rows, columns]| rows.checked_mul(*columns).is_some_and(|len| len < 1 << 31));
    if dtype.is_float() && fits {
        return Ok(());
    }
    Err(TensorError::NoKernel { op, device: "cuda" })
}

// Enqueues the maxima.
impl OnCuda for Forward {
    fn check(&self, _: &CudaOperands<'_>) -> Result<()> {
        check(self.op, &self.shape, self.dtype)
    }

    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        use Parameter::{Read, Write};
        let name = typed_name!("max_pool2d", self.dtype);
        let kernel = Signature { name, parameters: &[Write, Write, Read, POOL] };
        let (y, winners, x) = (operands.write(0), operands.write(1), operands.read(0));
        let words = words(&self.shape);
        let arguments = [y.to_write(), winners.to_write(), x.to_read(), Argument::Words(&words)];
        cuda.launch(MAX_POOL2D.of(self.dtype), &kernel, grid(self.shape.y_len()), &arguments)
    }
}

// Enqueues the gradient.
impl OnCuda for Backward {
    fn check(&self, _: &CudaOperands<'_>) -> Result<()> {
        check(self.op, &self.shape, self.dtype)
    }

    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        use Parameter::{Read, Write};
        let name = typed_name!("max_pool2d_backward", self.dtype);
        let kernel = Signature { name, parameters: &[Write, Read, Read, POOL] };
        let (dx, dy, winners) = (operands.write(0), operands.read(0), operands.read(1));
        let words = words(&self.shape);
        let arguments = [dx.to_write(), dy.to_read(), winners.to_read(), Argument::Words(&words)];
        cuda.launch(MAX_POOL2D.of(self.dtype), &kernel, grid(self.shape.x_len()), &arguments)
    }
}

/// The words of the kernel parameter `struct Pool`.
fn words(shape: &MaxPool2dShape) -> Vec<u64> {
    let MaxPool2dShape { planes, in_size, out_size, kernel, stride, padding, dilation } = *shape;
    let sizes = [in_size, out_size, kernel, stride, padding, dilation];
    let by_plane = |[rows, columns]: [usize; 2]| [rows * columns, columns];
    let divisors = [by_plane(in_size), by_plane(out_size), stride, dilation];
    let sizes = sizes.into_iter().flatten().map(|size| size as u64);
    let divisors = divisors.into_iter().flatten().flat_map(divisor);
    [planes as u64].into_iter().chain(sizes).chain(divisors).collect()
}
