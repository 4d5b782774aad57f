//! Reductions on NVIDIA devices. Partial results use the same workspace as on the processor.

use super::Reduce;
use super::cpu::Finish;
use super::extreme::{End, Extreme};
use super::fold::Fold;
use super::plan::Tasks;
use crate::cuda::gate::{Argument, Grid, Parameter, Signature};
use crate::cuda::kernels::{REDUCE, WALK_OF_1, grid, typed_name, walk_of};
use crate::cuda::{Cuda, CudaOperands, OnCuda};
use crate::dtype::DType;
use crate::error::Result;
use Parameter::{F64, Read, U32, U64, Words, Write};

/// Threads of a block that takes a part of an output.
const THREADS: u32 = 256;

/// Threads that search one part of an output.
const WARP_THREADS: u32 = 32;

/// Largest number of blocks of a grid. More parts go to the same blocks.
const BLOCKS_MAX: usize = 1 << 16;

/// A fold's number in `reduce.cu`, and the fold's exponent.
fn number(fold: Fold) -> (u32, f64) {
    match fold {
        Fold::Sum => (0, 0.0),
        Fold::Prod => (1, 0.0),
        Fold::Max => (2, 0.0),
        Fold::Min => (3, 0.0),
        Fold::Count => (4, 0.0),
        Fold::AbsSum => (5, 0.0),
        Fold::AbsMax => (6, 0.0),
        Fold::AbsMin => (7, 0.0),
        Fold::SquareSum => (8, 0.0),
        Fold::PowerSum(exponent) => (9, exponent),
        Fold::SquaredDistance => (10, 0.0),
        Fold::ExpSum => (11, 0.0),
    }
}

/// A finish's number in `reduce.cu`, and the finish's parameter.
fn finish_number(finish: Finish) -> (u32, f64) {
    match finish {
        Finish::Keep => (0, 0.0),
        Finish::Divide(divisor) => (1, divisor),
        Finish::Root(divisor) => (2, divisor),
        Finish::Power(exponent) => (3, exponent),
        Finish::Log => (4, 0.0),
        Finish::AtLeast(least) => (5, least),
    }
}

/// A plan in the form that kernels take.
struct Launches {
    /// The words of the kernel parameter `struct Parts`.
    parts: [u64; 2],
    kept: Vec<u64>,
    reduced: Vec<u64>,
    is_by_columns: bool,
    outputs: usize,
    partial_count: usize,
}

impl Launches {
    fn new(plan: &Tasks) -> Self {
        Launches {
            parts: [plan.reduced_len, plan.parts()].map(|len| len as u64),
            kept: walk_of(&plan.kept, plan.outputs),
            reduced: walk_of(&plan.inner, plan.reduced),
            is_by_columns: plan.is_by_lines,
            outputs: plan.outputs,
            partial_count: plan.partial_count(),
        }
    }

    /// The name of one of two kernels over all parts, and its grid. If elements are contiguous
    /// along the reduced dimensions, many threads take a part together (`rows`); else a thread
    /// takes a part (`columns`).
    fn over_parts(&self, [rows, columns]: [&'static str; 2], threads: u32) -> (&'static str, Grid) {
        match self.is_by_columns {
            true => (columns, grid(self.partial_count)),
            false => (rows, Grid::row(self.partial_count.min(BLOCKS_MAX) as u32, threads)),
        }
    }

    /// The grid of a kernel that merges the parts of each output.
    fn over_outputs(&self) -> Grid {
        let lanes = if self.parts[1] >= WARP_PARTS as u64 { WARP_THREADS as usize } else { 1 };
        grid(self.outputs * lanes)
    }

    fn walks(&self) -> [Argument<'_>; 3] {
        [&self.parts, &*self.kept, &*self.reduced].map(Argument::Words)
    }

    fn counts(&self) -> [Argument<'_>; 2] {
        [self.outputs as u64, self.parts[1]].map(Argument::U64)
    }
}

/// Number of partial results of an output from which a warp merges them instead of a thread.
const WARP_PARTS: usize = 32;

/// The name of the kernel that writes the results.
fn finish_name(op: &Reduce) -> &'static str {
    match (op.reduction.result(op.dtype), op.dtype) {
        (result, dtype) if result == dtype => typed_name!("finish", dtype),
        (DType::Bool, dtype) => typed_name!("finish_bool", dtype),
        (_, dtype) => typed_name!("finish_i64", dtype),
    }
}

