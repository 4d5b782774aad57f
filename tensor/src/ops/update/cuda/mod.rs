//! Updates on NVIDIA devices, and the norms that some formulas need; see `update.cu`. All tensors
//! of a launch share one formula.

mod known;

use super::kernel::{Item, POINTERS_MAX, TENSORS_MAX, Update};
use super::norms::{Norms, PARTIALS_MAX, READS_MAX};
use super::{NormFormula, Rounding, STATES_MAX, StateRange, UpdateFormula};
use crate::cuda::gate::{Argument, Parameter, Signature};
use crate::cuda::kernels::{UPDATE, WALK_OF_6, grid, typed_name, walk_of};
use crate::cuda::{Cuda, CudaOperands, OnCuda};
use crate::dtype::DType;
use crate::error::{Result, TensorError};
use crate::layout::{Layout, Nest};
use Parameter::{Pointers, Read, U64, Words, Write};
use known::{CONSTANTS_MAX, OfKernel};

/// Threads of a block.
const THREADS: usize = 256;
/// Elements of a tile of contiguous tensors, and of a tile with states in 8 bits.
const TILE_LEN: usize = 4 * THREADS;
const TILE_LEN_QUANTIZED: usize = THREADS;

/// `struct Common`, `struct Pointers` of many tensors and of one, `struct Lens`.
const COMMON_WORDS: usize = 5 + CONSTANTS_MAX;
const COMMON: Parameter = Words(COMMON_WORDS);
const OF_ALL: Parameter = Pointers(POINTERS_MAX);
const OF_ONE: Parameter = Pointers(POINTERS_OF_ONE);
const POINTERS_OF_ONE: usize = 8;
const LENS: Parameter = Words(2 * TENSORS_MAX);

/// Norms read at most six operands, the number of tensors of a walk.
const _: () = assert!(READS_MAX == 6 && 2 + STATES_MAX == 6);

fn plain(dtype: DType) -> Signature {
    Signature { name: typed_name!("update", dtype), parameters: &[COMMON, OF_ALL, LENS] }
}

fn quantized(dtype: DType) -> Signature {
    let name = typed_name!("update_quantized", dtype);
    Signature { name, parameters: &[COMMON, OF_ALL, LENS, U64] }
}

fn strided(dtype: DType) -> Signature {
    let name = typed_name!("update_strided", dtype);
    Signature { name, parameters: &[COMMON, OF_ONE, U64, WALK_OF_6] }
}

/// Loads the kernels for parameters of a float type.
pub(crate) fn reserve(cuda: &Cuda, dtype: DType) -> Result<()> {
    let kernels = [plain, quantized, strided].map(|kernel| kernel(dtype));
    kernels.iter().try_for_each(|kernel| cuda.reserve(UPDATE.of(dtype), kernel))
}

fn of_item<F, const STATES: usize, const SCALARS: usize>(item: &Item<F>) -> Result<OfKernel>
where
    F: UpdateFormula<STATES, SCALARS>,
{
    let known = item.formula.known().and_then(|known| known.of_kernel(STATES, SCALARS));
    known.ok_or(TensorError::NoKernel { op: F::NAME, device: "cuda" })
}

/// `struct Common` for `count` tensors with gradients of type `gradient`.
fn common(
    (number, constants): OfKernel,
    gradient: DType,
    rounding: Rounding,
    count: usize,
) -> [u64; COMMON_WORDS] {
    let gradient = match gradient {
        DType::F64 => 1,
        DType::F16 => 2,
        DType::BF16 => 3,
        _ => 0,
    };
    let (is_stochastic, seed) = match rounding {
        Rounding::Nearest => (0, 0),
        Rounding::Stochastic(key) => (1, key.stream_words()[0]),
    };
    let mut words = [0; COMMON_WORDS];
    words[..5].copy_from_slice(&[u64::from(number), gradient, is_stochastic, seed, count as u64]);
    words[5..].copy_from_slice(&constants.map(f64::to_bits));
    words
}

/// The random stream of a tensor's rounding, beside the seed.
fn stream(rounding: Rounding) -> u64 {
    match rounding {
        Rounding::Nearest => 0,
        Rounding::Stochastic(key) => key.stream_words()[1],
    }
}

