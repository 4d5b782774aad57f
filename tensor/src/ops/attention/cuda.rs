//! Both directions on NVIDIA devices, see `attention.cu`.

use super::block::Sizes;
use super::{Backward, Causal, Forward, Launch};
use crate::cuda::gate::{Argument, Grid, Parameter, Signature};
use crate::cuda::kernels::{ATTENTION, typed_name};
use crate::cuda::{Cuda, CudaOperands, OnCuda};
use crate::dtype::DType;
use crate::error::Result;
use Parameter::{F64, Read, Words, Write};

/// The kernel parameter `struct Dropout`, in words.
const DROPOUT: Parameter = Words(4);

/// The kernel parameter `struct Problem`, in words.
const PROBLEM: Parameter = Words(33);

/// Threads of a block that sums y · dy, and the queries that the block takes one by one.
const DELTA_THREADS: u32 = 256;
const DELTA_QUERIES: usize = 8;

/// Largest number of blocks of a grid. More work goes to the same blocks.
const BLOCKS_MAX: usize = 1 << 16;

fn grid(blocks: usize, threads: u32) -> Grid {
    Grid::row(blocks.min(BLOCKS_MAX) as u32, threads)
}

/// A kernel, and the number of result columns that a block takes.
struct Pass {
    name: &'static str,
    columns: usize,
}

/// The kernels of a launch, with the rows and threads of their blocks.
struct Passes {
    forward: Pass,
    dq: Pass,
    dk_dv: Pass,
    rows: usize,
    threads: u32,
}

impl Passes {
    /// The kernels for the launch. Tensor cores take half types of up to 128 columns.
    fn new(launch: &Launch) -> Self {
        let Sizes { queries, keys, dim, v_dim, .. } = launch.sizes;
        let dtype = launch.dtype;
        let pass = |name, columns| Pass { name, columns };
        let is_half = matches!(dtype, DType::F16 | DType::BF16);
        match dim.max(v_dim) {
            0..=64 if is_half && queries.max(keys) < 1 << 31 => Passes {
                forward: pass(typed_name!("attention_64", dtype), 64),
                dq: pass(typed_name!("attention_dq_64", dtype), 64),
                dk_dv: pass(typed_name!("attention_dk_dv_64", dtype), 64),
                rows: 64,
                threads: 128,
            },
            65..=128 if is_half && queries.max(keys) < 1 << 31 => Passes {
                forward: pass(typed_name!("attention_128", dtype), 128),
                dq: pass(typed_name!("attention_dq_128", dtype), 128),
                dk_dv: pass(typed_name!("attention_dk_dv_128", dtype), 64),
                rows: 64,
                threads: 128,
            },
            _ => {
                let columns = if dtype == DType::F64 { 64 } else { 128 };
                Passes {
                    forward: pass(typed_name!("attention", dtype), columns),
                    dq: pass(typed_name!("attention_dq", dtype), columns),
                    dk_dv: pass(typed_name!("attention_dk_dv", dtype), columns),
                    rows: 32,
                    threads: 256,
                }
            }
        }
    }

    /// The grid for heads of `rows` rows, where each row's columns take `parts` blocks.
    fn grid(&self, heads: usize, rows: usize, parts: usize) -> Grid {
        grid(heads * rows.div_ceil(self.rows) * parts, self.threads)
    }
}

/// The sizes and options that all kernels take besides their operands.
struct Told<'a> {
    keep: Argument<'a>,
    add: Argument<'a>,
    scale: f64,
    dropout: [u64; 4],
    problem: [u64; 33],
}

