//! Both directions on NVIDIA devices, see `norm.cu`.

use lowtide_allocator::cuda::{Argument, Grid, Kernel as Signature, Parameter};

use super::backward::Cut;
use super::{Backward, Center, Forward, Norm};
use crate::cuda::kernels::{NORM, grid, typed_name};
use crate::cuda::{Cuda, CudaOperands};
use crate::error::Result;
use Parameter::{F64, Read, U64, Words, Write};

/// `struct Norm`.
const SIZES: Parameter = Words(4);

/// `struct Partials`.
const PARTS: Parameter = Words(2);

/// Threads of a block, at most; it takes whole rows.
const THREADS_MAX: usize = 256;

/// Blocks that keep the largest devices busy; each then takes more rows.
const BLOCKS_MAX: usize = 1 << 16;

/// A block for each of `count` lines of `len` elements, or for several.
fn grid_of_lines(count: usize, len: usize) -> Grid {
    let threads = len.next_multiple_of(32).clamp(32, THREADS_MAX);
    Grid::row(count.min(BLOCKS_MAX) as u32, threads as u32)
}

impl Norm {
    fn rows(&self) -> usize {
        self.samples * self.groups
    }

    /// `struct Norm`.
    fn words(&self) -> [u64; 4] {
        [self.rows(), self.groups, self.channels, self.inner].map(|size| size as u64)
    }
}

pub(super) fn forward(op: &Forward, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
    let Forward { norm, has: [has_weight, has_bias] } = op;
    let parameters = &[Write, Write, Write, Read, Read, Read, F64, SIZES];
    let kernel = Signature { name: typed_name!("normalize", norm.dtype), parameters };
    let read = |is_there: bool, index: usize| match is_there {
        true => operands.read(index).to_read(),
        false => Argument::Nothing,
    };
    let means = match norm.center {
        Center::Mean => operands.write(2).to_write(),
        Center::Zero => Argument::Nothing,
    };
    let [y, rstd] = [0, 1].map(|index| operands.write(index).to_write());
    let (x, words) = (operands.read(0).to_read(), norm.words());
    let (weight, bias) = (read(*has_weight, 1), read(*has_bias, 1 + usize::from(*has_weight)));
    let (eps, sizes) = (Argument::F64(norm.eps), Argument::Words(&words));
    let arguments = [y, rstd, means, x, weight, bias, eps, sizes];
    cuda.launch(
        NORM.of(norm.dtype),
        &kernel,
        grid_of_lines(norm.rows(), norm.row_len()),
        &arguments,
    )
}

pub(super) fn backward(op: &Backward, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
    let Backward { norm, has_weight } = op;
    let (image, words) = (NORM.of(norm.dtype), norm.words());
    let [dy, x, rstd] = [0, 1, 2].map(|index| operands.read(index).to_read());
    let has_mean = norm.center == Center::Mean;
    let mean = if has_mean { operands.read(3).to_read() } else { Argument::Nothing };
    let weight = match has_weight {
        true => operands.read(3 + usize::from(has_mean)).to_read(),
        false => Argument::Nothing,
    };
    let kernel = Signature {
        name: typed_name!("normalize_backward", norm.dtype),
        parameters: &[Write, Read, Read, Read, Read, Read, SIZES],
    };
    let sizes = Argument::Words(&words);
    let arguments = [operands.write(0).to_write(), dy, x, rstd, mean, weight, sizes];
    let lines = grid_of_lines(norm.rows(), norm.row_len());
    cuda.launch(image, &kernel, lines, &arguments)?;
    if !has_weight {
        return Ok(());
    }
    let [dweight, dbias, partials] = [1, 2, 3].map(|index| operands.write(index));
    let cut = Cut::of(norm);
    let (name, of_partials) = match norm.inner {
        0 | 1 => (
            typed_name!("norm_partials_of_elements", norm.dtype),
            grid(cut.partials * norm.channels),
        ),
        _ => (
            typed_name!("norm_partials_of_planes", norm.dtype),
            grid_of_lines(cut.partials * norm.channels, norm.inner),
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
