//! Reductions of many elements to one, in an order that depends on the layout alone, never on the
//! number of threads. Floats are accumulated in f64, integers and truth values in i64.
//!
//! Every reduction names the dimensions to reduce, which the result lacks. The form with the suffix
//! `_keep` leaves them with length 1. Inputs may have any strides and are not copied first.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod extreme;
mod fold;
mod plan;
mod positions;

use crate::axis::Axis;
use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::dtype::{DType, Element, for_each_dtype};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::layout::{IntoShape, Layout, Shape, check_axes};
use crate::tensor::Tensor;
use cpu::{Center, Finish};
use fold::{Fold, Reducible};
use plan::Tasks;

/// The reductions by name.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reduction {
    Sum,
    Prod,
    Max,
    Min,
    Any,
    All,
    Count,
    // The following reductions are for floats only.
    Mean,
    LogSumExp,
    /// The variance with this correction.
    Var(f64),
    Std(f64),
    /// The norm of this order.
    Norm(f64),
}

impl Reduction {
    fn is_of_floats(self) -> bool {
        use Reduction as R;
        matches!(self, R::Mean | R::LogSumExp | R::Var(_) | R::Std(_) | R::Norm(_))
    }

    /// True if the reduction is defined for no elements.
    fn takes_none(self) -> bool {
        let infinite = matches!(self, Reduction::Norm(order) if order.is_infinite());
        !(infinite || matches!(self, Reduction::Max | Reduction::Min))
    }

    fn result(self, dtype: DType) -> DType {
        match self {
            Reduction::Any | Reduction::All => DType::Bool,
            Reduction::Count => DType::I64,
            Reduction::Sum | Reduction::Prod if !dtype.is_float() => DType::I64,
            _ => dtype,
        }
    }

    fn center(self) -> Option<Center> {
        match self {
            Reduction::Var(_) | Reduction::Std(_) => Some(Center::Mean),
            Reduction::LogSumExp => Some(Center::Max),
            _ => None,
        }
    }

    /// The fold over `count` elements, and the step from its value to the result.
    fn steps(self, count: usize) -> (Fold, Finish) {
        let count = count as f64;
        // 0 if the correction leaves nothing, as in PyTorch: the result is NaN or ∞.
        let left = |correction: f64| (count - correction).max(0.0);
        match self {
            Reduction::Sum => (Fold::Sum, Finish::Keep),
            Reduction::Prod => (Fold::Prod, Finish::Keep),
            Reduction::Max => (Fold::Max, Finish::Keep),
            Reduction::Min => (Fold::Min, Finish::Keep),
            Reduction::Any => (Fold::Count, Finish::AtLeast(1.0)),
            Reduction::All => (Fold::Count, Finish::AtLeast(count)),
            Reduction::Count => (Fold::Count, Finish::Keep),
            Reduction::Mean => (Fold::Sum, Finish::Divide(count)),
            Reduction::LogSumExp => (Fold::ExpSum, Finish::Log),
            Reduction::Var(correction) => (Fold::SquaredDistance, Finish::Divide(left(correction))),
            Reduction::Std(correction) => (Fold::SquaredDistance, Finish::Root(left(correction))),
            Reduction::Norm(0.0) => (Fold::Count, Finish::Keep),
            Reduction::Norm(1.0) => (Fold::AbsSum, Finish::Keep),
            Reduction::Norm(2.0) => (Fold::SquareSum, Finish::Root(1.0)),
            Reduction::Norm(f64::INFINITY) => (Fold::AbsMax, Finish::Keep),
            Reduction::Norm(f64::NEG_INFINITY) => (Fold::AbsMin, Finish::Keep),
            Reduction::Norm(order) => (Fold::PowerSum(order), Finish::Power(1.0 / order)),
        }
    }
}

/// Reduces the trailing dimensions of `[kept.., reduced..]`. Writes the result, the partial
/// results, and the centers of the outputs (or nothing).
struct Reduce {
    name: &'static str,
    reduction: Reduction,
    kept_rank: usize,
    dtype: DType,
    len: usize,
}

impl FullKernel for Reduce {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cost(&self) -> Cost {
        let (flops, passes) = match self.reduction {
            Reduction::LogSumExp => (20, 2),
            Reduction::Var(_) | Reduction::Std(_) => (4, 2),
            _ => (1, 1),
        };
        let bytes = (passes * self.len * self.dtype.size_bytes()) as f64;
        Cost { class: OpClass::Reduction, flops: (flops * self.len) as f64, bytes }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for_each_dtype!(self.dtype, E => self.run::<E, _>(cpu, operands));
        Ok(())
    }
}

