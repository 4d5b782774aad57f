//! Moves along dimensions on NVIDIA devices, see `rearrange.cu`.

use super::Rearrange;
use super::cpu::{Dimension, Edge, Map};
use crate::cuda::gate::{Argument, Parameter, Signature};
use crate::cuda::kernels::{REARRANGE, bits_of, grid};
use crate::cuda::{Cuda, CudaOperands, OnCuda};
use crate::error::Result;
use crate::layout::RANK_MAX;
use Parameter::{Read, U64, Words, Write};

/// Words of `struct Dimension`.
const DIMENSION: usize = 5;

fn words(of: &Dimension) -> [u64; DIMENSION] {
    let (kind, number) = match of.map {
        Map::Cycle { start } => (0, start),
        Map::Flip => (1, 0),
        Map::Interleave { times } => (2, times),
        Map::Pad { before, edge: Edge::Constant } => (3, before),
        Map::Pad { before, edge: Edge::Reflect } => (4, before),
        Map::Pad { before, edge: Edge::Replicate } => (5, before),
    };
    [of.len, of.stride, of.out_len, kind, number].map(|word| word as u64)
}

impl OnCuda for Rearrange {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let mut dimensions = vec![self.out_len as u64, self.dimensions.len() as u64];
        dimensions.extend(self.dimensions.iter().flat_map(words));
        dimensions.resize(2 + DIMENSION * RANK_MAX, 0);
        let size_log = self.dtype.size_bytes().ilog2() as usize;
        let kernel = Signature {
            name: ["rearrange_1", "rearrange_2", "rearrange_4", "rearrange_8"][size_log],
            parameters: &[Write, Read, U64, Words(2 + DIMENSION * RANK_MAX)],
        };
        let (y, x) = (operands.write(0).to_write(), operands.read(0).to_read());
        let fill = Argument::U64(bits_of(self.dtype, self.fill));
        let arguments = [y, x, fill, Argument::Words(&dimensions)];
        cuda.launch(REARRANGE, &kernel, grid(self.out_len), &arguments)
    }
}
