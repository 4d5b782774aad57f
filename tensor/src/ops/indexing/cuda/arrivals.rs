//! Elements that indices send to places on NVIDIA devices, see `arrivals.cu`.

use super::check_indices;
use crate::cuda::gate::{Argument, Parameter, Signature};
use crate::cuda::kernels::{
    ARRIVALS, WALK_OF_1, WALK_OF_2, WALK_OF_3, bits_of, grid, walk, walk_of,
};
use crate::cuda::{Checked, Cuda, CudaOperands, DeviceOperand, OnCuda};
use crate::dtype::DType;
use crate::error::{Result, TensorError};
use crate::layout::{Nest, RANK_MAX, Shape};
use crate::ops::indexing::places::{Moves, Naming, Put, Take};
use crate::ops::indexing::reduce::{Existing, IndexFill, ScatterReduce, ScatterReduction};
use crate::ops::indexing::scatter::{Arrival, Line};
use crate::ops::indexing::strides;
use crate::ops::sort::cuda::{Form, sort_rows};
use Parameter::{Read, U32, U64, Words, Write};

/// `struct Steps` and `struct Reducing`. The first two numbers of the latter share a word.
const STEPS: Parameter = Words(5);
const REDUCING: Parameter = Words(2);

/// The change of an element when another element arrives.
#[derive(Clone, Copy)]
pub(super) enum Change {
    Replace,
    /// The number of a reduction in `arrivals.cu`, and its start value if the old element does not
    /// count.
    Reduce(u32, Option<u64>),
}

impl From<Arrival> for Change {
    fn from(arrival: Arrival) -> Self {
        match arrival {
            Arrival::Replace => Change::Replace,
            Arrival::Add => Change::Reduce(0, None),
        }
    }
}

impl Change {
    fn of(op: &ScatterReduce) -> Self {
        let [_, dtype] = op.dtypes;
        let is_truth = dtype == DType::Bool;
        let (number, start) = match op.reduction {
            ScatterReduction::Sum | ScatterReduction::Mean => (0, 0.0),
            ScatterReduction::Prod => (1, 1.0),
            ScatterReduction::Amax if is_truth => (2, 0.0),
            ScatterReduction::Amin if is_truth => (3, 1.0),
            ScatterReduction::Amax => (2, f64::NEG_INFINITY),
            ScatterReduction::Amin => (3, f64::INFINITY),
        };
        let start = (op.existing == Existing::Replaced).then(|| bits_of(dtype, start));
        Change::Reduce(number, start)
    }

    /// The words of the kernel parameter `struct Reducing`.
    fn words(self) -> [u64; 2] {
        match self {
            Change::Replace => [0, 0],
            Change::Reduce(number, start) => {
                [u64::from(number) | u64::from(start.is_some()) << 32, start.unwrap_or(0)]
            }
        }
    }
}

/// The name of one of the kernels for elements of all sizes.
macro_rules! sized_name {
    ($name:literal, $dtype:expr) => {
        match $dtype.size_bytes() {
            1 => concat!($name, "_1"),
            2 => concat!($name, "_2"),
            4 => concat!($name, "_4"),
            _ => concat!($name, "_8"),
        }
    };
}

/// The name of one of the kernels that reduce elements of one type into another type.
macro_rules! reduce_name {
    ($name:literal, $dtypes:expr) => {
        match $dtypes {
            [DType::F16, DType::F32] => concat!($name, "_f16_wide"),
            [DType::BF16, DType::F32] => concat!($name, "_bf16_wide"),
            [_, DType::F64] => concat!($name, "_f64"),
            [_, DType::F32] => concat!($name, "_f32"),
            [_, DType::F16] => concat!($name, "_f16"),
            [_, DType::BF16] => concat!($name, "_bf16"),
            [_, DType::I64] => concat!($name, "_i64"),
            [_, DType::I32] => concat!($name, "_i32"),
            [_, DType::U8] => concat!($name, "_u8"),
            [_, DType::Bool] => concat!($name, "_bool"),
        }
    };
}

/// Operations whose indices need no check: forward has checked them, or the operation makes them.
const TRUSTED: [&str; 2] = ["embedding_backward", "pad_backward"];

impl Line {
    /// True if the indices need no check.
    pub(super) fn is_trusted(&self) -> bool {
        TRUSTED.contains(&self.name)
    }
}

