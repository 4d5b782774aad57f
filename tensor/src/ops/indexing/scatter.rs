//! Elements sent to the places of their indices: scatter, index_add, index_copy.

use super::cpu::{self, Arrivals};
use super::strides;
use crate::axis::Axis;
use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::cpu::arithmetic::Arithmetic;
use crate::dtype::{DType, Element, for_each_dtype};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::layout::{RANK_MAX, check_axis};
use crate::operand_view::ViewMut;
use crate::spec::DeviceKind;
use crate::tensor::Tensor;

/// The change of an element when another element arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arrival {
    /// The arriving element replaces the old one. The last of several wins.
    Replace,
    /// The arriving elements are added, in the order of the indices.
    Add,
}

/// Number of lines along the dimension of the indices from which an NVIDIA device takes them line
/// by line, and the length of lines up to which it always does so.
const LINES_MIN: usize = 1024;
const LINE_LEN_MAX: usize = 64;

/// The dimension along which elements arrive, for kernels.
pub(super) struct Line {
    pub(super) name: &'static str,
    pub(super) index_strides: [usize; RANK_MAX],
    pub(super) axis: usize,
}

impl Line {
    /// Workspace in which an NVIDIA device sorts: a pair of words for each element. `None` if there
    /// are enough lines, if the order does not matter, and on other devices.
    #[track_caller]
    pub(super) fn pairs(
        &self,
        source: &Tensor,
        to: &Tensor,
        has_order: bool,
    ) -> Result<Option<Tensor>> {
        let (device, len) = (to.device(), source.element_count());
        let line_len = source.shape()[self.axis];
        let is_by_lines = line_len <= LINE_LEN_MAX || len / line_len >= LINES_MIN;
        if device.kind() == DeviceKind::Cpu || !has_order || is_by_lines {
            return Ok(None);
        }
        Tensor::workspace(device, 2 * len, DType::I64).map(Some)
    }
}

/// Sends the elements of the second operand to the places of the indices in the first operand.
pub(super) struct Scatter {
    pub(super) line: Line,
    pub(super) arrival: Arrival,
    /// Types of the source and of the destination.
    pub(super) dtypes: [DType; 2],
    len: usize,
    index_len: usize,
}

/// Elements of a row of the source for which a block of an NVIDIA device pays.
const COLUMNS_MIN: usize = 32;

impl Scatter {
    /// True if an NVIDIA device adds up whole rows, with half types summed in f32.
    pub(super) fn is_of_rows(&self, source: &Tensor, to: &Tensor) -> bool {
        let Line { name, index_strides, axis } = &self.line;
        let adds_wide = self.arrival == Arrival::Add
            && self.dtypes[0].is_float()
            && self.dtypes[1] == self.dtypes[0].computed();
        let columns: usize = to.shape().iter().skip(1).product();
        adds_wide
            && *axis == 0
            && index_strides[1..].iter().all(|&stride| stride == 0)
            && source.layout().is_contiguous()
            && to.layout().is_contiguous()
            && (columns >= COLUMNS_MIN || *name == "embedding_backward")
    }

    /// True if the result depends on the order of arrival.
    fn has_order(&self) -> bool {
        self.arrival == Arrival::Replace || !matches!(self.dtypes[1], DType::I64 | DType::I32)
    }
}

impl FullKernel for Scatter {
    fn name(&self) -> &'static str {
        self.line.name
    }

    fn cost(&self) -> Cost {
        let [from, to] = self.dtypes.map(DType::size_bytes);
        let (touches, flops) = if self.arrival == Arrival::Add { (2, 1) } else { (1, 0) };
        let bytes = self.len * (from + touches * to) + 8 * self.index_len;
        Cost { class: OpClass::Indexing, flops: (flops * self.len) as f64, bytes: bytes as f64 }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        match (self.arrival, self.dtypes) {
            (Arrival::Replace, [dtype, _]) => for_each_dtype!(dtype, T => {
                self.run::<T, T>(cpu, operands, |arrivals, to| arrivals.replace(cpu, to))
            }),
            (Arrival::Add, [DType::F16, DType::F32]) => self.add::<half::f16, f32>(cpu, operands),
            (Arrival::Add, [DType::BF16, DType::F32]) => self.add::<half::bf16, f32>(cpu, operands),
            (Arrival::Add, [DType::Bool, _]) => unreachable!("checked to be a number"),
            (Arrival::Add, [dtype, _]) => {
                for_each_dtype!(dtype, T => self.add::<T, T>(cpu, operands))
            }
        }
    }
}

impl Scatter {
    fn add<S: Element, D: Element<Compute: Arithmetic>>(
        &self,
        cpu: &Cpu,
        operands: &mut Operands<'_>,
    ) -> Result<()> {
        self.run::<S, D>(cpu, operands, |arrivals, to| {
            arrivals.run(cpu, to, cpu::add, cpu::add_row);
        })
    }

