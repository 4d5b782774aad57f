//! Sorting on NVIDIA devices, see `sort.cu`.

use super::ranked::{Pick, Rank};
use super::{Sort, SortOrder, cpu};
use crate::cuda::gate::{Argument, Grid, Parameter, Signature};
use crate::cuda::kernels::{SORT, WALK_OF_1, grid, walk, walk_of};
use crate::cuda::{Cuda, CudaOperands, DeviceOperand, OnCuda};
use crate::dtype::DType;
use crate::error::{Result, TensorError};
use crate::layout::{Nest, Shape};
use Parameter::{I64, Read, U32, U64, Words, Write};

/// Threads of a block.
const THREADS: u32 = 256;

/// Logarithm of the number of words that a block sorts in shared memory.
const TILE_LOG: u32 = 11;

/// Largest number of blocks of a grid. More tiles or rows go to the same blocks.
const BLOCKS_MAX: usize = 1 << 16;

/// The form of sorted rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Words with the key in the high bits and the position in the low bits.
    Words,
    /// Pairs of words: the key, then the position.
    Pairs,
}

impl Form {
    fn of(dtype: DType) -> Self {
        if matches!(dtype, DType::F64 | DType::I64) { Form::Pairs } else { Form::Words }
    }
}

/// Checks that every position of a row fits below a key.
fn check(op: &'static str, dtype: DType, x: &DeviceOperand<'_>) -> Result<()> {
    let row_len = x.layout().shape().last().copied().unwrap_or(1);
    let is_short = cpu::word_count(dtype, 1, row_len, usize::MAX) == 1;
    if is_short == (Form::of(dtype) == Form::Words) && u32::try_from(row_len).is_ok() {
        return Ok(());
    }
    Err(TensorError::NoKernel { op, device: "cuda" })
}

/// The rows of x, and the place of an element.
struct Elements<'a> {
    x: DeviceOperand<'a>,
    dtype: DType,
    row_count: usize,
    row_len: usize,
    /// `struct Walk<1>` over the rows.
    rows: Vec<u64>,
    step: Argument<'static>,
}

impl<'a> Elements<'a> {
    fn new(x: DeviceOperand<'a>, dtype: DType) -> Self {
        let (shape, strides) = (x.layout().shape(), x.layout().strides());
        let (row_len, rows) = shape.split_last().map_or((1, &[][..]), |(len, rows)| (*len, rows));
        let (step, strides) = strides.split_last().map_or((0, &[][..]), |(s, rest)| (*s, rest));
        let shape = Shape::new(rows);
        let row_count = shape.element_count();
        let rows = walk_of(&Nest::new(&shape, [strides]), row_count);
        Elements { x, dtype, row_count, row_len, rows, step: Argument::I64(step as i64) }
    }

    /// Enqueues the words of all elements, in row-major order.
    fn make_words(&self, cuda: &Cuda, words: &DeviceOperand<'_>, order: SortOrder) -> Result<()> {
        let name = match self.dtype {
            DType::F32 => "make_words_f32",
            DType::F16 => "make_words_f16",
            DType::BF16 => "make_words_bf16",
            DType::I32 => "make_words_i32",
            DType::U8 => "make_words_u8",
            DType::Bool => "make_words_bool",
            DType::F64 => "make_words_long_float",
            DType::I64 => "make_words_i64",
        };
        let kernel = Signature { name, parameters: &[Write, Read, U64, U32, WALK_OF_1] };
        let walk = walk(self.x.layout().shape(), [self.x.layout()]);
        let arguments = [
            words.to_write(),
            self.x.to_read(),
            Argument::U64(self.row_len as u64),
            Argument::U32(u32::from(order == SortOrder::Descending)),
            Argument::Words(&walk),
        ];
        cuda.launch(SORT, &kernel, grid(self.row_count * self.row_len), &arguments)?;
        sort_rows(cuda, words, Form::of(self.dtype), [self.row_count, self.row_len])
    }