/// Checks that kernels know the operation by name.
pub(super) fn check(op: &'static str) -> Result<()> {
    match Checked::Indices(op).number() {
        Some(_) => Ok(()),
        None => Err(TensorError::NoKernel { op, device: "cuda" }),
    }
}

/// Elements that arrive along a dimension, and their places.
pub(super) struct Arriving<'a> {
    pub(super) index: DeviceOperand<'a>,
    pub(super) index_strides: [usize; RANK_MAX],
    /// The shape of the arriving elements, which are in the source or all equal.
    pub(super) shape: Shape,
    pub(super) source: Option<DeviceOperand<'a>>,
    pub(super) to: DeviceOperand<'a>,
    pub(super) axis: usize,
}

impl<'a> Arriving<'a> {
    fn of(op: &Line, source: DeviceOperand<'a>, operands: &CudaOperands<'a>) -> Self {
        Arriving {
            index: operands.read(0),
            index_strides: op.index_strides,
            shape: *source.layout().shape(),
            source: Some(source),
            to: operands.write(0),
            axis: op.axis,
        }
    }

    fn source_strides(&self) -> &[usize] {
        self.source.map_or(&[0; RANK_MAX], |source| source.layout().strides())
    }

    /// The words of the kernel parameter `struct Steps`.
    fn steps(&self) -> [u64; 5] {
        let (axis, to) = (self.axis, self.to.layout());
        let index_step = self.index_strides[axis];
        [
            self.shape[axis],
            index_step,
            self.source_strides()[axis],
            to.strides()[axis],
            to.shape()[axis],
        ]
        .map(|number| number as u64)
    }

    /// `struct Walk<3>` over the lines along the axis, for index, source and destination.
    fn lines(&self) -> Vec<u64> {
        let others = |strides: &[usize]| -> Vec<usize> {
            let kept = (0..self.shape.len()).filter(|&axis| axis != self.axis);
            kept.map(|axis| strides[axis]).collect()
        };
        let shape = self.shape.without(self.axis);
        let strides = [&self.index_strides[..], self.source_strides(), self.to.layout().strides()]
            .map(others);
        let nest = Nest::new(&shape, strides.each_ref().map(Vec::as_slice));
        walk_of(&nest, shape.element_count())
    }

    /// The destination's strides, without the axis: to the start of each line.
    fn line_starts(&self) -> [usize; RANK_MAX] {
        let mut strides = strides(self.to.layout().strides());
        strides[self.axis] = 0;
        strides
    }

    /// Enqueues all elements, line by line. Without a source, `bits` arrive.
    fn by_lines(&self, cuda: &Cuda, change: Change, bits: u64, dtypes: [DType; 2]) -> Result<()> {
        let (steps, lines, reducing) = (self.steps(), self.lines(), change.words());
        let source = self.source.map_or(Argument::Nothing, |source| source.to_read());
        let [to, index] = [self.to.to_write(), self.index.to_read()];
        let [steps, walk, reducing] = [&steps, &lines[..], &reducing].map(Argument::Words);
        let grid = grid(lines[0] as usize);
        if let Change::Replace = change {
            let kernel = Signature {
                name: sized_name!("replace_lines", dtypes[1]),
                parameters: &[Write, Read, U64, Read, STEPS, WALK_OF_3],
            };
            let arguments = [to, source, Argument::U64(bits), index, steps, walk];
            return cuda.launch(ARRIVALS, &kernel, grid, &arguments);
        }
        let kernel = Signature {
            name: reduce_name!("reduce_lines", dtypes),
            parameters: &[Write, Read, Read, REDUCING, STEPS, WALK_OF_3],
        };
        cuda.launch(ARRIVALS, &kernel, grid, &[to, source, index, reducing, steps, walk])
    }

    /// Enqueues sums of integers, element by element.
    fn by_elements(&self, cuda: &Cuda, dtype: DType) -> Result<()> {
        let rank = self.shape.len();
        let starts = self.line_starts();
        let strides = [&self.index_strides[..rank], self.source_strides(), &starts[..rank]];
        let walk = walk_of(&Nest::new(&self.shape, strides), self.shape.element_count());
        let steps = self.steps();
        let name = if dtype == DType::I64 { "add_elements_i64" } else { "add_elements_i32" };
        let kernel = Signature { name, parameters: &[Write, Read, Read, STEPS, WALK_OF_3] };
        let arguments = [
            self.to.to_write(),
            self.source.map_or(Argument::Nothing, |source| source.to_read()),
            self.index.to_read(),
            Argument::Words(&steps),
            Argument::Words(&walk),
        ];
        cuda.launch(ARRIVALS, &kernel, grid(self.shape.element_count()), &arguments)
    }

