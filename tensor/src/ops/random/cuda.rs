//! Random numbers on NVIDIA devices, those of the processor.

use lowtide_allocator::cuda::{Argument, Kernel as Signature, Parameter};

use super::{Distribution, Random};
use crate::cuda::kernels::{RANDOM, WALK_OF_1, grid, walk};
use crate::cuda::{Cuda, CudaOperands};
use crate::error::Result;
use Parameter::{F64, U32, Words, Write};

/// Enqueues the numbers of a tensor of f32.
pub(super) fn random(op: &Random, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
    let (number, p, q) = match op.distribution {
        Distribution::Uniform { low, high } => (0, low, high - low),
        Distribution::Normal { mean, deviation } => (1, mean, deviation),
        Distribution::Bernoulli { probability } => (2, probability, 0.0),
    };
    let y = operands.write(0);
    let walk = walk(y.layout().shape(), [y.layout()]);
    let parameters = &[Write, Words(2), U32, F64, F64, WALK_OF_1];
    let kernel = Signature { name: "random_f32", parameters };
    let stream = op.key.stream_words();
    let numbers = [Argument::U32(number), Argument::F64(p), Argument::F64(q)];
    let arguments =
        [&[y.to_write(), Argument::Words(&stream)], &numbers[..], &[Argument::Words(&walk)]];
    cuda.launch(RANDOM, &kernel, grid(op.len.div_ceil(4)), &arguments.concat())
}
