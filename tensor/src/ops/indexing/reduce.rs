//! Elements reduced at the places of their indices, and places set to one number: scatter_reduce,
//! index_reduce, index_fill.

use super::cpu::{self, Arrivals};
use super::scatter::{Arrival, Line};
use super::strides;
use crate::axis::Axis;
use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::cpu::arithmetic::Arithmetic;
use crate::dtype::{DType, Element, for_each_dtype};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::layout::{RANK_MAX, Shape, check_axis};
use crate::operand_view::View;
use crate::tensor::Tensor;

/// The reduction of the elements that arrive at one place, for [`Tensor::scatter_reduce`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScatterReduction {
    /// The sum of the elements.
    Sum,
    /// The product of the elements.
    Prod,
    /// The mean of the elements; rounded down for integers.
    Mean,
    /// The largest element; NaN if one of them is NaN.
    Amax,
    /// The smallest element; NaN if one of them is NaN.
    Amin,
}

/// The role of an old element in the reduction of the elements that arrive at its place. If nothing
/// arrives, the old element stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Existing {
    /// The old element takes part in the reduction, before the elements that arrive.
    Included,
    /// The old element does not take part.
    Replaced,
}

/// One step of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Sets a place to the start value of the reduction.
    Start,
    /// Reduces an arriving element into its place.
    Fold,
}

impl ScatterReduction {
    /// The start value: the result of a reduction of no elements.
    fn start<D: Element>(self) -> D {
        let is_truth = D::DTYPE == DType::Bool;
        match self {
            ScatterReduction::Sum | ScatterReduction::Mean => D::ZERO,
            ScatterReduction::Prod => D::ONE,
            ScatterReduction::Amax if is_truth => D::ZERO,
            ScatterReduction::Amin if is_truth => D::ONE,
            ScatterReduction::Amax => D::from_f64(f64::NEG_INFINITY),
            ScatterReduction::Amin => D::from_f64(f64::INFINITY),
        }
    }

    /// The step for one element. All reductions share one closure, so that the loops around it are
    /// compiled once for each type.
    fn step<S: Element, D: Element<Compute: Arithmetic>>(
        self,
        step: Step,
    ) -> impl Fn(&mut D, S) + Sync + Copy {
        let start: D = self.start();
        move |to, from| {
            if step == Step::Start {
                *to = start;
                return;
            }
            let (a, b) = (to.cast::<D::Compute>(), from.cast::<D::Compute>());
            let y = match self {
                ScatterReduction::Sum | ScatterReduction::Mean => a.plus(b),
                ScatterReduction::Prod => a.times(b),
                ScatterReduction::Amax => a.larger(b),
                ScatterReduction::Amin => a.smaller(b),
            };
            *to = y.cast();
        }
    }
}

/// Reduces the elements of the second operand at the places of the indices in the first operand.
pub(super) struct ScatterReduce {
    pub(super) line: Line,
    pub(super) reduction: ScatterReduction,
    pub(super) existing: Existing,
    /// Types of the source and of the destination: f32 for half types.
    pub(super) dtypes: [DType; 2],
    len: usize,
    index_len: usize,
}

impl FullKernel for ScatterReduce {
    fn name(&self) -> &'static str {
        self.line.name
    }

    fn cost(&self) -> Cost {
        let [from, to] = self.dtypes.map(DType::size_bytes);
        let bytes = (self.len * (from + 2 * to) + 8 * self.index_len) as f64;
        Cost { class: OpClass::Indexing, flops: self.len as f64, bytes }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        match self.dtypes {
            [DType::F16, _] => self.run::<half::f16, f32>(cpu, operands),
            [DType::BF16, _] => self.run::<half::bf16, f32>(cpu, operands),
            [dtype, _] => for_each_dtype!(dtype, T => self.run::<T, T>(cpu, operands)),
        }
    }
}

impl ScatterReduce {
    /// True if the result depends on the order of arrival.
    fn has_order(&self) -> bool {
        let is_sum = matches!(self.reduction, ScatterReduction::Sum | ScatterReduction::Mean);
        let is_integer = matches!(self.dtypes[1], DType::I64 | DType::I32);
        !(is_sum && is_integer && self.existing == Existing::Included)
    }

