//! Triangles on NVIDIA devices, see `triangle.cu`.

use super::{Keep, Side, Triangle};
use crate::cuda::gate::{Argument, Parameter, Signature};
use crate::cuda::kernels::{TRIANGLE, WALK_OF_2, grid, walk_of};
use crate::cuda::{Cuda, CudaOperands, OnCuda};
use crate::error::Result;
use crate::layout::{Nest, RANK_MAX};
use Parameter::{Read, Words, Write};

// Enqueues the triangles of x, or of the written tensor in place if there is no x.
impl OnCuda for Keep {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let y = operands.write(0);
        let x = (operands.read_count() > 0).then(|| operands.read(0));
        let strides = x.map_or(&[0; RANK_MAX][..], |x| x.layout().strides());
        let nest = Nest::new(y.layout().shape(), [y.layout().strides(), strides]);
        let walk = walk_of(&nest, self.len);
        let Triangle { side, diagonal, row_count, column_count } = self.triangle;
        let first = diagonal + isize::from(side == Side::Lower);
        let sizes = [row_count, column_count].map(|len| len as u64);
        let keeps_upper = u64::from(side == Side::Upper);
        let triangle = [sizes[0], sizes[1], (first as i64).cast_unsigned(), keeps_upper];
        let kernel = Signature {
            name: ["triangle_1", "triangle_2", "triangle_4", "triangle_8"]
                [self.dtype.size_bytes().ilog2() as usize],
            parameters: &[Write, Read, Words(4), WALK_OF_2],
        };
        let x = x.map_or(Argument::Nothing, |x| x.to_read());
        let arguments = [y.to_write(), x, Argument::Words(&triangle), Argument::Words(&walk)];
        cuda.launch(TRIANGLE, &kernel, grid(self.len), &arguments)
    }
}