    fn run<S: Element, D: Element>(
        &self,
        cpu: &Cpu,
        operands: &mut Operands<'_>,
        arrive: impl FnOnce(&Arrivals<'_, S>, &mut ViewMut<'_, D>),
    ) -> Result<()> {
        let (index, source) = (operands.read::<i64>(0), operands.read::<S>(1));
        let mut to = operands.write::<D>(0);
        let Line { name, index_strides, axis } = self.line;
        cpu::check(cpu, name, index, to.layout().shape()[axis])?;
        let index = index.data();
        arrive(&Arrivals { index, index_strides, source, axis }, &mut to);
        Ok(())
    }
}

impl Tensor {
    /// The checks and the launch for all methods that write into this tensor. `index` has as many
    /// dimensions as this tensor, or only the dimension along `axis`.
    #[track_caller]
    pub(super) fn arrive(
        &self,
        op: &'static str,
        arrival: Arrival,
        axis: usize,
        index: &Tensor,
        source: &Tensor,
    ) -> Result<()> {
        if arrival == Arrival::Add && self.dtype() == DType::Bool {
            return Err(TensorError::DType { op, left: DType::Bool, right: DType::U8 });
        }
        let is_wider = self.dtype() == DType::F32 && arrival == Arrival::Add;
        if !(is_wider && matches!(source.dtype(), DType::F16 | DType::BF16)) {
            self.check_dtype(op, source)?;
        }
        let mut index_strides = strides(index.layout().strides());
        if source.shape().len() != index.shape().len() {
            index_strides = [0; RANK_MAX];
            index_strides[axis] = index.layout().strides()[0];
        }
        let dtypes = [source.dtype(), self.dtype()];
        let len = source.element_count();
        let index_len = index.element_count();
        let line = Line { name: op, index_strides, axis };
        let kernel = Scatter { line, arrival, dtypes, len, index_len };
        let has_order = kernel.has_order() && !kernel.is_of_rows(source, self);
        let pairs = kernel.line.pairs(source, self, has_order)?;
        let writes: Vec<&Tensor> = [self].into_iter().chain(&pairs).collect();
        self.device().launch(kernel, &[index, source], &writes)
    }

    /// The part of `source` that `index` covers, if the part fits into this tensor.
    pub(super) fn check_scatter(
        &self,
        op: &'static str,
        axis: usize,
        index: &Tensor,
        source: &Tensor,
    ) -> Result<Tensor> {
        index.check_indices(op, None)?;
        self.check_inside(op, axis, index.shape())?;
        let (left, right) = (*source.shape(), *index.shape());
        if left.len() != right.len() || (0..left.len()).any(|axis| left[axis] < right[axis]) {
            return Err(TensorError::Shape { op, left, right });
        }
        (0..right.len()).try_fold(source.clone(), |part, axis| part.narrow(axis, 0, right[axis]))
    }

    /// Checks that `source` has a slice for each index, with the shape of this tensor's slices.
    pub(super) fn check_slices(
        &self,
        op: &'static str,
        axis: usize,
        index: &Tensor,
        source: &Tensor,
    ) -> Result<()> {
        index.check_indices(op, Some(1))?;
        let (left, right) = (*source.shape(), self.shape().with(axis, index.element_count()));
        if left == right { Ok(()) } else { Err(TensorError::Shape { op, left, right }) }
    }

    /// A copy of this tensor for sums: half types become f32.
    #[track_caller]
    pub(super) fn wide_copy(&self) -> Result<Tensor> {
        match self.dtype() {
            DType::F16 | DType::BF16 => self.to_dtype(DType::F32),
            _ => self.copied(),
        }
    }

    /// For each position below `len` along `axis`, the sum of the slices whose index is this
    /// position; in f32 for half types.
    #[track_caller]
    pub(crate) fn index_sum(
        &self,
        op: &'static str,
        axis: usize,
        index: &Tensor,
        len: usize,
    ) -> Result<Tensor> {
        let dtype = self.dtype().computed();
        let sums = Tensor::zeros(self.device(), self.shape().with(axis, len), dtype)?;
        sums.arrive(op, Arrival::Add, axis, index, self)?;
        Ok(sums)
    }

    /// `x[i, index[i, j, k], k] = source[i, j, k]` for axis 1, the inverse of [`Tensor::gather`].
    /// If indices repeat, the last element along `axis` wins.
    ///
    /// # Shapes
    /// The index is at most x along every dimension but `axis`, and at most `source` along all.
    ///
    /// # Errors
    /// `Index` for a dimension that does not exist or an index out of range, `Shape`, `DType`
    /// unless indices are i64 and the others have one type, `Device`, `Frozen`, `Overlap`.
    #[track_caller]
    pub fn scatter_(
        &mut self,
        axis: impl Into<Axis>,
        index: &Tensor,
        source: &Tensor,
    ) -> Result<()> {
        let axis = check_axis("scatter", self.shape(), axis)?;
        let op = "scatter";
        let source = self.check_scatter(op, axis, index, source)?;
        self.arrive(op, Arrival::Replace, axis, index, &source)
    }