/// A bit for each state, set if the state has no values below 0.
fn range_bits(ranges: &[StateRange]) -> u64 {
    let bit = |(k, range): (usize, &StateRange)| u64::from(*range == StateRange::Positive) << k;
    ranges.iter().enumerate().map(bit).sum()
}

// Enqueues the updates, with one launch for all tensors whose formulas have the same constants.
impl<F, const STATES: usize, const SCALARS: usize> OnCuda for Update<F, STATES, SCALARS>
where
    F: UpdateFormula<STATES, SCALARS>,
{
    fn check(&self, _: &CudaOperands<'_>) -> Result<()> {
        self.items.iter().try_for_each(|item| of_item::<F, STATES, SCALARS>(item).map(drop))
    }

    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let [dtype, gradient] = self.form.dtypes;
        let mut launches: Vec<([u64; COMMON_WORDS], Vec<usize>)> = Vec::new();
        for (index, item) in self.items.iter().enumerate().filter(|(_, item)| item.len > 0) {
            let common = common(of_item::<F, STATES, SCALARS>(item)?, gradient, item.rounding, 0);
            match launches.iter_mut().find(|(other, _)| *other == common) {
                Some((_, items)) => items.push(index),
                None => launches.push((common, vec![index])),
            }
        }
        for (mut common, items) in launches {
            common[4] = items.len() as u64;
            let pointers =
                items.iter().flat_map(|&index| pointers_of::<STATES, SCALARS>(operands, index));
            let mut pointers: Vec<Argument<'_>> = pointers.collect();
            if !self.form.is_contiguous {
                update_strided(&self, cuda, operands, &common, pointers)?;
                continue;
            }
            pointers.resize(POINTERS_MAX, Argument::Nothing);
            let mut lens = [0; 2 * TENSORS_MAX];
            for (to, &index) in lens.chunks_exact_mut(2).zip(&items) {
                let Item { len, rounding, .. } = self.items[index];
                to.copy_from_slice(&[len as u64, stream(rounding)]);
            }
            let all =
                [Argument::Words(&common), Argument::Pointers(&pointers), Argument::Words(&lens)];
            let tiles = |tile_len: usize| {
                let of_item = |&index: &usize| self.items[index].len.div_ceil(tile_len);
                grid(THREADS * items.iter().map(of_item).sum::<usize>())
            };
            if self.form.quantized {
                // The formulas of a launch are of one kind, and so are their states.
                let ranges = range_bits(&self.items[items[0]].formula.state_ranges());
                let all = [&all[..], &[Argument::U64(ranges)]].concat();
                let grid = tiles(TILE_LEN_QUANTIZED);
                cuda.launch(UPDATE.of(dtype), &quantized(dtype), grid, &all)?;
            } else {
                cuda.launch(UPDATE.of(dtype), &plain(dtype), tiles(TILE_LEN), &all)?;
            }
        }
        Ok(())
    }
}

/// Parameter, gradient, states and scalars of an item.
fn pointers_of<'a, const STATES: usize, const SCALARS: usize>(
    operands: &CudaOperands<'a>,
    index: usize,
) -> impl Iterator<Item = Argument<'a>> {
    let (reads, writes) = (index * (1 + SCALARS), index * (1 + STATES));
    let read = |k: usize| operands.read(reads + k).to_read();
    let write = |k: usize| operands.write(writes + k).to_write();
    let mut all = vec![write(0), read(0)];
    all.extend((1..=STATES).map(write));
    all.extend((1..=SCALARS).map(read));
    all.into_iter()
}

