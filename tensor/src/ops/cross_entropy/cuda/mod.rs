//! Both directions on NVIDIA devices, see `cross_entropy.cu`.

mod nll;
mod soft;

use super::{Backward, Forward, Positions};
use crate::cuda::gate::{Argument, Grid, Parameter, Signature};
use crate::cuda::kernels::{CROSS_ENTROPY, LineGroups, typed_name};
use crate::cuda::{Checked, Cuda, CudaOperands, OnCuda};
use crate::error::Result;

/// The parameter `struct Targets` of the CUDA kernels, in words.
const TARGETS: Parameter = Parameter::Words(4);

/// Threads of the block that adds up the sums of the other blocks.
const SUM_THREADS: u32 = 256;

/// Number of blocks that keeps the largest devices busy. With more positions than blocks, each
/// block takes several positions and leaves one sum.
const BLOCKS_MAX: u32 = 2048;

impl Positions {
    /// The parameter `struct Targets` of the CUDA kernels, in words.
    fn words(&self) -> [u64; 4] {
        let (classes, inner) = (self.blocks.len as u64, self.blocks.inner as u64);
        let positions = (self.blocks.outer * self.blocks.inner) as u64;
        [classes, self.ignore_index.cast_unsigned(), positions, inner]
    }

    fn groups(&self) -> LineGroups {
        LineGroups::of(self.blocks, self.dtype, BLOCKS_MAX)
    }

    fn weight<'a>(&self, operands: &CudaOperands<'a>) -> Argument<'a> {
        operands.read_if(self.has_weight, operands.read_count() - 1)
    }
}

// Enqueues the loss. The next read of a value reports labels that are out of range.
impl OnCuda for Forward {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        use Parameter::{F64, Read, U32, U64, Write};
        let [labels, x] = [0, 1].map(|index| operands.read(index));
        let [sum, count, lse, loss, weight] = [0, 1, 2, 3, 4].map(|index| operands.write(index));
        let words = self.0.words();
        let targets = Argument::Words(&words);
        let kernel = Signature {
            name: typed_name!("cross_entropy", self.0.dtype),
            parameters: &[Write, Write, Write, Read, Read, Read, F64, TARGETS, U32],
        };
        let groups = self.0.groups();
        let results = [lse.to_write(), loss.to_write(), weight.to_write()];
        let sources = [x.to_read(), labels.to_read(), self.0.weight(operands)];
        let rest = [Argument::F64(self.0.smoothing), targets, Argument::U32(groups.lanes)];
        let arguments = [&results[..], &sources, &rest].concat();
        cuda.launch(CROSS_ENTROPY.of(self.0.dtype), &kernel, groups.grid(), &arguments)?;
        let kernel = Signature {
            name: typed_name!("cross_entropy_sum", self.0.dtype),
            parameters: &[Write, Write, Write, Read, Read, U64, Read, TARGETS, U64],
        };
        let number =
            Argument::U64(Checked::Labels(self.0.name).number().expect("it is one of them"));
        let parts = Argument::U64(u64::from(groups.blocks));
        let sources = [loss.to_read(), weight.to_read(), parts, labels.to_read(), targets, number];
        cuda.with_complaint(|complaint| {
            let arguments = [&[sum.to_write(), count.to_write(), complaint], &sources[..]].concat();
            // One block adds the sums in a fixed order.
            cuda.launch(
                CROSS_ENTROPY.of(self.0.dtype),
                &kernel,
                Grid::row(1, SUM_THREADS),
                &arguments,
            )
        })
    }
}

// Enqueues the gradient. Forward has checked the labels. If a label has changed since then and is
// out of range, its gradients are NaN.
impl OnCuda for Backward {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        use Parameter::{F64, Read, U32, Write};
        let kernel = Signature {
            name: typed_name!("cross_entropy_backward", self.0.dtype),
            parameters: &[Write, Read, Read, Read, Read, Read, F64, TARGETS, U32],
        };
        let [labels, lse, dy] = [0, 1, 2].map(|index| operands.read(index));
        let dx = operands.write(0);
        let has_x = operands.read_count() - usize::from(self.0.has_weight) == 4;
        let x = if has_x { operands.read(3) } else { dx };
        let (words, groups) = (self.0.words(), self.0.groups());
        let arguments = [
            dx.to_write(),
            x.to_read(),
            lse.to_read(),
            labels.to_read(),
            self.0.weight(operands),
            dy.to_read(),
            Argument::F64(self.0.smoothing),
            Argument::Words(&words),
            Argument::U32(groups.lanes),
        ];
        cuda.launch(CROSS_ENTROPY.of(self.0.dtype), &kernel, groups.grid(), &arguments)
    }
}
