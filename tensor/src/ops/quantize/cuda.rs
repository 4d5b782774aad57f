//! Decoding on NVIDIA devices, see `quantize.cu`.

use super::{Decode, QuantFormat};
use crate::cuda::gate::{Argument, Parameter, Signature};
use crate::cuda::kernels::{QUANTIZE, grid, typed_name};
use crate::cuda::{Cuda, CudaOperands, OnCuda};
use crate::error::Result;
use Parameter::{Read, U32, Words, Write};

impl OnCuda for Decode {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let kernel = Signature {
            name: typed_name!("dequantize", self.dtype),
            parameters: &[Write, Read, Read, Read, Read, Read, U32, Words(5)],
        };
        let read = |index: usize| operands.read_if(index < operands.read_count(), index);
        let [rows, columns] = self.size;
        let places = [self.inputs, self.first[0], self.first[1], columns, rows * columns];
        let places = places.map(|place| place as u64);
        let arguments = [
            operands.write(0).to_write(),
            read(0),
            read(1),
            read(2),
            read(3),
            read(4),
            Argument::U32(number(self.format)),
            Argument::Words(&places),
        ];
        cuda.launch(QUANTIZE.of(self.dtype), &kernel, grid(rows * columns), &arguments)
    }
}

/// The number of a format in kernels.
fn number(format: QuantFormat) -> u32 {
    match format {
        QuantFormat::Int8Rows => 0,
        QuantFormat::Nf4 { double: false } => 1,
        QuantFormat::Nf4 { double: true } => 2,
        QuantFormat::Q8_0 => 3,
        QuantFormat::Q4_0 => 4,
    }
}