impl<'a> Told<'a> {
    /// Collects the arguments; `mask`, `y` and `dy` are operand indices.
    fn new(
        launch: &Launch,
        operands: &CudaOperands<'a>,
        mask: Option<usize>,
        [y, dy]: [Option<usize>; 2],
    ) -> Self {
        let Sizes { batch, heads, groups, queries, keys, dim, v_dim } = launch.sizes;
        let options = &launch.options;
        let causal = match options.causal {
            Causal::No => 0,
            Causal::UpperLeft => 1,
            Causal::LowerRight => 2,
        };
        let dropout = options.dropout.filter(|dropout| dropout.probability > 0.0);
        let first_sample = dropout.map_or(0, |dropout| dropout.first_sample);
        let sizes = [batch, heads, groups, queries, keys, dim, v_dim].map(|size| size as u64);
        let mut problem = [0; 33];
        problem[..7].copy_from_slice(&sizes);
        problem[7..9].copy_from_slice(&[causal, first_sample]);
        let places = [Some(0), Some(1), Some(2), mask, y, dy];
        for (to, index) in problem[9..].chunks_exact_mut(4).zip(places) {
            let Some(index) = index else { continue };
            let layout = operands.read(index).layout();
            to.iter_mut().zip(layout.strides()).for_each(|(to, &stride)| *to = stride as u64);
        }
        let dropout = dropout.map_or([0; 4], |dropout| {
            let kept = 1.0 - dropout.probability;
            let factor: f64 = if kept > 0.0 { 1.0 / kept } else { 0.0 };
            let [seed, stream] = dropout.key.stream_words();
            [dropout.probability.to_bits(), factor.to_bits(), seed, stream]
        });
        let (mut keep, mut add) = (Argument::Nothing, Argument::Nothing);
        if let Some(mask) = mask.map(|index| operands.read(index)) {
            let to = if mask.dtype() == DType::Bool { &mut keep } else { &mut add };
            *to = mask.to_read();
        }
        Told { keep, add, scale: options.factor(dim), dropout, problem }
    }

    fn arguments(&self) -> [Argument<'_>; 5] {
        let (dropout, problem) = (Argument::Words(&self.dropout), Argument::Words(&self.problem));
        [self.keep, self.add, Argument::F64(self.scale), dropout, problem]
    }
}

impl OnCuda for Forward {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let mask = (operands.read_count() > 3).then_some(3);
        let told = Told::new(&self.0, operands, mask, [None; 2]);
        let Sizes { batch, heads, queries, v_dim, .. } = self.0.sizes;
        let passes = Passes::new(&self.0);
        let kernel = Signature {
            name: passes.forward.name,
            parameters: &[Write, Write, Read, Read, Read, Read, Read, F64, DROPOUT, PROBLEM],
        };
        let results = [0, 1].map(|index| operands.write(index).to_write());
        let sources = [0, 1, 2].map(|index| operands.read(index).to_read());
        let arguments = [&results[..], &sources, &told.arguments()].concat();
        let parts = v_dim.div_ceil(passes.forward.columns).max(1);
        let grid = passes.grid(batch * heads, queries, parts);
        cuda.launch(ATTENTION.of(self.0.dtype), &kernel, grid, &arguments)
    }
}

// Reads q, k, v, y, dy, lse and perhaps the mask; writes dq, dk, dv and Σ dy·y.
impl OnCuda for Backward {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let mask = (operands.read_count() > 6).then_some(6);
        let told = Told::new(&self.0, operands, mask, [Some(3), Some(4)]);
        let Sizes { batch, heads, groups, queries, keys, dim, v_dim } = self.0.sizes;
        let image = ATTENTION.of(self.0.dtype);
        let [q, k, v, y, dy, lse] = [0, 1, 2, 3, 4, 5].map(|index| operands.read(index).to_read());
        let [dq, dk, dv] = [0, 1, 2].map(|index| operands.write(index).to_write());
        let delta = operands.write(3);
        let kernel = Signature {
            name: typed_name!("attention_delta", self.0.dtype),
            parameters: &[Write, Read, Read, PROBLEM],
        };
        let arguments = [delta.to_write(), y, dy, Argument::Words(&told.problem)];
        let blocks = (batch * heads * queries).div_ceil(DELTA_QUERIES);
        cuda.launch(image, &kernel, grid(blocks, DELTA_THREADS), &arguments)?;
        let passes = Passes::new(&self.0);
        let sources = [q, k, v, dy, lse, delta.to_read()];
        let kernel = Signature {
            name: passes.dq.name,
            parameters: &[
                Write, Read, Read, Read, Read, Read, Read, Read, Read, F64, DROPOUT, PROBLEM,
            ],
        };
        let arguments = [&[dq][..], &sources, &told.arguments()].concat();
        let grid = passes.grid(batch * heads, queries, dim.div_ceil(passes.dq.columns));
        cuda.launch(image, &kernel, grid, &arguments)?;
        let kernel = Signature {
            name: passes.dk_dv.name,
            parameters: &[
                Write, Write, Read, Read, Read, Read, Read, Read, Read, Read, F64, DROPOUT, PROBLEM,
            ],
        };
        let arguments = [&[dk, dv][..], &sources, &told.arguments()].concat();
        let parts = dim.max(v_dim).div_ceil(passes.dk_dv.columns);
        let grid = passes.grid(batch * groups, keys, parts);
        cuda.launch(image, &kernel, grid, &arguments)
    }
}
