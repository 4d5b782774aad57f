//! Unique rows on NVIDIA devices, see `unique.cu`.

use super::{Runs, SortRows, TILE_LEN};
use crate::cuda::gate::{Argument, Grid, Parameter, Signature};
use crate::cuda::kernels::{UNIQUE, grid, typed_name};
use crate::cuda::{Cuda, CudaOperands, OnCuda};
use crate::error::Result;
use crate::ops::compaction::cuda::{add_up, read_sum};
use Parameter::{Read, U32, U64, Write};

/// Threads of a block that takes a tile.
const THREADS: u32 = 256;

// Enqueues the sort of the positions of all rows, by the rows.
impl OnCuda for SortRows {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let (x, positions) = (operands.read(0), operands.write(0));
        let kernel = Signature { name: "count_up", parameters: &[Write, U64] };
        let count = Argument::U64(self.rows as u64);
        cuda.launch(UNIQUE, &kernel, grid(self.rows), &[positions.to_write(), count])?;
        if self.rows < 2 {
            return Ok(());
        }
        let len_log = self.rows.next_power_of_two().ilog2();
        let pairs = 1_usize << (len_log - 1);
        let kernel = Signature {
            name: typed_name!("sort_step", self.dtype),
            parameters: &[Write, Read, U64, U64, U64, U32, U32],
        };
        let step = |step_log: u32, is_mirrored: u32| {
            let [row_len, pairs_len] = [self.row_len, pairs].map(|len| Argument::U64(len as u64));
            let numbers = [step_log, is_mirrored].map(Argument::U32);
            let arguments = [
                positions.to_write(),
                x.to_read(),
                row_len,
                count,
                pairs_len,
                numbers[0],
                numbers[1],
            ];
            cuda.launch(UNIQUE, &kernel, grid(pairs), &arguments)
        };
        for size_log in 1..=len_log {
            step(size_log - 1, 1)?;
            (0..size_log - 1).rev().try_for_each(|step_log| step(step_log, 0))?;
        }
        Ok(())
    }
}

// Enqueues the unique rows, the index of the unique row for each row, and the counts. Waits for
// the number of unique rows.
impl OnCuda for Runs<'_> {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let x = operands.read(0);
        let positions = operands.read_if(operands.read_count() > 1, 1);
        let [values, inverse, counts, firsts, sum] = [0, 1, 2, 3, 4].map(|at| operands.write(at));
        cuda.fill(&counts, counts.bytes(), 0)?;
        let tiles = self.rows.div_ceil(TILE_LEN);
        let blocks = Grid::row(tiles as u32, THREADS);
        let sizes = [self.row_len, self.rows].map(|len| Argument::U64(len as u64));
        let kernel = Signature {
            name: typed_name!("count_new", self.dtype),
            parameters: &[Write, Read, Read, U64, U64],
        };
        let arguments = [firsts.to_write(), x.to_read(), positions, sizes[0], sizes[1]];
        cuda.launch(UNIQUE, &kernel, blocks, &arguments)?;
        add_up(cuda, &firsts, &sum, tiles)?;
        let kernel = Signature {
            name: typed_name!("put_new", self.dtype),
            parameters: &[Write, Write, Write, Read, Read, Read, U64, U64],
        };
        let arguments = [
            values.to_write(),
            inverse.to_write(),
            counts.to_write(),
            firsts.to_read(),
            x.to_read(),
            positions,
            sizes[0],
            sizes[1],
        ];
        cuda.launch(UNIQUE, &kernel, blocks, &arguments)?;
        *self.count = read_sum(cuda, &sum)?;
        Ok(())
    }
}
