//! Dropout on NVIDIA devices, see `dropout.cu`.

use super::{Drop, cpu};
use crate::cuda::gate::{Argument, Parameter, Signature};
use crate::cuda::kernels::{DROPOUT, WALK_OF_2, grid, typed_name, walk};
use crate::cuda::{Cuda, CudaOperands, OnCuda};
use crate::error::Result;
use Parameter::{F64, Read, U64, Words, Write};

impl OnCuda for Drop {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let y = operands.write(0);
        let x = (operands.read_count() == 1).then(|| operands.read(0));
        let shape = y.layout().shape();
        let walk = walk(shape, [y.layout(), x.map_or(y.layout(), |x| x.layout())]);
        let kernel = Signature {
            name: typed_name!("dropout", self.dtype),
            parameters: &[Write, Read, U64, F64, U64, Words(2), WALK_OF_2],
        };
        let cpu::Factors { key, first, threshold, scale } = cpu::Factors::new(self.dropout);
        let stream = key.stream_words();
        let arguments = [
            y.to_write(),
            x.map_or(Argument::Nothing, |x| x.to_read()),
            Argument::U64(threshold),
            Argument::F64(scale),
            Argument::U64(first),
            Argument::Words(&stream),
            Argument::Words(&walk),
        ];
        let blocks = shape.element_count().div_ceil(4) + 1;
        cuda.launch(DROPOUT.of(self.dtype), &kernel, grid(blocks), &arguments)
    }
}