/// Enqueues the update of a launch with a single item, with any strides.
fn update_strided<'a, F, const STATES: usize, const SCALARS: usize>(
    op: &Update<F, STATES, SCALARS>,
    cuda: &Cuda,
    operands: &CudaOperands<'a>,
    common: &[u64; COMMON_WORDS],
    mut pointers: Vec<Argument<'a>>,
) -> Result<()> {
    let [Item { len, rounding, .. }] = op.items[..] else {
        unreachable!("strided operands have a launch of their own")
    };
    let dtype = op.form.dtypes[0];
    pointers.resize(POINTERS_OF_ONE, Argument::Nothing);
    let parameter = operands.write(0).layout();
    let walk = walk_of_six(len, parameter, |index| match index {
        1 => Some(operands.read(0).layout()),
        _ => (index <= 1 + STATES).then(|| operands.write(index.saturating_sub(1)).layout()),
    });
    let arguments = [
        Argument::Words(common),
        Argument::Pointers(&pointers),
        Argument::U64(stream(rounding)),
        Argument::Words(&walk),
    ];
    cuda.launch(UPDATE.of(dtype), &strided(dtype), grid(len), &arguments)
}

/// `struct Walk<6>` over `len` elements of a parameter and its other operands. Missing operands get
/// the parameter's strides.
fn walk_of_six<'a>(
    len: usize,
    parameter: &'a Layout,
    layout: impl Fn(usize) -> Option<&'a Layout>,
) -> Vec<u64> {
    let strides = |index| layout(index).unwrap_or(parameter).strides();
    let strides: [&[usize]; 6] = std::array::from_fn(strides);
    walk_of(&Nest::new(parameter.shape(), strides), len)
}

/// The number and constants of a formula of norms; an error if there is no kernel.
fn of_norms<F, const STATES: usize, const NORMS: usize>(
    op: &Norms<F, STATES, NORMS>,
) -> Result<OfKernel>
where
    F: NormFormula<STATES, NORMS>,
{
    let known = op.formula.known().and_then(|known| known.of_kernel(STATES, NORMS));
    known.ok_or(TensorError::NoKernel { op: F::NAME, device: "cuda" })
}

// Enqueues the norms, with partial sums.
impl<F, const STATES: usize, const NORMS: usize> OnCuda for Norms<F, STATES, NORMS>
where
    F: NormFormula<STATES, NORMS>,
{
    fn check(&self, _: &CudaOperands<'_>) -> Result<()> {
        of_norms(self).map(drop)
    }

    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let [dtype, gradient] = self.form.dtypes;
        let (norms, partials) = (operands.write(0), operands.write(1));
        let common = common(of_norms(&self)?, gradient, Rounding::Nearest, 1);
        let read = |index| operands.read(index);
        let mut pointers: Vec<Argument<'_>> = (0..2 + STATES).map(|k| read(k).to_read()).collect();
        pointers.resize(POINTERS_OF_ONE, Argument::Nothing);
        let is_walked = |index| if self.form.quantized { index < 2 } else { index < 2 + STATES };
        let walk = walk_of_six(self.len, read(0).layout(), |index| {
            is_walked(index).then(|| read(index).layout())
        });
        let ranges = [Argument::U64(range_bits(&self.formula.state_ranges()))];
        let all = [
            partials.to_write(),
            Argument::Words(&common),
            Argument::Pointers(&pointers),
            Argument::Words(&walk),
        ];
        let (kernel, all) = match self.form.quantized {
            false => {
                let name = typed_name!("update_squares", dtype);
                let parameters = &[Write, COMMON, OF_ONE, WALK_OF_6][..];
                (Signature { name, parameters }, all.to_vec())
            }
            true => {
                let name = typed_name!("update_squares_quantized", dtype);
                let parameters = &[Write, COMMON, OF_ONE, WALK_OF_6, U64][..];
                (Signature { name, parameters }, [&all[..], &ranges].concat())
            }
        };
        // A block for each partial sum; at least one, which is 0 without elements.
        let blocks = self.len.div_ceil(THREADS).clamp(1, PARTIALS_MAX);
        cuda.launch(UPDATE.of(dtype), &kernel, grid(THREADS * blocks), &all)?;
        let name = typed_name!("update_norms", dtype);
        let kernel = Signature { name, parameters: &[Write, Read, U64] };
        let arguments = [norms.to_write(), partials.to_read(), Argument::U64(blocks as u64)];
        cuda.launch(UPDATE.of(dtype), &kernel, grid(THREADS * NORMS), &arguments)
    }
}
