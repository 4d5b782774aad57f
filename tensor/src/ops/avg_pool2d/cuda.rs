//! Means over windows on NVIDIA devices, see `avg_pool2d.cu`.

use super::{AvgPool2d, Divisor};
use crate::cuda::gate::{Argument, Parameter, Signature};
use crate::cuda::kernels::{AVG_POOL2D, grid, typed_name};
use crate::cuda::{Cuda, CudaOperands, OnCuda};
use crate::error::Result;
use crate::ops::direction::Direction;
use crate::ops::windows::{Axis, Kind};
use Parameter::{Read, Words, Write};

/// The words of the kernel parameter `struct Axis`.
fn words(axis: Axis) -> [u64; 5] {
    let [kernel, stride, padding] = match axis.kind {
        Kind::Stepped { kernel, stride, padding } => [kernel, stride, padding],
        Kind::Adaptive => [0; 3],
    };
    [axis.in_len, axis.out_len, kernel, stride, padding].map(|size| size as u64)
}

impl OnCuda for AvgPool2d {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let name = match self.direction {
            Direction::Forward => typed_name!("avg_pool2d", self.dtype),
            Direction::Backward => typed_name!("avg_pool2d_backward", self.dtype),
        };
        let kernel = Signature { name, parameters: &[Write, Read, Words(13)] };
        let (is_inside, exactly) = match self.shape.divisor {
            Divisor::Window => (0, 0),
            Divisor::Inside => (1, 0),
            Divisor::Exactly(number) => (0, number.get() as u64),
        };
        let [rows, columns] = self.shape.axes.map(words);
        let means = [&[self.shape.planes as u64, is_inside, exactly][..], &rows, &columns].concat();
        let (to, from) = (operands.write(0), operands.read(0));
        let arguments = [to.to_write(), from.to_read(), Argument::Words(&means)];
        let len = to.layout().shape().element_count();
        cuda.launch(AVG_POOL2D.of(self.dtype), &kernel, grid(len), &arguments)
    }
}