    fn run<S: Element, D: Element<Compute: Arithmetic>>(
        &self,
        cpu: &Cpu,
        operands: &mut Operands<'_>,
    ) -> Result<()> {
        let (index, source) = (operands.read::<i64>(0), operands.read::<S>(1));
        let mut to = operands.write::<D>(0);
        let Line { name, index_strides, axis } = self.line;
        cpu::check(cpu, name, index, to.layout().shape()[axis])?;
        let index = index.data();
        let arrivals = Arrivals { index, index_strides, source, axis };
        let steps = match self.existing {
            Existing::Included => &[Step::Fold][..],
            Existing::Replaced => &[Step::Start, Step::Fold],
        };
        for &step in steps {
            let fold = self.reduction.step::<S, D>(step);
            arrivals.run(cpu, &mut to, fold, |to: &mut [D], from: &[S]| {
                to.iter_mut().zip(from).for_each(|(to, from)| fold(to, *from));
            });
        }
        Ok(())
    }
}

/// Sets the positions along `axis` that the operand names to a number.
pub(super) struct IndexFill {
    pub(super) value: f64,
    pub(super) dtype: DType,
    pub(super) axis: usize,
    /// Shape of the tensor that is filled.
    pub(super) shape: Shape,
}

impl FullKernel for IndexFill {
    fn name(&self) -> &'static str {
        "index_fill"
    }

    fn cost(&self) -> Cost {
        let written = self.shape.element_count() * self.dtype.size_bytes();
        let bytes = (written + 8 * self.shape[self.axis]) as f64;
        Cost { class: OpClass::Indexing, flops: 0.0, bytes }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let index = operands.read::<i64>(0);
        for_each_dtype!(self.dtype, T => {
            let mut to = operands.write::<T>(0);
            cpu::check(cpu, self.name(), index, to.layout().shape()[self.axis])?;
            let mut index_strides = [0; RANK_MAX];
            index_strides[self.axis] = index.layout().strides()[0];
            let (value, index, axis) = (T::from_f64(self.value), index.data(), self.axis);
            let source = View::repeated(&value, self.shape);
            Arrivals { index, index_strides, source, axis }.replace(cpu, &mut to);
        });
        Ok(())
    }
}

impl Tensor {
    /// A copy of this tensor with the arriving elements reduced into it; `index` has the source's
    /// shape.
    #[track_caller]
    fn reduced_at(
        &self,
        op: &'static str,
        axis: usize,
        [index, source]: [&Tensor; 2],
        (reduction, existing): (ScatterReduction, Existing),
    ) -> Result<Tensor> {
        self.check_dtype(op, source)?;
        let (dtype, is_mean) = (self.dtype(), reduction == ScatterReduction::Mean);
        if is_mean && dtype == DType::Bool {
            return Err(TensorError::DType { op, left: DType::Bool, right: DType::U8 });
        }
        let mut y = self.wide_copy()?;
        let kernel = ScatterReduce {
            line: Line { name: op, index_strides: strides(index.layout().strides()), axis },
            reduction,
            existing,
            dtypes: [dtype, y.dtype()],
            len: source.element_count(),
            index_len: index.element_count(),
        };
        let pairs = kernel.line.pairs(source, &y, kernel.has_order())?;
        let writes: Vec<&Tensor> = [&y].into_iter().chain(&pairs).collect();
        self.device().launch(kernel, &[index, source], &writes)?;
        if is_mean {
            let counts = self.arrivals_at(op, axis, index, existing)?.to_dtype(y.dtype())?;
            match dtype.is_float() {
                true => y.div_(&counts)?,
                false => y.div_floor_(&counts)?,
            }
        }
        y.to_dtype(dtype)
    }

    /// Number of elements in the mean at each place of this tensor, at least 1; as i64.
    #[track_caller]
    fn arrivals_at(
        &self,
        op: &'static str,
        axis: usize,
        index: &Tensor,
        existing: Existing,
    ) -> Result<Tensor> {
        let own = if existing == Existing::Included { 1.0 } else { 0.0 };
        let mut counts = Tensor::full(self.device(), *self.shape(), DType::I64, own)?;
        let one = Tensor::ones(self.device(), [], DType::I64)?.expand(*index.shape())?;
        counts.arrive(op, Arrival::Add, axis, index, &one)?;
        counts.maximum_scalar_(1.0)?;
        Ok(counts)
    }