impl Reduce {
    fn run<E: Element<Compute = T>, T: Reducible>(&self, cpu: &Cpu, operands: &mut Operands<'_>) {
        let x = operands.read::<E>(0);
        let partials = operands.write::<T::Accumulator>(1).slice();
        let centers = operands.write::<T::Accumulator>(2).slice();
        let plan = Tasks::new(x.layout(), self.kept_rank);
        if let Some(center) = self.reduction.center() {
            cpu::fold(cpu, &plan, center.fold(), x, partials, &[]);
            cpu::centers(cpu, &plan, center, partials, centers);
        }
        let (fold, finish) = self.reduction.steps(plan.reduced);
        cpu::fold(cpu, &plan, fold, x, partials, centers);
        for_each_dtype!(self.reduction.result(self.dtype), O => {
            let y = operands.write::<O>(0).slice();
            cpu::finish(cpu, &plan, (fold, finish), partials, centers, y);
        });
    }
}

/// The treatment of reduced dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reduced {
    /// The result lacks the reduced dimensions.
    Dropped,
    /// The result has the reduced dimensions with length 1.
    Kept,
}

/// An input with its reduced dimensions last, and the shape of the result.
struct Arranged {
    x: Tensor,
    kept_rank: usize,
    shape: Shape,
}

impl Arranged {
    fn new(x: &Tensor, axes: &[usize], reduced: Reduced) -> Result<Self> {
        let is_reduced = |axis: &usize| axes.contains(axis);
        let (last, kept): (Vec<usize>, Vec<usize>) = (0..x.shape().len()).partition(is_reduced);
        let shape = match reduced {
            Reduced::Dropped => kept.iter().map(|&axis| x.shape()[axis]).collect::<Vec<_>>(),
            Reduced::Kept => {
                let len = |axis| if is_reduced(&axis) { 1 } else { x.shape()[axis] };
                (0..x.shape().len()).map(len).collect()
            }
        };
        let x = x.permute(&[&kept[..], &last].concat())?;
        Ok(Arranged { x, kept_rank: kept.len(), shape: Shape::new(&shape) })
    }

    /// Checks that there is an element to choose.
    fn check_choice(&self, op: &'static str) -> Result<()> {
        if self.x.shape()[self.kept_rank..].contains(&0) {
            return Err(TensorError::Index { op, index: 0, len: 0 });
        }
        Ok(())
    }

    fn plan(&self) -> Tasks {
        Tasks::new(self.x.layout(), self.kept_rank)
    }
}

