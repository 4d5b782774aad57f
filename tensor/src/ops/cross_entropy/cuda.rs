//! Both directions on NVIDIA devices, see `cross_entropy.cu`.

use lowtide_allocator::cuda::{Argument, Grid, Kernel as Signature, Parameter};

use super::Positions;
use crate::cpu::lines::Blocks;
use crate::cuda::kernels::{CROSS_ENTROPY, typed_name};
use crate::cuda::{Checked, Cuda, CudaOperands};
use crate::error::Result;

/// `struct Targets`.
const TARGETS: Parameter = Parameter::Words(4);

/// Threads of a block, at most; it takes whole positions.
const THREADS_MAX: usize = 256;

/// Blocks that keep the largest devices busy; each then takes more positions.
const BLOCKS_MAX: usize = 4096;

/// A block for each position, or for several.
fn grid(blocks: Blocks) -> Grid {
    let threads = blocks.len.next_multiple_of(32).min(THREADS_MAX);
    Grid::row((blocks.outer * blocks.inner).min(BLOCKS_MAX) as u32, threads as u32)
}

impl Positions {
    /// `struct Targets`.
    fn words(&self) -> [u64; 4] {
        let (classes, inner) = (self.blocks.len as u64, self.blocks.inner as u64);
        let positions = (self.blocks.outer * self.blocks.inner) as u64;
        [classes, self.ignore_index.cast_unsigned(), positions, inner]
    }

    fn weight<'a>(&self, operands: &CudaOperands<'a>) -> Argument<'a> {
        match self.has_weight {
            true => operands.read(operands.read_count() - 1).to_read(),
            false => Argument::Nothing,
        }
    }
}

/// Enqueues the loss. What it finds about the labels is told to who reads a value.
pub(super) fn forward(of: &Positions, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
    use Parameter::{F64, Read, U64, Write};
    let [labels, x] = [0, 1].map(|index| operands.read(index));
    let [sum, count, lse, loss, weight] = [0, 1, 2, 3, 4].map(|index| operands.write(index));
    let words = of.words();
    let targets = Argument::Words(&words);
    let kernel = Signature {
        name: typed_name!("cross_entropy", of.dtype),
        parameters: &[Write, Write, Write, Read, Read, Read, F64, TARGETS],
    };
    let results = [lse.to_write(), loss.to_write(), weight.to_write()];
    let sources = [x.to_read(), labels.to_read(), of.weight(operands)];
    let rest = [Argument::F64(of.smoothing), targets];
    let arguments = [&results[..], &sources, &rest].concat();
    cuda.launch(CROSS_ENTROPY.of(of.dtype), &kernel, grid(of.blocks), &arguments)?;
    let kernel = Signature {
        name: typed_name!("cross_entropy_sum", of.dtype),
        parameters: &[Write, Write, Write, Read, Read, Read, TARGETS, U64],
    };
    let number = Argument::U64(Checked::Labels(of.name).number().expect("it is one of them"));
    let sources = [loss.to_read(), weight.to_read(), labels.to_read(), targets, number];
    cuda.with_complaint(|complaint| {
        let arguments = [&[sum.to_write(), count.to_write(), complaint], &sources[..]].concat();
        // One block: it adds in one order.
        cuda.launch(
            CROSS_ENTROPY.of(of.dtype),
            &kernel,
            Grid::row(1, THREADS_MAX as u32),
            &arguments,
        )
    })
}

/// Enqueues the gradient. Forward has read the labels; what has become of them since is for
/// the kernel to tell, by NaN.
pub(super) fn backward(of: &Positions, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
    use Parameter::{F64, Read, Write};
    let kernel = Signature {
        name: typed_name!("cross_entropy_backward", of.dtype),
        parameters: &[Write, Read, Read, Read, Read, Read, F64, TARGETS],
    };
    let [labels, lse, dy] = [0, 1, 2].map(|index| operands.read(index));
    let dx = operands.write(0);
    let has_x = operands.read_count() - usize::from(of.has_weight) == 4;
    let x = if has_x { operands.read(3) } else { dx };
    let words = of.words();
    let arguments = [
        dx.to_write(),
        x.to_read(),
        lse.to_read(),
        labels.to_read(),
        of.weight(operands),
        dy.to_read(),
        Argument::F64(of.smoothing),
        Argument::Words(&words),
    ];
    cuda.launch(CROSS_ENTROPY.of(of.dtype), &kernel, grid(of.blocks), &arguments)
}
