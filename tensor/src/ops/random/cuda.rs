//! Random numbers on NVIDIA devices, equal to the processor's: see `random.cu` and
//! `random_integers.cu`.

use super::integers::RandomIntegers;
use super::{Distribution, Random, digits};
use crate::cuda::gate::{Argument, Parameter, Signature};
use crate::cuda::kernels::{RANDOM, RANDOM_INTEGERS, WALK_OF_1, grid, typed_name, walk};
use crate::cuda::{Cuda, CudaOperands, OnCuda};
use crate::dtype::DType;
use crate::error::Result;
use Parameter::{F64, I64, U32, U64, Words, Write};

/// The kernel parameter `struct Stream`, in words.
const STREAM: Parameter = Words(2);

// Enqueues the random numbers of a tensor.
impl OnCuda for Random {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let (number, p, q) = match self.distribution {
            Distribution::Uniform { low, high } => (0, low, high - low),
            Distribution::Normal { mean, deviation } => (1, mean, deviation),
            Distribution::Bernoulli { probability } => (2, probability, 0.0),
        };
        let (y, stream) = (operands.write(0), self.key.stream_words());
        let walk = walk(y.layout().shape(), [y.layout()]);
        let (y, grid) = (y.to_write(), grid(self.len.div_ceil(4)));
        let [stream, walk] = [&stream, &walk[..]].map(Argument::Words);
        if !self.dtype.is_float() {
            let name = match self.dtype {
                DType::I64 => "random_truths_i64",
                DType::I32 => "random_truths_i32",
                _ => "random_truths_u8",
            };
            let kernel = Signature { name, parameters: &[Write, STREAM, F64, WALK_OF_1] };
            return cuda.launch(
                RANDOM_INTEGERS,
                &kernel,
                grid,
                &[y, stream, Argument::F64(p), walk],
            );
        }
        let parameters = &[Write, STREAM, U32, U32, F64, F64, WALK_OF_1];
        let kernel = Signature { name: typed_name!("random", self.dtype), parameters };
        let numbers = [Argument::U32(number), Argument::U32(digits(self.dtype))];
        let scale = [Argument::F64(p), Argument::F64(q)];
        let arguments = [&[y, stream], &numbers[..], &scale, &[walk]].concat();
        cuda.launch(RANDOM.of(self.dtype), &kernel, grid, &arguments)
    }
}

// Enqueues random integers.
impl OnCuda for RandomIntegers {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let (y, stream) = (operands.write(0), self.key.stream_words());
        let walk = walk(y.layout().shape(), [y.layout()]);
        let name = match self.dtype {
            DType::F64 => "random_integers_f64",
            DType::F32 => "random_integers_f32",
            DType::F16 => "random_integers_f16",
            DType::BF16 => "random_integers_bf16",
            DType::I64 => "random_integers_i64",
            DType::I32 => "random_integers_i32",
            DType::U8 | DType::Bool => "random_integers_u8",
        };
        let kernel = Signature { name, parameters: &[Write, STREAM, I64, U64, WALK_OF_1] };
        let arguments = [
            y.to_write(),
            Argument::Words(&stream),
            Argument::I64(self.low),
            Argument::U64(self.count),
            Argument::Words(&walk),
        ];
        cuda.launch(RANDOM_INTEGERS, &kernel, grid(self.len), &arguments)
    }
}
