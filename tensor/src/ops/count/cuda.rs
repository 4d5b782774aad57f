//! Counts of bins on NVIDIA devices, see `count.cu`.

use super::Histogram;
use crate::cuda::gate::{Argument, Parameter, Signature};
use crate::cuda::kernels::{COUNT, WALK_OF_1, grid, typed_name, walk};
use crate::cuda::{Cuda, CudaOperands, OnCuda};
use crate::error::Result;
use Parameter::{F64, Read, U64, Write};

// Enqueues the counts, in the second operand, and their conversion to numbers, in the first. An
// empty range is replaced by the ends of the data, whose memory follows the counts.
impl OnCuda for Histogram {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let (x, [y, counts]) = (operands.read(0), [0, 1].map(|index| operands.write(index)));
        let image = COUNT.of(self.dtype);
        let walk = walk(x.layout().shape(), [x.layout()]);
        let bins = y.layout().shape()[0];
        cuda.fill(&counts, counts.bytes(), 0)?;
        if self.range.start == self.range.end {
            let name = typed_name!("find_ends", self.dtype);
            let kernel = Signature { name, parameters: &[Write, Read, WALK_OF_1] };
            let arguments = [counts.to_write_from(bins), x.to_read(), Argument::Words(&walk)];
            cuda.launch(image, &kernel, grid(self.len), &arguments)?;
        }
        let kernel = Signature {
            name: typed_name!("count_bins", self.dtype),
            parameters: &[Write, Read, Read, F64, F64, U64, WALK_OF_1],
        };
        let arguments = [
            counts.to_write(),
            counts.to_read_from(bins),
            x.to_read(),
            Argument::F64(self.range.start),
            Argument::F64(self.range.end),
            Argument::U64(bins as u64),
            Argument::Words(&walk),
        ];
        cuda.launch(image, &kernel, grid(self.len), &arguments)?;
        let name = typed_name!("round_counts", self.dtype);
        let kernel = Signature { name, parameters: &[Write, Read, U64] };
        let arguments = [y.to_write(), counts.to_read(), Argument::U64(bins as u64)];
        cuda.launch(image, &kernel, grid(bins), &arguments)
    }
}
