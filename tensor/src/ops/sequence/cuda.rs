//! Sequences on NVIDIA devices, see `sequence.cu`.

use super::{Fill, Sequence};
use crate::cuda::gate::{Argument, Parameter, Signature};
use crate::cuda::kernels::{SEQUENCE, grid, typed_name};
use crate::cuda::{Cuda, CudaOperands, OnCuda};
use crate::error::Result;
use Parameter::{F64, U32, U64, Write};

impl OnCuda for Fill {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let (kind, [start, step, end], count) = match self.sequence {
            Sequence::Range { start, step } => (0, [start, step, 0.0], 0),
            Sequence::Between { start, end, count } => {
                let step = (end - start) / (count.max(2) - 1) as f64;
                (1, [start, step, end], count)
            }
            Sequence::Eye { column_count } => (2, [0.0; 3], column_count),
        };
        let kernel = Signature {
            name: typed_name!("sequence", self.dtype),
            parameters: &[Write, U32, F64, F64, F64, U64, U64],
        };
        let [start, step, end] = [start, step, end].map(Argument::F64);
        let [count, len] = [count, self.len].map(|count| Argument::U64(count as u64));
        let arguments =
            [operands.write(0).to_write(), Argument::U32(kind), start, step, end, count, len];
        cuda.launch(SEQUENCE.of(self.dtype), &kernel, grid(self.len), &arguments)
    }
}
