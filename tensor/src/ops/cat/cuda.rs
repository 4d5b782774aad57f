//! Concatenation on NVIDIA devices: each part is copied to its place in y.

use super::Cat;
use crate::cuda::gate::{Argument, Parameter, Signature};
use crate::cuda::kernels::{FILL, WALK_OF_2, grid, walk_of};
use crate::cuda::{Cuda, CudaOperands, OnCuda};
use crate::error::Result;
use crate::layout::Nest;

impl OnCuda for Cat {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let y = operands.write(0);
        let strides = y.layout().strides();
        let kernel = Signature {
            name: ["copy_1", "copy_2", "copy_4", "copy_8"]
                [self.dtype.size_bytes().ilog2() as usize],
            parameters: &[Parameter::Write, Parameter::Read, WALK_OF_2],
        };
        let mut start = 0;
        for part in (0..operands.read_count()).map(|index| operands.read(index)) {
            let (shape, at) = (part.layout().shape(), start * strides[self.axis]);
            start += shape[self.axis];
            let len = shape.element_count();
            if len == 0 {
                continue;
            }
            let walk = walk_of(&Nest::new(shape, [strides, part.layout().strides()]), len);
            let arguments = [y.to_write_from(at), part.to_read(), Argument::Words(&walk)];
            cuda.launch(FILL, &kernel, grid(len), &arguments)?;
        }
        Ok(())
    }
}
