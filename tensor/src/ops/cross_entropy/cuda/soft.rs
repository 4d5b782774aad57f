//! Cross-entropy with probabilities on NVIDIA devices, see `soft.cu`.

use crate::cpu::lines::Blocks;
use crate::cuda::gate::{Argument, Grid, Parameter, Signature};
use crate::cuda::kernels::{SOFT, typed_name};
use crate::cuda::{Cuda, CudaOperands, OnCuda};
use crate::error::Result;
use crate::ops::cross_entropy::soft::{
    BackwardKernel, COLUMN_THREADS, ForwardKernel, Soft, partial_count,
};
use Parameter::{Read, U64, Words, Write};

/// Parameters of the CUDA kernels, in words: `struct Shares` and `struct Classes`.
const SHARES: Parameter = Words(2);
const CLASSES: Parameter = Words(3);

/// The grid of blocks that each take a position, or of threads that each take one or more
/// positions.
fn grid(blocks: Blocks) -> Grid {
    let threads = if is_by_rows(blocks) { blocks.len } else { COLUMN_THREADS };
    let threads = threads.next_multiple_of(32).min(COLUMN_THREADS);
    Grid::row(partial_count(blocks) as u32, threads as u32)
}

fn is_by_rows(blocks: Blocks) -> bool {
    blocks.inner == 1
}

impl Soft {
    fn classes(&self) -> [u64; 3] {
        let Blocks { outer, len, inner } = self.blocks;
        [len, outer * inner, inner].map(|size| size as u64)
    }

    fn shares(&self) -> [u64; 2] {
        let spread = self.smoothing / self.blocks.len as f64;
        [1.0 - self.smoothing, spread].map(f64::to_bits)
    }

    fn weight<'a>(&self, operands: &CudaOperands<'a>) -> Argument<'a> {
        operands.read_if(self.has_weight, operands.read_count() - 1)
    }
}

// Enqueues the loss.
impl OnCuda for ForwardKernel {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let [target, x] = [0, 1].map(|index| operands.read(index));
        let [sum, count, lse, partials] = [0, 1, 2, 3].map(|index| operands.write(index));
        let (classes, shares, grid) = (self.0.classes(), self.0.shares(), grid(self.0.blocks));
        let image = SOFT.of(self.0.dtype);
        let name = if is_by_rows(self.0.blocks) {
            typed_name!("soft_rows", self.0.dtype)
        } else {
            typed_name!("soft_columns", self.0.dtype)
        };
        let parameters = &[Write, Write, Read, Read, Read, SHARES, CLASSES];
        let arguments = [
            partials.to_write(),
            lse.to_write(),
            x.to_read(),
            target.to_read(),
            self.0.weight(operands),
            Argument::Words(&shares),
            Argument::Words(&classes),
        ];
        cuda.launch(image, &Signature { name, parameters }, grid, &arguments)?;
        let name = typed_name!("soft_sum", self.0.dtype);
        let kernel = Signature { name, parameters: &[Write, Write, Read, U64, U64] };
        let arguments = [
            sum.to_write(),
            count.to_write(),
            partials.to_read(),
            Argument::U64(u64::from(grid.blocks[0])),
            Argument::U64(classes[1]),
        ];
        // One block adds in a fixed order.
        cuda.launch(image, &kernel, Grid::row(1, COLUMN_THREADS as u32), &arguments)
    }
}

// Enqueues the gradient of the logits.
impl OnCuda for BackwardKernel {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let [target, lse, dy] = [0, 1, 2].map(|index| operands.read(index));
        let dx = operands.write(0);
        let has_x = operands.read_count() - usize::from(self.0.has_weight) == 4;
        let x = if has_x { operands.read(3) } else { dx };
        let (classes, shares) = (self.0.classes(), self.0.shares());
        let name = if is_by_rows(self.0.blocks) {
            typed_name!("soft_backward_rows", self.0.dtype)
        } else {
            typed_name!("soft_backward_columns", self.0.dtype)
        };
        let parameters = &[Write, Read, Read, Read, Read, Read, SHARES, CLASSES];
        let arguments = [
            dx.to_write(),
            x.to_read(),
            lse.to_read(),
            target.to_read(),
            dy.to_read(),
            self.0.weight(operands),
            Argument::Words(&shares),
            Argument::Words(&classes),
        ];
        let kernel = Signature { name, parameters };
        cuda.launch(SOFT.of(self.0.dtype), &kernel, grid(self.0.blocks), &arguments)
    }
}
