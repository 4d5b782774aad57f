//! Distances of rows on NVIDIA devices, see `cdist.cu`.

use super::{Backward, Forward, Sizes};
use crate::cuda::gate::{Argument, Grid, Parameter, Signature};
use crate::cuda::kernels::{CDIST, grid, typed_name};
use crate::cuda::{Cuda, CudaOperands, DeviceOperand, OnCuda};
use crate::error::Result;
use Parameter::{F64, Read, U32, Words, Write};

/// The kernel parameters `struct Sizes` and `struct Pairs`, in words.
const SIZES: Parameter = Words(4);
const PAIRS: Parameter = Words(3);

/// Rows of x and rows of y whose distances a block takes, and threads along each side of the block.
const SIDE: usize = 16;
const THREADS: u32 = 256;

/// Largest number of blocks of a grid. More tiles go to the same blocks.
const BLOCKS_MAX: usize = 1 << 16;

impl Sizes {
    fn words(&self) -> [u64; 4] {
        let Sizes { batch, rows: [m, r], len, .. } = *self;
        [batch, m, r, len].map(|size| size as u64)
    }

    /// The order's number in `cdist.cu`, and the order.
    fn order(&self) -> [Argument<'static>; 2] {
        let number = match self.order {
            0.0 => 0,
            1.0 => 1,
            2.0 => 2,
            f64::INFINITY => 3,
            _ => 4,
        };
        [Argument::U32(number), Argument::F64(self.order)]
    }
}

// Enqueues the distances.
impl OnCuda for Forward {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let ([x, y], d) = ([0, 1].map(|index| operands.read(index)), operands.write(0));
        let [order, power] = self.0.order();
        let name = typed_name!("cdist", self.0.dtype);
        let kernel = Signature { name, parameters: &[Write, Read, Read, U32, F64, SIZES] };
        let words = self.0.words();
        let sizes = Argument::Words(&words);
        let arguments = [d.to_write(), x.to_read(), y.to_read(), order, power, sizes];
        let tiles = self.0.batch * self.0.rows[0].div_ceil(SIDE) * self.0.rows[1].div_ceil(SIDE);
        let blocks = Grid::row(tiles.min(BLOCKS_MAX) as u32, THREADS);
        cuda.launch(CDIST.of(self.0.dtype), &kernel, blocks, &arguments)
    }
}

// Enqueues the gradient of x.
impl OnCuda for Backward {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let ([dy, d, x, y], dx) =
            ([0, 1, 2, 3].map(|index| operands.read(index)), operands.write(0));
        let [order, power] = self.0.order();
        let kernel = Signature {
            name: typed_name!("cdist_backward", self.0.dtype),
            parameters: &[Write, Read, Read, Read, Read, U32, F64, SIZES, PAIRS, PAIRS],
        };
        let pairs = |of: &DeviceOperand<'_>| -> Vec<u64> {
            of.layout().strides().iter().map(|&stride| stride as u64).collect()
        };
        let (sizes, of_dy, of_d) = (self.0.words(), pairs(&dy), pairs(&d));
        let words = [&sizes[..], &of_dy, &of_d].map(Argument::Words);
        let sources = [dy.to_read(), d.to_read(), x.to_read(), y.to_read()];
        let arguments = [&[dx.to_write()], &sources[..], &[order, power], &words].concat();
        let len = self.0.batch * self.0.rows[0] * self.0.len;
        cuda.launch(CDIST.of(self.0.dtype), &kernel, grid(len), &arguments)
    }
}