    /// Enqueues all elements, sorted by their places. `pairs` has room for two words for each
    /// element.
    fn sorted(
        &self,
        cuda: &Cuda,
        pairs: &DeviceOperand<'_>,
        change: Change,
        dtypes: [DType; 2],
    ) -> Result<()> {
        let (rank, count) = (self.shape.len(), self.shape.element_count());
        let (starts, steps) = (self.line_starts(), self.steps());
        let strides = [&self.index_strides[..rank], &starts[..rank]];
        let walk = walk_of(&Nest::new(&self.shape, strides), count);
        let kernel =
            Signature { name: "name_elements", parameters: &[Write, Read, STEPS, WALK_OF_2] };
        let arguments = [
            pairs.to_write(),
            self.index.to_read(),
            Argument::Words(&steps),
            Argument::Words(&walk),
        ];
        cuda.launch(ARRIVALS, &kernel, grid(count), &arguments)?;
        let sources = walk_of(&Nest::new(&self.shape, [self.source_strides()]), count);
        let row = walk_of(&Nest::new(&Shape::new(&[]), [&[], &[]]), 1);
        let source = self.source.expect("what is sorted has a source");
        let sorted = Sorted { pairs: *pairs, count, sources, row, source, to: self.to };
        sorted.arrive(cuda, change, dtypes)
    }
}

/// Rows that arrive at places. Pairs of numbers say which row arrives at which place.
struct Sorted<'a> {
    pairs: DeviceOperand<'a>,
    count: usize,
    /// `struct Walk<1>` over the arriving rows, in the source.
    sources: Vec<u64>,
    /// `struct Walk<2>` over a row, in the destination and the source.
    row: Vec<u64>,
    source: DeviceOperand<'a>,
    to: DeviceOperand<'a>,
}

impl Sorted<'_> {
    /// Enqueues the sort of the pairs, and the change at each place.
    fn arrive(&self, cuda: &Cuda, change: Change, dtypes: [DType; 2]) -> Result<()> {
        sort_rows(cuda, &self.pairs, Form::Pairs, [1, self.count])?;
        let [to, source, pairs] = [self.to.to_write(), self.source.to_read(), self.pairs.to_read()];
        let count = Argument::U64(self.count as u64);
        let reducing = change.words();
        let [reducing, sources, row] =
            [&reducing[..], &self.sources, &self.row].map(Argument::Words);
        let grid = grid(self.count * self.row[0] as usize);
        if let Change::Replace = change {
            let kernel = Signature {
                name: sized_name!("replace_sorted", dtypes[1]),
                parameters: &[Write, Read, Read, U64, WALK_OF_1, WALK_OF_2],
            };
            let arguments = [to, source, pairs, count, sources, row];
            return cuda.launch(ARRIVALS, &kernel, grid, &arguments);
        }
        let kernel = Signature {
            name: reduce_name!("reduce_sorted", dtypes),
            parameters: &[Write, Read, Read, U64, REDUCING, WALK_OF_1, WALK_OF_2],
        };
        let arguments = [to, source, pairs, count, reducing, sources, row];
        cuda.launch(ARRIVALS, &kernel, grid, &arguments)
    }
}

/// Enqueues the elements that arrive along a dimension. An index out of range sends nothing. Unless
/// the indices are trusted, the next read of a value reports such an index.
pub(super) fn arrive(
    op: &Line,
    change: Change,
    dtypes: [DType; 2],
    cuda: &Cuda,
    operands: &CudaOperands<'_>,
) -> Result<()> {
    let arriving = Arriving::of(op, operands.read(1), operands);
    if !op.is_trusted() {
        let len = arriving.to.layout().shape()[op.axis];
        check_indices(op.name, cuda, &arriving.index, len)?;
    }
    let adds = matches!(change, Change::Reduce(0, None));
    if adds && matches!(dtypes[1], DType::I64 | DType::I32) {
        return arriving.by_elements(cuda, dtypes[1]);
    }
    match operands.write_count() > 1 {
        true => arriving.sorted(cuda, &operands.write(1), change, dtypes),
        false => arriving.by_lines(cuda, change, 0, dtypes),
    }
}