// Enqueues a reduction.
impl OnCuda for Reduce {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let (x, dtype, image) = (operands.read(0), self.dtype, REDUCE.of(self.dtype));
        let plan = Tasks::new(x.layout(), self.kept_rank);
        let launches = Launches::new(&plan);
        let [y, partials, centers] = [0, 1, 2].map(|index| operands.write(index));
        let fold_all = |fold: Fold, centers: Argument<'_>| {
            let names = [typed_name!("fold_rows", dtype), typed_name!("fold_columns", dtype)];
            let (name, grid) = launches.over_parts(names, THREADS);
            let parameters = &[Write, Read, Read, U32, F64, Words(2), WALK_OF_1, WALK_OF_1];
            let (fold, exponent) = number(fold);
            let [parts, kept, reduced] = launches.walks();
            let (fold, exponent) = (Argument::U32(fold), Argument::F64(exponent));
            let from = [partials.to_write(), x.to_read(), centers, fold, exponent];
            let arguments = [&from[..], &[parts, kept, reduced]].concat();
            cuda.launch(image, &Signature { name, parameters }, grid, &arguments)
        };
        let [outputs, parts] = launches.counts();
        let mut center_values = Argument::Nothing;
        if let Some(center) = self.reduction.center() {
            fold_all(center.fold(), Argument::Nothing)?;
            let parameters = &[Write, Read, U32, U64, U64, F64];
            let kernel = Signature { name: typed_name!("centers", dtype), parameters };
            let fold = Argument::U32(number(center.fold()).0);
            let reduced = Argument::F64(plan.reduced as f64);
            let arguments = [centers.to_write(), partials.to_read(), fold, outputs, parts, reduced];
            cuda.launch(image, &kernel, launches.over_outputs(), &arguments)?;
            center_values = centers.to_read();
        }
        let (fold, finish) = self.reduction.steps(plan.reduced);
        fold_all(fold, center_values)?;
        let (finish, of_finish) = finish_number(finish);
        let parameters = &[Write, Read, Read, U32, U32, F64, U64, U64];
        let kernel = Signature { name: finish_name(&self), parameters };
        let [fold, finish] = [number(fold).0, finish].map(Argument::U32);
        let of_finish = Argument::F64(of_finish);
        let from = [y.to_write(), partials.to_read(), center_values, fold, finish, of_finish];
        let arguments = [&from[..], &[outputs, parts]].concat();
        cuda.launch(image, &kernel, launches.over_outputs(), &arguments)
    }
}

// Enqueues a search for the largest or smallest elements.
impl OnCuda for Extreme {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let (x, dtype, image) = (operands.read(0), self.dtype, REDUCE.of(self.dtype));
        let [positions, values, places] = [0, 1, 2].map(|index| operands.write(index));
        let launches = Launches::new(&Tasks::new(x.layout(), self.kept_rank));
        let end = Argument::U32(u32::from(self.end == End::Smallest));
        let names = [typed_name!("best_rows", dtype), typed_name!("best_columns", dtype)];
        let (name, on_parts) = launches.over_parts(names, WARP_THREADS);
        let parameters = &[Write, Write, Read, U32, Words(2), WALK_OF_1, WALK_OF_1];
        let [parts, kept, reduced] = launches.walks();
        let from = [values.to_write(), places.to_write(), x.to_read(), end];
        let arguments = [&from[..], &[parts, kept, reduced]].concat();
        cuda.launch(image, &Signature { name, parameters }, on_parts, &arguments)?;
        let parameters = &[Write, Write, Read, Read, U32, U64, U64];
        let kernel = Signature { name: typed_name!("best_finish", dtype), parameters };
        let best = if self.has_values { operands.write(3).to_write() } else { Argument::Nothing };
        let [outputs, parts] = launches.counts();
        let found = [positions.to_write(), best, values.to_read(), places.to_read(), end];
        let arguments = [&found[..], &[outputs, parts]].concat();
        cuda.launch(image, &kernel, launches.over_outputs(), &arguments)
    }
}