/// Reductions that take only dimensions, or dimensions and a number, each with its `_keep` form.
macro_rules! reductions {
    ($($(#[$doc:meta])+ pub fn $name:ident, $keep:ident = $op:expr;)*) => {$(
        reductions! { @one $(#[$doc])+ $name, $keep () = $op }
    )*};
    ($($(#[$doc:meta])+ pub fn $name:ident, $keep:ident ($number:ident) = $op:expr;)*) => {$(
        reductions! { @one $(#[$doc])+ $name, $keep ($number: f64) = $op }
    )*};
    (@one $(#[$doc:meta])+
        $name:ident, $keep:ident ($($number:ident: f64)?) = $op:expr
    ) => {
        $(#[$doc])+
        ///
        /// # Errors
        /// The errors of [`Tensor::sum`].
        #[track_caller]
        pub fn $name(
            &self,
            axes: &[impl Into<Axis> + Copy] $(, $number: f64)?
        ) -> Result<Tensor> {
            let axes = check_axes(stringify!($name), self.shape(), axes)?;
            self.reduce(stringify!($name), &axes, Reduced::Dropped, $op)
        }

        #[doc = concat!("[`Tensor::", stringify!($name), "`] with the dimensions `axes` kept, of")]
        /// length 1.
        ///
        /// # Errors
        /// The errors of [`Tensor::sum`].
        #[track_caller]
        pub fn $keep(
            &self,
            axes: &[impl Into<Axis> + Copy] $(, $number: f64)?
        ) -> Result<Tensor> {
            let axes = check_axes(stringify!($name), self.shape(), axes)?;
            self.reduce(stringify!($name), &axes, Reduced::Kept, $op)
        }
    };
}

impl Tensor {
    /// The sums over `axes`, which the result lacks. Integers and truth values are summed as i64,
    /// which wraps.
    ///
    /// # Errors
    /// `Index` for a dimension that does not exist, or for an empty dimension if the reduction is
    /// undefined without elements; `Shape` for a dimension that is named twice; `DType` if the
    /// reduction is not defined for the type; `OutOfMemory`. All reductions have these errors.
    #[track_caller]
    pub fn sum(&self, axes: &[impl Into<Axis> + Copy]) -> Result<Tensor> {
        let axes = check_axes("sum", self.shape(), axes)?;
        self.reduce("sum", &axes, Reduced::Dropped, Reduction::Sum)
    }

    /// [`Tensor::sum`] that keeps the dimensions `axes` with length 1; errors as [`Tensor::sum`].
    #[track_caller]
    pub fn sum_keep(&self, axes: &[impl Into<Axis> + Copy]) -> Result<Tensor> {
        let axes = check_axes("sum", self.shape(), axes)?;
        self.reduce("sum", &axes, Reduced::Kept, Reduction::Sum)
    }

    /// The sum of all elements, without dimensions; errors as [`Tensor::sum`].
    #[track_caller]
    pub fn sum_all(&self) -> Result<Tensor> {
        self.sum(&(0..self.shape().len()).collect::<Vec<_>>())
    }

    reductions! {
        /// The products over `axes`; integers and truth values as i64, which wraps.
        pub fn prod, prod_keep = Reduction::Prod;
        /// The means over `axes`; NaN for no elements. Floats only.
        pub fn mean, mean_keep = Reduction::Mean;
        /// The largest values over `axes`; NaN if one of the values is NaN. Any element type.
        pub fn amax, amax_keep = Reduction::Max;
        /// The smallest values over `axes`; NaN if one of the values is NaN. Any element type.
        pub fn amin, amin_keep = Reduction::Min;
        /// True if any element over `axes` is true (not 0). Any element type.
        pub fn any, any_keep = Reduction::Any;
        /// True if all elements over `axes` are true (not 0). Any element type.
        pub fn all, all_keep = Reduction::All;
        /// Number of nonzero elements over `axes`, as i64. Any element type.
        pub fn count_nonzero, count_nonzero_keep = Reduction::Count;
        /// `ln Σ e^x` over `axes`, computed relative to the largest x so that nothing overflows; -∞
        /// for no elements. Floats only.
        pub fn logsumexp, logsumexp_keep = Reduction::LogSumExp;
    }

    reductions! {
        /// The variances over `axes`: `Σ (x - mean)² / (n - correction)`, in two passes. The
        /// correction is 1 for a sample and 0 for a whole population. Floats only.
        pub fn var, var_keep (correction) = Reduction::Var(correction);
        /// The standard deviations: square roots of [`Tensor::var`]. Floats only.
        pub fn std, std_keep (correction) = Reduction::Std(correction);
        /// `(Σ |x|^order)^(1/order)` over `axes`. Order ∞ gives the largest `|x|`, order -∞ the
        /// smallest `|x|`, and order 0 the number of elements that are not 0. Floats only.
        pub fn norm, norm_keep (order) = Reduction::Norm(order);
    }

    #[track_caller]
    fn reduce(
        &self,
        op: &'static str,
        axes: &[usize],
        reduced: Reduced,
        reduction: Reduction,
    ) -> Result<Tensor> {
        let dtype = self.dtype();
        if reduction.is_of_floats() && !dtype.is_float() {
            return Err(TensorError::DType { op, left: dtype, right: DType::F32 });
        }
        let arranged = Arranged::new(self, axes, reduced)?;
        if !reduction.takes_none() {
            arranged.check_choice(op)?;
        }
        let (device, plan) = (self.device(), arranged.plan());
        let y = Tensor::empty(device, arranged.shape, reduction.result(dtype))?;
        let wide = accumulator(dtype);
        let partials = Tensor::workspace(device, plan.partial_count(), wide)?;
        let center_count = if reduction.center().is_some() { plan.outputs } else { 0 };
        let centers = Tensor::workspace(device, center_count, wide)?;
        let (kept_rank, len) = (arranged.kept_rank, self.element_count());
        let kernel = Reduce { name: op, reduction, kept_rank, dtype, len };
        device.launch(kernel, &[&arranged.x], &[&y, &partials, &centers])?;
        Ok(y)
    }

    /// Undoes a broadcast from `shape`: sums over the broadcast dimensions. Returns this tensor
    /// itself if there are none.
    ///
    /// # Errors
    /// `Shape` if `shape` does not broadcast to this shape, and the errors of [`Tensor::sum`].
    #[track_caller]
    pub fn sum_to(&self, shape: impl IntoShape) -> Result<Tensor> {
        let (from, to) = (*self.shape(), shape.into_shape("sum_to")?);
        if from == to {
            return Ok(self.clone());
        }
        if Layout::contiguous(to).expand(from).is_none() {
            return Err(TensorError::Shape { op: "sum_to", left: from, right: to });
        }
        let added = from.len() - to.len();
        let stretched = |&axis: &usize| axis < added || (to[axis - added] == 1 && from[axis] != 1);
        let axes: Vec<usize> = (0..from.len()).filter(stretched).collect();
        self.sum(&axes)?.reshape(to)
    }
}

/// The type of partial results for elements of `dtype`.
fn accumulator(dtype: DType) -> DType {
    if dtype.is_float() { DType::F64 } else { DType::I64 }
}
