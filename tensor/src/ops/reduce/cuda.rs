//! Reductions on NVIDIA devices: partial results in the workspace that the processor takes, too.

use lowtide_allocator::cuda::{Argument, Grid, Kernel as Signature, Parameter};

use super::Reduce;
use super::cpu::Finish;
use super::extreme::{End, Extreme};
use super::fold::Fold;
use super::plan::Tasks;
use crate::cuda::kernels::{REDUCE, WALK_OF_1, grid, walk_of};
use crate::cuda::{Cuda, CudaOperands};
use crate::dtype::DType;
use crate::error::{Result, TensorError};
use Parameter::{F64, Read, U32, U64, Words, Write};

/// Threads of a block that takes a part of an output.
const THREADS: u32 = 256;

/// Threads that search a part of an output.
const WARP_THREADS: u32 = 32;

/// The most blocks of a grid; each then takes several parts.
const BLOCKS_MAX: usize = 1 << 16;

/// A fold's name in `reduce.cu`, a number, and its exponent.
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

/// A finish's name in `reduce.cu`, a number, and the number that it takes.
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

/// A plan as kernels take it.
struct Launches {
    /// `struct Parts`.
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

    /// One of two kernels over all parts, by how the input lies, and its grid: where neighbours
    /// follow each other along the reduced dimensions, so many threads take a part together.
    fn over_parts(&self, [rows, columns]: [&'static str; 2], threads: u32) -> (&'static str, Grid) {
        match self.is_by_columns {
            true => (columns, grid(self.partial_count)),
            false => (rows, Grid::row(self.partial_count.min(BLOCKS_MAX) as u32, threads)),
        }
    }

    fn walks(&self) -> [Argument<'_>; 3] {
        [&self.parts, &*self.kept, &*self.reduced].map(Argument::Words)
    }

    fn counts(&self) -> [Argument<'_>; 2] {
        [self.outputs as u64, self.parts[1]].map(Argument::U64)
    }
}

/// `Ok` if there are kernels for a reduction, which they are for f32.
pub(super) fn check(op: &Reduce) -> Result<()> {
    finish_name(op).map(drop)
}

fn finish_name(op: &Reduce) -> Result<&'static str> {
    match (op.dtype, op.reduction.result(op.dtype)) {
        (DType::F32, DType::F32) => Ok("finish_f32"),
        (DType::F32, DType::I64) => Ok("finish_i64"),
        (DType::F32, DType::Bool) => Ok("finish_bool"),
        _ => Err(TensorError::NoKernel { op: op.name, device: "cuda" }),
    }
}

/// Enqueues a reduction of f32.
pub(super) fn reduce(op: &Reduce, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
    let (x, finish_name) = (operands.read(0), finish_name(op)?);
    let plan = Tasks::new(x.layout(), op.kept_rank);
    let launches = Launches::new(&plan);
    let [y, partials, centers] = [0, 1, 2].map(|index| operands.write(index));
    let fold_all = |fold: Fold, centers: Argument<'_>| {
        let (name, grid) = launches.over_parts(["fold_rows_f32", "fold_columns_f32"], THREADS);
        let parameters = &[Write, Read, Read, U32, F64, Words(2), WALK_OF_1, WALK_OF_1];
        let (fold, exponent) = number(fold);
        let [parts, kept, reduced] = launches.walks();
        let (fold, exponent) = (Argument::U32(fold), Argument::F64(exponent));
        let from = [partials.to_write(), x.to_read(), centers, fold, exponent];
        let arguments = [&from[..], &[parts, kept, reduced]].concat();
        cuda.launch(REDUCE, &Signature { name, parameters }, grid, &arguments)
    };
    let [outputs, parts] = launches.counts();
    let mut center_values = Argument::Nothing;
    if let Some(center) = op.reduction.center() {
        fold_all(center.fold(), Argument::Nothing)?;
        let parameters = &[Write, Read, U32, U64, U64, F64];
        let kernel = Signature { name: "centers_f64", parameters };
        let fold = Argument::U32(number(center.fold()).0);
        let reduced = Argument::F64(plan.reduced as f64);
        let arguments = [centers.to_write(), partials.to_read(), fold, outputs, parts, reduced];
        cuda.launch(REDUCE, &kernel, grid(plan.outputs), &arguments)?;
        center_values = centers.to_read();
    }
    let (fold, finish) = op.reduction.steps(plan.reduced);
    fold_all(fold, center_values)?;
    let (finish, of_finish) = finish_number(finish);
    let parameters = &[Write, Read, Read, U32, U32, F64, U64, U64];
    let kernel = Signature { name: finish_name, parameters };
    let [fold, finish] = [number(fold).0, finish].map(Argument::U32);
    let of_finish = Argument::F64(of_finish);
    let from = [y.to_write(), partials.to_read(), center_values, fold, finish, of_finish];
    let arguments = [&from[..], &[outputs, parts]].concat();
    cuda.launch(REDUCE, &kernel, grid(plan.outputs), &arguments)
}

/// Enqueues a search for the largest or smallest f32.
pub(super) fn extreme(op: &Extreme, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
    let x = operands.read(0);
    let [positions, values, places] = [0, 1, 2].map(|index| operands.write(index));
    let launches = Launches::new(&Tasks::new(x.layout(), op.kept_rank));
    let end = Argument::U32(u32::from(op.end == End::Smallest));
    let names = ["best_rows_f32", "best_columns_f32"];
    let (name, on_parts) = launches.over_parts(names, WARP_THREADS);
    let parameters = &[Write, Write, Read, U32, Words(2), WALK_OF_1, WALK_OF_1];
    let [parts, kept, reduced] = launches.walks();
    let from = [values.to_write(), places.to_write(), x.to_read(), end];
    let arguments = [&from[..], &[parts, kept, reduced]].concat();
    cuda.launch(REDUCE, &Signature { name, parameters }, on_parts, &arguments)?;
    let parameters = &[Write, Write, Read, Read, U32, U64, U64];
    let kernel = Signature { name: "best_finish_f32", parameters };
    let best = if op.has_values { operands.write(3).to_write() } else { Argument::Nothing };
    let [outputs, parts] = launches.counts();
    let found = [positions.to_write(), best, values.to_read(), places.to_read(), end];
    let arguments = [&found[..], &[outputs, parts]].concat();
    cuda.launch(REDUCE, &kernel, grid(launches.outputs), &arguments)
}
