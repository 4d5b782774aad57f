//! Rotary embedding on NVIDIA devices, see `rotary.cu`.

use super::{Rotary, RotaryPairs};
use crate::cuda::gate::{Argument, Parameter, Signature};
use crate::cuda::kernels::{ROTARY, WALK_OF_1, grid, typed_name, walk_of};
use crate::cuda::{Cuda, CudaOperands, OnCuda};
use crate::error::Result;
use crate::layout::{Nest, Shape};
use crate::ops::direction::Direction;
use Parameter::{F64, Read, Words, Write};

/// The kernel parameter `struct Pairs`, in words.
const PAIRS: Parameter = Words(4);

impl OnCuda for Rotary {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let ([cos, sin], x) = ([0, 1].map(|index| operands.read(index)), operands.write(0));
        let (shape, strides) = (x.layout().shape(), x.layout().strides());
        let (&[ref rows @ .., _], &[len, half]) = (&**shape, &**cos.layout().shape()) else {
            unreachable!("the operation checked the shapes")
        };
        let rows = Shape::new(rows);
        let count = rows.element_count();
        let walk = walk_of(&Nest::new(&rows, [&strides[..rows.len()]]), count);
        let is_interleaved = usize::from(self.pairs == RotaryPairs::Interleaved);
        let pairs = [len, half, is_interleaved, strides[rows.len()]].map(|word| word as u64);
        let sign = if self.direction == Direction::Forward { 1.0 } else { -1.0 };
        let kernel = Signature {
            name: typed_name!("rotary", self.dtype),
            parameters: &[Write, Read, Read, F64, PAIRS, WALK_OF_1],
        };
        let (pairs, walk) = (Argument::Words(&pairs), Argument::Words(&walk));
        let arguments =
            [x.to_write(), cos.to_read(), sin.to_read(), Argument::F64(sign), pairs, walk];
        cuda.launch(ROTARY.of(self.dtype), &kernel, grid(count * half), &arguments)
    }
}
