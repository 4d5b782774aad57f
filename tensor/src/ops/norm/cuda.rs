//! Both directions on NVIDIA devices, see `norm.cu`.

use super::backward::Cut;
use super::{Backward, Center, Forward, Norm};
use crate::cpu::lines::Blocks;
use crate::cuda::gate::{Argument, Grid, Parameter, Signature};
use crate::cuda::kernels::{LineGroups, NORM, grid, typed_name};
use crate::cuda::{Cuda, CudaOperands, OnCuda};
use crate::error::Result;
use Parameter::{F64, Read, U32, U64, Words, Write};

/// The kernel parameter `struct Norm`, in words.
const SIZES: Parameter = Words(4);

/// The kernel parameter `struct Partials`, in words.
const PARTS: Parameter = Words(2);

/// Largest number of threads of a block that adds up parts of channels.
const THREADS_MAX: usize = 256;

/// Channels of such a block, if a sample has one element of each channel.
const BLOCK_CHANNELS: usize = 128;

/// Largest number of blocks of a grid. More rows or parts go to the same blocks.
const BLOCKS_MAX: u32 = 1 << 16;

/// A block for each of `count` parts; large counts share blocks.
fn grid_of_parts(count: usize, threads: usize) -> Grid {
    Grid::row(count.min(BLOCKS_MAX as usize) as u32, threads as u32)
}

impl Norm {
    fn rows(&self) -> usize {
        self.samples * self.groups
    }

    fn row_groups(&self) -> LineGroups {
        let blocks = Blocks { outer: self.rows(), len: self.row_len(), inner: 1 };
        LineGroups::of(blocks, self.dtype, BLOCKS_MAX)
    }

    /// The words of the kernel parameter `struct Norm`.
    fn words(&self) -> [u64; 4] {
        [self.rows(), self.groups, self.channels, self.inner].map(|size| size as u64)
    }
}

impl OnCuda for Forward {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let Forward { norm, has: [has_weight, has_bias] } = &self;
        let parameters = &[Write, Write, Write, Read, Read, Read, F64, SIZES, U32];
        let kernel = Signature { name: typed_name!("normalize", norm.dtype), parameters };
        let means = match norm.center {
            Center::Mean => operands.write(2).to_write(),
            Center::Zero => Argument::Nothing,
        };
        let [y, rstd] = [0, 1].map(|index| operands.write(index).to_write());
        let (x, words) = (operands.read(0).to_read(), norm.words());
        let weight = operands.read_if(*has_weight, 1);
        let bias = operands.read_if(*has_bias, 1 + usize::from(*has_weight));
        let (eps, sizes) = (Argument::F64(norm.eps), Argument::Words(&words));
        let groups = norm.row_groups();
        let arguments = [y, rstd, means, x, weight, bias, eps, sizes, Argument::U32(groups.lanes)];
        cuda.launch(NORM.of(norm.dtype), &kernel, groups.grid(), &arguments)
    }
}

impl OnCuda for Backward {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let Backward { norm, has_weight } = &self;
        let (image, words) = (NORM.of(norm.dtype), norm.words());
        let [dy, x, rstd] = [0, 1, 2].map(|index| operands.read(index).to_read());
        let has_mean = norm.center == Center::Mean;
        let mean = operands.read_if(has_mean, 3);
        let weight = operands.read_if(*has_weight, 3 + usize::from(has_mean));
        let kernel = Signature {
            name: typed_name!("normalize_backward", norm.dtype),
            parameters: &[Write, Read, Read, Read, Read, Read, SIZES, U32],
        };
        let (sizes, groups) = (Argument::Words(&words), norm.row_groups());
        let lanes = Argument::U32(groups.lanes);
        let arguments = [operands.write(0).to_write(), dy, x, rstd, mean, weight, sizes, lanes];
        cuda.launch(image, &kernel, groups.grid(), &arguments)?;
        if !has_weight {
            return Ok(());
        }
        let [dweight, dbias, partials] = [1, 2, 3].map(|index| operands.write(index));
        let cut = Cut::of(norm);
        let (name, of_partials) = match norm.inner {
            0 | 1 => (
                typed_name!("norm_partials_of_elements", norm.dtype),
                grid_of_parts(cut.partials * norm.channels.div_ceil(BLOCK_CHANNELS), THREADS_MAX),
            ),
            _ => (
                typed_name!("norm_partials_of_planes", norm.dtype),
                grid_of_parts(
                    cut.partials * norm.channels,
                    norm.inner.next_multiple_of(32).min(THREADS_MAX),
                ),
            ),
        };
        let parameters = &[Write, Read, Read, Read, Read, PARTS, SIZES];
        let samples = norm.samples.div_ceil(cut.partials.max(1));
        let parts = [cut.partials, samples].map(|count| count as u64);
        let arguments = [partials.to_write(), dy, x, rstd, mean, Argument::Words(&parts), sizes];
        cuda.launch(image, &Signature { name, parameters }, of_partials, &arguments)?;
        let kernel = Signature {
            name: typed_name!("norm_parameters", norm.dtype),
            parameters: &[Write, Write, Read, U64, U64],
        };
        let counts = [cut.partials, norm.channels].map(|count| Argument::U64(count as u64));
        let [dweight, dbias] = [dweight, dbias].map(|of| of.to_write());
        let arguments = [dweight, dbias, partials.to_read(), counts[0], counts[1]];
        cuda.launch(image, &kernel, grid(norm.channels), &arguments)
    }
}
