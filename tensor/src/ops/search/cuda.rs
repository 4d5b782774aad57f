//! Searches on NVIDIA devices, see `search.cu`.

use super::{Search, Side};
use crate::cuda::gate::{Argument, Parameter, Signature};
use crate::cuda::kernels::{SEARCH, WALK_OF_1, grid, typed_name, walk};
use crate::cuda::{Cuda, CudaOperands, OnCuda};
use crate::error::Result;
use Parameter::{Read, U32, U64, Write};

// Enqueues the search for all values.
impl OnCuda for Search {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let ([sorted, values], y) = ([0, 1].map(|index| operands.read(index)), operands.write(0));
        let name = typed_name!("search", self.dtype);
        let kernel = Signature { name, parameters: &[Write, Read, Read, U64, U64, U32, WALK_OF_1] };
        let walk = walk(values.layout().shape(), [values.layout()]);
        let arguments = [
            y.to_write(),
            sorted.to_read(),
            values.to_read(),
            Argument::U64(self.sorted_len as u64),
            Argument::U64(self.row_len as u64),
            Argument::U32(u32::from(self.side == Side::Right)),
            Argument::Words(&walk),
        ];
        cuda.launch(SEARCH, &kernel, grid(self.len), &arguments)
    }
}
