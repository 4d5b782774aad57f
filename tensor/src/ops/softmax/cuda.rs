//! Softmax and its gradients on NVIDIA devices, see `softmax.cu`.

use super::Rows;
use crate::cpu::lines::Blocks;
use crate::cuda::gate::{Argument, Parameter, Signature};
use crate::cuda::kernels::{LineGroups, SOFTMAX, typed_name};
use crate::cuda::{Cuda, CudaOperands, OnCuda};
use crate::error::{Result, TensorError};
use crate::ops::direction::Direction;
use Parameter::{Read, U32, Words, Write};

/// The kernel parameter `struct Blocks`, in words.
const BLOCKS: Parameter = Words(3);

/// Largest number of blocks of a grid. More lines go to the same blocks.
const BLOCKS_MAX: u32 = 1 << 16;

impl OnCuda for Rows {
    fn check(&self, operands: &CudaOperands<'_>) -> Result<()> {
        // Kernels take contiguous operands.
        if operands.reads.iter().chain(operands.writes).all(|one| one.layout().is_contiguous()) {
            return Ok(());
        }
        Err(TensorError::NoKernel { op: self.softmax.name, device: "cuda" })
    }

    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let Blocks { outer, len, inner } = self.blocks;
        let is_backward = self.softmax.direction == Direction::Backward;
        let source_count = operands.read_count() - usize::from(is_backward);
        let to = operands.write(0).to_write();
        let source = operands.read_if(source_count == 1, 0);
        let words = [outer, len, inner].map(|size| size as u64);
        let (is_log, sizes) =
            (Argument::U32(u32::from(self.softmax.is_log)), Argument::Words(&words));
        let (image, dtype) = (SOFTMAX.of(self.dtype), self.dtype);
        let groups = LineGroups::of(self.blocks, dtype, BLOCKS_MAX);
        let (grid, lanes) = (groups.grid(), Argument::U32(groups.lanes));
        if is_backward {
            let kernel = Signature {
                name: typed_name!("softmax_backward", dtype),
                parameters: &[Write, Read, Read, U32, BLOCKS, U32],
            };
            let y = operands.read(source_count).to_read();
            return cuda.launch(image, &kernel, grid, &[to, source, y, is_log, sizes, lanes]);
        }
        let kernel = Signature {
            name: typed_name!("softmax", dtype),
            parameters: &[Write, Read, U32, BLOCKS, U32],
        };
        cuda.launch(image, &kernel, grid, &[to, source, is_log, sizes, lanes])
    }
}