// Enqueues a reduction of the elements that arrive.
impl OnCuda for ScatterReduce {
    fn check(&self, _: &CudaOperands<'_>) -> Result<()> {
        check(self.line.name)
    }

    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        arrive(&self.line, Change::of(&self), self.dtypes, cuda, operands)
    }
}

// Enqueues the filling of the positions that indices name.
impl OnCuda for IndexFill {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let (index, to) = (operands.read(0), operands.write(0));
        check_indices("index_fill", cuda, &index, to.layout().shape()[self.axis])?;
        let mut index_strides = [0; RANK_MAX];
        index_strides[self.axis] = index.layout().strides()[0];
        let arriving =
            Arriving { index, index_strides, shape: self.shape, source: None, to, axis: self.axis };
        arriving.by_lines(cuda, Change::Replace, bits_of(self.dtype, self.value), [self.dtype; 2])
    }
}

impl Moves {
    /// Enqueues the places that the first operands name in a tensor of this layout. The places are
    /// `step` words apart.
    fn name_places(
        &self,
        op: &'static str,
        (cuda, operands): (&Cuda, &CudaOperands<'_>),
        of: &DeviceOperand<'_>,
        (words, step): (&DeviceOperand<'_>, u64),
    ) -> Result<()> {
        let (shape, strides) = (of.layout().shape(), of.layout().strides());
        let kernel = Signature {
            name: "name_places",
            parameters: &[Write, Read, U64, U32, WALK_OF_1, WALK_OF_1],
        };
        for number in 0..self.naming.index_count() {
            let index = operands.read(number);
            let axes = match self.naming {
                Naming::Leading(_) => number..number + 1,
                Naming::Whole => 0..shape.len(),
            };
            let named = Shape::new(&shape[axes.clone()]);
            let len = named.element_count();
            check_indices(op, cuda, &index, len)?;
            let indices = walk(&self.named, [index.layout()]);
            let dimensions = walk_of(&Nest::new(&named, [&strides[axes]]), len);
            let arguments = [
                words.to_write(),
                index.to_read(),
                Argument::U64(step),
                Argument::U32(u32::from(number == 0)),
                Argument::Words(&indices),
                Argument::Words(&dimensions),
            ];
            cuda.launch(ARRIVALS, &kernel, grid(self.named.element_count()), &arguments)?;
        }
        Ok(())
    }

    /// The strides of the dimensions that no index counts through.
    fn rest<'a>(&self, of: &DeviceOperand<'a>) -> &'a [usize] {
        let layout = of.layout();
        &layout.strides()[self.naming.named_rank(layout.shape().len())..]
    }
}

// Enqueues the elements at the places.
impl OnCuda for Take {
    fn check(&self, _: &CudaOperands<'_>) -> Result<()> {
        check(self.name)
    }

    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let (x, y, words) = {
            let x = operands.read(self.moves.naming.index_count());
            (x, operands.write(0), operands.write(1))
        };
        self.moves.name_places(self.name, (cuda, operands), &x, (&words, 1))?;
        let row = self.moves.row;
        let walk = walk_of(&Nest::new(&row, [self.moves.rest(&x)]), row.element_count());
        let kernel = Signature {
            name: sized_name!("take_rows", self.dtype),
            parameters: &[Write, Read, Read, U64, WALK_OF_1],
        };
        let len = self.moves.len();
        let arguments = [
            y.to_write(),
            x.to_read(),
            words.to_read(),
            Argument::U64(len as u64),
            Argument::Words(&walk),
        ];
        cuda.launch(ARRIVALS, &kernel, grid(len), &arguments)
    }
}

// Enqueues the elements that arrive at the places.
impl OnCuda for Put {
    fn check(&self, _: &CudaOperands<'_>) -> Result<()> {
        check(self.name)
    }

    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let source = operands.read(self.moves.naming.index_count());
        let [to, pairs] = [0, 1].map(|index| operands.write(index));
        let Moves { named, row, .. } = self.moves;
        self.moves.name_places(self.name, (cuda, operands), &to, (&pairs, 2))?;
        let (of_places, of_row) = source.layout().strides().split_at(named.len());
        let count = named.element_count();
        let sorted = Sorted {
            pairs,
            count,
            sources: walk_of(&Nest::new(&named, [of_places]), count),
            row: walk_of(&Nest::new(&row, [self.moves.rest(&to), of_row]), row.element_count()),
            source,
            to,
        };
        sorted.arrive(cuda, self.arrival.into(), self.dtypes)
    }
}