    /// The name of one of the kernels for elements of all sizes.
    fn name(&self, names: [&'static str; 4]) -> &'static str {
        names[self.dtype.size_bytes().ilog2() as usize]
    }
}

/// Enqueues the sort of rows of words or pairs. No two words of a row are equal.
pub(crate) fn sort_rows(
    cuda: &Cuda,
    words: &DeviceOperand<'_>,
    form: Form,
    [row_count, row_len]: [usize; 2],
) -> Result<()> {
    if row_len < 2 || row_count == 0 {
        return Ok(());
    }
    let len_log = row_len.next_power_of_two().ilog2();
    let part_log = len_log.min(TILE_LOG);
    let parts = row_len.div_ceil(1 << part_log);
    let rows = [row_count, row_len, part_log as usize, parts].map(|word| word as u64);
    let tiles = (row_count * parts).div_ceil(1 << (TILE_LOG - part_log)).min(BLOCKS_MAX);
    let in_tiles = |merges: u32| {
        let name = if form == Form::Words { "sort_tiles_words" } else { "sort_tiles_pairs" };
        let kernel = Signature { name, parameters: &[Write, Words(4), U32] };
        let arguments = [words.to_write(), Argument::Words(&rows), Argument::U32(merges)];
        cuda.launch(SORT, &kernel, Grid::row(tiles as u32, THREADS), &arguments)
    };
    let step = |step_log: u32, is_mirrored: u32| {
        let name = if form == Form::Words { "merge_step_words" } else { "merge_step_pairs" };
        let kernel = Signature { name, parameters: &[Write, Words(4), U32, U32, U32] };
        let pairs_log = len_log - 1;
        let numbers = [pairs_log, step_log, is_mirrored].map(Argument::U32);
        let arguments = [&[words.to_write(), Argument::Words(&rows)], &numbers[..]].concat();
        cuda.launch(SORT, &kernel, grid(row_count << pairs_log), &arguments)
    };
    in_tiles(0)?;
    for size_log in TILE_LOG + 1..=len_log {
        step(size_log - 1, 1)?;
        (TILE_LOG..size_log - 1).rev().try_for_each(|step_log| step(step_log, 0))?;
        in_tiles(1)?;
    }
    Ok(())
}

// Enqueues the positions, and the elements if wanted, of the first words of each row.
impl OnCuda for Sort {
    fn check(&self, operands: &CudaOperands<'_>) -> Result<()> {
        check(self.name, self.dtype, &operands.read(0))
    }

    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let (positions, elements) =
            (operands.write(0), Elements::new(operands.read(0), self.dtype));
        if self.len == 0 || self.kept_len == 0 {
            return Ok(());
        }
        let Elements { row_count, row_len, .. } = elements;
        // The positions of whole rows are memory for the words.
        let has_own = cpu::word_count(self.dtype, self.len, row_len, self.kept_len) > 0;
        let words = operands.write(usize::from(has_own));
        elements.make_words(cuda, &words, self.order)?;
        let name = elements.name([
            "take_first_words_1",
            "take_first_words_2",
            "take_first_words_4",
            "take_first_pairs_8",
        ]);
        let parameters = &[Write, Write, Read, Read, U64, U64, I64, WALK_OF_1];
        let values = if self.has_values { operands.write(2).to_write() } else { Argument::Nothing };
        let arguments = [
            positions.to_write(),
            values,
            words.to_read(),
            elements.x.to_read(),
            Argument::U64(row_len as u64),
            Argument::U64(self.kept_len as u64),
            elements.step,
            Argument::Words(&elements.rows),
        ];
        let kernel = Signature { name, parameters };
        cuda.launch(SORT, &kernel, grid(row_count * self.kept_len), &arguments)
    }
}

// Enqueues the element of each row at a rank, and its position.
impl OnCuda for Pick {
    fn check(&self, operands: &CudaOperands<'_>) -> Result<()> {
        check(self.name, self.dtype, &operands.read(0))
    }

    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let [values, positions, words] = [0, 1, 2].map(|index| operands.write(index));
        let elements = Elements::new(operands.read(0), self.dtype);
        if self.len == 0 {
            return Ok(());
        }
        elements.make_words(cuda, &words, SortOrder::Ascending)?;
        let name = elements.name(["pick_words_1", "pick_words_2", "pick_words_4", "pick_pairs_8"]);
        let (rank, number) = match self.rank {
            Rank::Number(before) => (0, before),
            Rank::Median => (1, 0),
            Rank::MedianOfNumbers => (2, 0),
            Rank::Mode => (3, 0),
        };
        let nan_key = match self.dtype {
            DType::F16 | DType::BF16 => u64::from(u16::MAX),
            DType::F32 => u64::from(u32::MAX),
            _ => u64::MAX,
        };
        let parameters = &[Write, Write, Read, Read, U64, U32, U64, U64, U32, I64, WALK_OF_1];
        let arguments = [
            positions.to_write(),
            values.to_write(),
            words.to_read(),
            elements.x.to_read(),
            Argument::U64(elements.row_len as u64),
            Argument::U32(rank),
            Argument::U64(number as u64),
            Argument::U64(nan_key),
            Argument::U32(u32::from(self.dtype.is_float())),
            elements.step,
            Argument::Words(&elements.rows),
        ];
        // A whole block searches for the longest run of a row; one thread does everything else.
        let threads = if self.rank == Rank::Mode { THREADS } else { 32 };
        let blocks = elements.row_count.min(BLOCKS_MAX) as u32;
        cuda.launch(SORT, &Signature { name, parameters }, Grid::row(blocks, threads), &arguments)
    }
}