    /// A copy of this tensor with elements of `source` reduced into it. For axis 1, element
    /// `[i, index[i, j, k], k]` reduces all `source[i, j, k]` with this place, in the order along
    /// `axis`. Any element type (truth values have no mean); half types are reduced in f32.
    ///
    /// # Shapes
    /// The index is at most x along every dimension but `axis`, and at most `source` along all.
    ///
    /// # Errors
    /// `Index` for a dimension that does not exist or an index out of range, `Shape`, `DType`
    /// unless indices are i64 and the others have one type, `Device`, `OutOfMemory`.
    #[track_caller]
    pub fn scatter_reduce(
        &self,
        axis: impl Into<Axis>,
        index: &Tensor,
        source: &Tensor,
        reduction: ScatterReduction,
        existing: Existing,
    ) -> Result<Tensor> {
        let op = "scatter_reduce";
        let axis = check_axis(op, self.shape(), axis)?;
        let source = self.check_scatter(op, axis, index, source)?;
        self.reduced_at(op, axis, [index, &source], (reduction, existing))
    }

    /// A copy of this tensor with slices of `source` reduced into it. For axis 1, element
    /// `[i, index[j], k]` reduces all `source[i, j, k]` with this place; otherwise as
    /// [`Tensor::scatter_reduce`].
    ///
    /// # Shapes
    /// `source` has x's shape, with as many positions along `axis` as indices.
    ///
    /// # Errors
    /// As [`Tensor::scatter_reduce`].
    #[track_caller]
    pub fn index_reduce(
        &self,
        axis: impl Into<Axis>,
        index: &Tensor,
        source: &Tensor,
        reduction: ScatterReduction,
        existing: Existing,
    ) -> Result<Tensor> {
        let op = "index_reduce";
        let axis = check_axis(op, self.shape(), axis)?;
        self.check_slices(op, axis, index, source)?;
        let index = index.spread_along(axis, source.shape())?;
        self.reduced_at(op, axis, [&index, source], (reduction, existing))
    }

    /// The indices, which are given for positions along `axis`, expanded to all elements of
    /// `shape`.
    fn spread_along(&self, axis: usize, shape: &Shape) -> Result<Tensor> {
        let dims: Vec<usize> =
            (0..shape.len()).map(|at| if at == axis { shape[axis] } else { 1 }).collect();
        self.reshape(&dims[..])?.expand(*shape)
    }

    /// Sets every element at the positions `index` (of one dimension) along `axis` to `value`,
    /// converted as [`Tensor::to_dtype`] does. Any element type.
    ///
    /// # Errors
    /// `Index` for a dimension that does not exist or an index out of range, `Shape`, `DType`
    /// unless indices are i64, `Device`, `Frozen`, `Overlap`.
    #[track_caller]
    pub fn index_fill_(&mut self, axis: impl Into<Axis>, index: &Tensor, value: f64) -> Result<()> {
        let op = "index_fill";
        let axis = check_axis(op, self.shape(), axis)?;
        index.check_indices(op, Some(1))?;
        let shape = self.shape().with(axis, index.element_count());
        let kernel = IndexFill { value, dtype: self.dtype(), axis, shape };
        self.device().launch(kernel, &[index], &[self])
    }

    /// [`Tensor::index_fill_`] into a copy of this tensor.
    ///
    /// # Errors
    /// As [`Tensor::index_fill_`], and `OutOfMemory`.
    #[track_caller]
    pub fn index_fill(&self, axis: impl Into<Axis>, index: &Tensor, value: f64) -> Result<Tensor> {
        let axis = check_axis("index_fill", self.shape(), axis)?;
        index.check_indices("index_fill", Some(1))?;
        let mut y = self.copied()?;
        y.index_fill_(axis, index, value)?;
        Ok(y)
    }
}