    /// [`Tensor::scatter_`] into a copy of this tensor.
    ///
    /// # Errors
    /// As [`Tensor::scatter_`], and `OutOfMemory`.
    #[track_caller]
    pub fn scatter(
        &self,
        axis: impl Into<Axis>,
        index: &Tensor,
        source: &Tensor,
    ) -> Result<Tensor> {
        let axis = check_axis("scatter", self.shape(), axis)?;
        let op = "scatter";
        let source = self.check_scatter(op, axis, index, source)?;
        let y = self.copied()?;
        y.arrive(op, Arrival::Replace, axis, index, &source)?;
        Ok(y)
    }

    /// `x[i, index[i, j, k], k] += source[i, j, k]` for axis 1, in the order along `axis`. Floats,
    /// and integers, which wrap. In half types each sum is rounded; [`Tensor::scatter_add`] sums in
    /// f32.
    ///
    /// # Shapes
    /// As [`Tensor::scatter_`].
    ///
    /// # Errors
    /// As [`Tensor::scatter_`], and `DType` for truth values.
    #[track_caller]
    pub fn scatter_add_(
        &mut self,
        axis: impl Into<Axis>,
        index: &Tensor,
        source: &Tensor,
    ) -> Result<()> {
        let axis = check_axis("scatter_add", self.shape(), axis)?;
        let op = "scatter_add";
        let source = self.check_scatter(op, axis, index, source)?;
        self.check_dtype(op, &source)?;
        self.arrive(op, Arrival::Add, axis, index, &source)
    }

    /// [`Tensor::scatter_add_`] into a copy of this tensor; half types are summed in f32.
    ///
    /// # Errors
    /// As [`Tensor::scatter_add_`], and `OutOfMemory`.
    #[track_caller]
    pub fn scatter_add(
        &self,
        axis: impl Into<Axis>,
        index: &Tensor,
        source: &Tensor,
    ) -> Result<Tensor> {
        let axis = check_axis("scatter_add", self.shape(), axis)?;
        let op = "scatter_add";
        let source = self.check_scatter(op, axis, index, source)?;
        self.check_dtype(op, &source)?;
        let y = self.wide_copy()?;
        y.arrive(op, Arrival::Add, axis, index, &source)?;
        y.to_dtype(self.dtype())
    }

    /// `x[i, index[j], k] += source[i, j, k]` for axis 1, in the order of the indices, which have
    /// one dimension. Types and rounding as [`Tensor::scatter_add_`].
    ///
    /// # Shapes
    /// `source` has x's shape, with as many positions along `axis` as indices.
    ///
    /// # Errors
    /// As [`Tensor::scatter_add_`].
    #[track_caller]
    pub fn index_add_(
        &mut self,
        axis: impl Into<Axis>,
        index: &Tensor,
        source: &Tensor,
    ) -> Result<()> {
        let axis = check_axis("index_add", self.shape(), axis)?;
        let op = "index_add";
        self.check_slices(op, axis, index, source)?;
        self.check_dtype(op, source)?;
        self.arrive(op, Arrival::Add, axis, index, source)
    }

    /// [`Tensor::index_add_`] into a copy of this tensor; half types are summed in f32.
    ///
    /// # Errors
    /// As [`Tensor::index_add_`], and `OutOfMemory`.
    #[track_caller]
    pub fn index_add(
        &self,
        axis: impl Into<Axis>,
        index: &Tensor,
        source: &Tensor,
    ) -> Result<Tensor> {
        let axis = check_axis("index_add", self.shape(), axis)?;
        let op = "index_add";
        self.check_slices(op, axis, index, source)?;
        self.check_dtype(op, source)?;
        let y = self.wide_copy()?;
        y.arrive(op, Arrival::Add, axis, index, source)?;
        y.to_dtype(self.dtype())
    }

    /// `x[i, index[j], k] = source[i, j, k]` for axis 1. If indices repeat, the last slice wins.
    ///
    /// # Shapes
    /// As [`Tensor::index_add_`].
    ///
    /// # Errors
    /// As [`Tensor::scatter_`].
    #[track_caller]
    pub fn index_copy_(
        &mut self,
        axis: impl Into<Axis>,
        index: &Tensor,
        source: &Tensor,
    ) -> Result<()> {
        let axis = check_axis("index_copy", self.shape(), axis)?;
        let op = "index_copy";
        self.check_slices(op, axis, index, source)?;
        self.arrive(op, Arrival::Replace, axis, index, source)
    }

    /// [`Tensor::index_copy_`] into a copy of this tensor.
    ///
    /// # Errors
    /// As [`Tensor::index_copy_`], and `OutOfMemory`.
    #[track_caller]
    pub fn index_copy(
        &self,
        axis: impl Into<Axis>,
        index: &Tensor,
        source: &Tensor,
    ) -> Result<Tensor> {
        let axis = check_axis("index_copy", self.shape(), axis)?;
        let op = "index_copy";
        self.check_slices(op, axis, index, source)?;
        let y = self.copied()?;
        y.arrive(op, Arrival::Replace, axis, index, source)?;
        Ok(y)
    }
}
