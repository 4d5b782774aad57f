//! Scans on NVIDIA devices, see `scan.cu`.

use super::Scan;
use super::cpu::{Extent, Running, ScanOrder};
use super::rows::{Backward, End, Extremes, LogCumSumExp};
use crate::cuda::gate::{Argument, Grid, Parameter, Signature};
use crate::cuda::kernels::{SCAN, WALK_OF_1, grid, typed_name, walk};
use crate::cuda::{Cuda, CudaOperands, OnCuda};
use crate::error::Result;
use Parameter::{Read, U32, Words, Write};

/// The kernel parameter `struct Lines`, in words.
const LINES: Parameter = Words(3);

/// Number of neighbouring lines from which threads with a line each read whole sectors.
const COLUMNS_MIN: usize = 32;

/// Largest number of threads of a block, which takes one line at a time.
const THREADS_MAX: usize = 512;

/// Largest number of blocks of a grid. More lines go to the same blocks.
const BLOCKS_MAX: usize = 1 << 16;

fn lines(of: &Extent) -> [u64; 3] {
    [of.before, of.along, of.after].map(|len| len as u64)
}

/// The name of one of two kernels, by lines or by columns, and its grid.
fn either(of: &Extent, [by_lines, by_columns]: [&'static str; 2]) -> (&'static str, Grid) {
    let lines = of.before * of.after;
    if of.after >= COLUMNS_MIN {
        return (by_columns, grid(lines));
    }
    let threads = of.along.next_multiple_of(32).clamp(32, THREADS_MAX);
    (by_lines, Grid::row(lines.min(BLOCKS_MAX) as u32, threads as u32))
}

// Enqueues running sums or products.
impl OnCuda for Scan {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let (x, y) = (operands.read(0), operands.write(0));
        let dtype = self.dtype;
        let (name, grid) = match self.running {
            Running::Sum => {
                let names = [typed_name!("sums_lines", dtype), typed_name!("sums_columns", dtype)];
                either(&self.extent, names)
            }
            Running::Product => {
                let lines = self.extent.before * self.extent.after;
                (typed_name!("products_columns", dtype), grid(lines))
            }
        };
        let (lines, walk) = (lines(&self.extent), walk(x.layout().shape(), [x.layout()]));
        let kernel = Signature { name, parameters: &[Write, Read, LINES, U32, WALK_OF_1] };
        let is_backwards = Argument::U32(u32::from(self.direction == ScanOrder::Backwards));
        let arguments = [
            y.to_write(),
            x.to_read(),
            Argument::Words(&lines),
            is_backwards,
            Argument::Words(&walk),
        ];
        cuda.launch(SCAN, &kernel, grid, &arguments)
    }
}

// Enqueues running extremes and their positions.
impl OnCuda for Extremes {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let (x, [y, positions]) = (operands.read(0), [0, 1].map(|index| operands.write(index)));
        let names = [
            typed_name!("extremes_lines", self.dtype),
            typed_name!("extremes_columns", self.dtype),
        ];
        let (name, grid) = either(&self.extent, names);
        let (lines, walk) = (lines(&self.extent), walk(x.layout().shape(), [x.layout()]));
        let kernel = Signature { name, parameters: &[Write, Write, Read, LINES, U32, WALK_OF_1] };
        let arguments = [
            y.to_write(),
            positions.to_write(),
            x.to_read(),
            Argument::Words(&lines),
            Argument::U32(u32::from(self.end == End::Largest)),
            Argument::Words(&walk),
        ];
        cuda.launch(SCAN, &kernel, grid, &arguments)
    }
}

// Enqueues running logarithms of sums of exponentials.
impl OnCuda for LogCumSumExp {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let (x, y) = (operands.read(0), operands.write(0));
        let names = [
            typed_name!("log_sum_exp_lines", self.dtype),
            typed_name!("log_sum_exp_columns", self.dtype),
        ];
        let (name, grid) = either(&self.extent, names);
        let (lines, walk) = (lines(&self.extent), walk(x.layout().shape(), [x.layout()]));
        let kernel = Signature { name, parameters: &[Write, Read, LINES, WALK_OF_1] };
        let words = [Argument::Words(&lines), Argument::Words(&walk)];
        cuda.launch(SCAN, &kernel, grid, &[y.to_write(), x.to_read(), words[0], words[1]])
    }
}

// Enqueues the gradient through running logarithms of sums of exponentials.
impl OnCuda for Backward {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let ([dy, x, y], dx) = ([0, 1, 2].map(|index| operands.read(index)), operands.write(0));
        let names = [
            typed_name!("log_sum_exp_backward_lines", self.dtype),
            typed_name!("log_sum_exp_backward_columns", self.dtype),
        ];
        let (name, grid) = either(&self.extent, names);
        let lines = lines(&self.extent);
        let kernel = Signature { name, parameters: &[Write, Read, Read, Read, LINES] };
        let arguments =
            [dx.to_write(), dy.to_read(), x.to_read(), y.to_read(), Argument::Words(&lines)];
        cuda.launch(SCAN, &kernel, grid, &arguments)
    }
}
