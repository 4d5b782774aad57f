//! Batch normalisation on NVIDIA devices, see `batch_norm.cu`.

use super::{Backward, Channels, Forward, Statistics, Update};
use crate::cuda::gate::{Argument, Grid, Parameter, Signature};
use crate::cuda::kernels::{BATCH_NORM, grid, typed_name};
use crate::cuda::{Cuda, CudaOperands, OnCuda};
use crate::error::Result;
use Parameter::{F64, Read, U32, U64, Words, Write};

/// The kernel parameter `struct Channels`, in words.
const CHANNELS: Parameter = Words(5);

/// Largest number of threads of a block, which takes one part of a channel at a time.
const THREADS_MAX: usize = 256;

/// Largest number of blocks of a grid. More parts go to the same blocks.
const BLOCKS_MAX: usize = 1 << 16;

impl Channels {
    /// The words of the kernel parameter `struct Channels`.
    fn words(&self) -> [u64; 5] {
        let [part_len, parts] = self.cuda_parts();
        [self.samples, self.channels, self.inner, part_len, parts].map(|size| size as u64)
    }

    fn grid_of_parts(&self) -> Grid {
        let [part_len, parts] = self.cuda_parts();
        let threads = part_len.next_multiple_of(32).min(THREADS_MAX);
        Grid::row((parts * self.channels).min(BLOCKS_MAX) as u32, threads as u32)
    }

    /// Enqueues the pass over all elements.
    fn apply(&self, cuda: &Cuda, [y, x, dy, coefficients]: [Argument<'_>; 4]) -> Result<()> {
        let kernel = Signature {
            name: typed_name!("batch_norm_apply", self.dtype),
            parameters: &[Write, Read, Read, Read, CHANNELS],
        };
        let words = self.words();
        let arguments = [y, x, dy, coefficients, Argument::Words(&words)];
        cuda.launch(BATCH_NORM.of(self.dtype), &kernel, grid(self.element_count()), &arguments)
    }
}

impl OnCuda for Forward {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let Forward { shape, has: [has_weight, has_bias] } = &self;
        let (image, words) = (BATCH_NORM.of(shape.dtype), shape.words());
        let x = operands.read(0).to_read();
        let bias_at = 1 + usize::from(*has_weight);
        let weight = operands.read_if(*has_weight, 1);
        let bias = operands.read_if(*has_bias, bias_at);
        let [y, coefficients] = [0, 1].map(|index| operands.write(index));
        let statistics = match shape.statistics {
            Statistics::Fixed => {
                let first = bias_at + usize::from(*has_bias);
                [first, first + 1].map(|index| operands.read(index).to_read())
            }
            Statistics::Batch => {
                let [mean, variance, partials] = [2, 3, 4].map(|index| operands.write(index));
                let kernel = Signature {
                    name: typed_name!("batch_moments", shape.dtype),
                    parameters: &[Write, Read, CHANNELS],
                };
                let sizes = Argument::Words(&words);
                let arguments = [partials.to_write(), x, sizes];
                cuda.launch(image, &kernel, shape.grid_of_parts(), &arguments)?;
                let kernel = Signature {
                    name: typed_name!("merge_moments", shape.dtype),
                    parameters: &[Write, Write, Read, CHANNELS],
                };
                let arguments = [mean.to_write(), variance.to_write(), partials.to_read(), sizes];
                cuda.launch(image, &kernel, grid(shape.channels), &arguments)?;
                [mean, variance].map(|of| of.to_read())
            }
        };
        let kernel = Signature {
            name: typed_name!("batch_norm_coefficients", shape.dtype),
            parameters: &[Write, Read, Read, Read, Read, F64, U64],
        };
        let (eps, channels) = (Argument::F64(shape.eps), Argument::U64(shape.channels as u64));
        let [mean, variance] = statistics;
        let arguments = [coefficients.to_write(), mean, variance, weight, bias, eps, channels];
        cuda.launch(image, &kernel, grid(shape.channels), &arguments)?;
        shape.apply(cuda, [y.to_write(), x, Argument::Nothing, coefficients.to_read()])
    }
}

impl OnCuda for Backward {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let Backward { shape, has_weight } = &self;
        let (image, words) = (BATCH_NORM.of(shape.dtype), shape.words());
        let [dy, x, mean, variance] = [0, 1, 2, 3].map(|index| operands.read(index).to_read());
        let weight = operands.read_if(*has_weight, 4);
        let [dx, dweight, dbias, coefficients, partials] =
            [0, 1, 2, 3, 4].map(|index| operands.write(index));
        let kernel = Signature {
            name: typed_name!("batch_gradient_sums", shape.dtype),
            parameters: &[Write, Read, Read, Read, CHANNELS],
        };
        let sizes = Argument::Words(&words);
        let arguments = [partials.to_write(), dy, x, mean, sizes];
        cuda.launch(image, &kernel, shape.grid_of_parts(), &arguments)?;
        let kernel = Signature {
            name: typed_name!("batch_norm_gradients", shape.dtype),
            parameters: &[Write, Write, Write, Read, Read, Read, Read, F64, U32, CHANNELS],
        };
        let is_of_batch = u32::from(shape.statistics == Statistics::Batch);
        let results = [&coefficients, &dweight, &dbias].map(|of| of.to_write());
        let sources = [partials.to_read(), mean, variance, weight];
        let rest = [Argument::F64(shape.eps), Argument::U32(is_of_batch), sizes];
        let arguments = [&results[..], &sources, &rest].concat();
        cuda.launch(image, &kernel, grid(shape.channels), &arguments)?;
        shape.apply(cuda, [dx.to_write(), x, dy, coefficients.to_read()])
    }
}

impl OnCuda for Update {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let kernel = Signature {
            name: typed_name!("update_running", self.dtype),
            parameters: &[Write, Read, F64, F64, U64],
        };
        for (index, factor) in [1.0, self.correction].into_iter().enumerate() {
            let (running, batch) =
                (operands.write(index).to_write(), operands.read(index).to_read());
            let numbers = [self.momentum, factor].map(Argument::F64);
            let channels = Argument::U64(self.channels as u64);
            let arguments = [running, batch, numbers[0], numbers[1], channels];
            cuda.launch(BATCH_NORM.of(self.dtype), &kernel, grid(self.channels), &arguments)?;
        }
        Ok(())
    }
}
