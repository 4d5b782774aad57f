//! Elementwise operations, with broadcasting and in place: `y[i] = f(x[i], ..)`.
//!
//! A new formula is an entry of `table.rs`. Methods of several operands are in `methods.rs`.

#[macro_use]
mod stamp;
pub(crate) mod closeness;
mod convert;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod division;
#[cfg(feature = "testing")]
pub(crate) mod listed;
mod methods;
mod op;
mod parts;
mod pow;
mod special;
mod table;

use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::cpu::tiles::{Constant, Formula, Mode, Order, Source, Strided, evaluate};
use crate::dtype::{DType, Element, for_each_dtype};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::tensor::Tensor;
use cpu::{apply_to_floats, apply_to_integers};
use op::{Domain, Op};

/// A formula over `len` elements.
struct Elementwise {
    name: &'static str,
    op: Op,
    /// The type of the sources that are not masks.
    dtype: DType,
    /// The type of the destination.
    result: DType,
    /// The last source, if it is a single number.
    scalar: Option<f64>,
    len: usize,
}

impl FullKernel for Elementwise {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cost(&self) -> Cost {
        let scalar_count = usize::from(self.scalar.is_some());
        let read_bytes = (self.op.source_count() - scalar_count) * self.dtype.size_bytes();
        let bytes = (self.len * (read_bytes + self.result.size_bytes())) as f64;
        Cost { class: OpClass::Elementwise, flops: self.op.flops() * self.len as f64, bytes }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        match self.dtype {
            DType::F64 => self.run(cpu, operands, apply_to_floats::<f64>),
            DType::F32 | DType::F16 | DType::BF16 => {
                self.run(cpu, operands, apply_to_floats::<f32>);
            }
            DType::I64 | DType::I32 | DType::U8 | DType::Bool => {
                self.run(cpu, operands, apply_to_integers);
            }
        }
        Ok(())
    }
}

impl Elementwise {
    fn run<T: Element>(
        &self,
        cpu: &Cpu,
        operands: &mut Operands<'_>,
        apply: impl Fn(Op, &[&[T]], &mut [T]) + Sync,
    ) {
        let constant = self.scalar.map(|value| Constant::new(T::from_f64(value)));
        let order = operands.write_order(0);
        let count = operands.read_count();
        let strided: Vec<Box<dyn Source<T> + '_>> =
            (0..count).map(|index| source(operands, index, &order)).collect();
        let mut sources: Vec<&dyn Source<T>> = strided.iter().map(|source| &**source).collect();
        sources.extend(constant.as_ref().map(|constant| constant as &dyn Source<T>));
        let mode = match self.op {
            _ if sources.len() == self.op.source_count() => Mode::Overwrite,
            Op { formula: op::Formula::Number(_), .. } => Mode::UpdateInPlace,
            _ => Mode::Update,
        };
        let op = self.op;
        let formula: Formula<'_, T> = &move |sources, to| apply(op, sources, to);
        for_each_dtype!(self.result, O => {
            evaluate(cpu, operands.write::<O>(0), &order, mode, &sources, Some(formula));
        });
    }
}

/// The `index`-th operand that is read, as a source of `T`. It may have any type.
pub(crate) fn source<'a, T: Element>(
    operands: &Operands<'a>,
    index: usize,
    order: &Order,
) -> Box<dyn Source<T> + 'a> {
    for_each_dtype!(operands.read_dtype(index), E => {
        Box::new(Strided::new(operands.read::<E>(index), order))
    })
}

impl Op {
    /// Checks that the formula is defined for `dtype`, and that the scalars are values of that
    /// type.
    fn check(self, name: &'static str, dtype: DType, scalars: &[f64]) -> Result<()> {
        let is_defined = match self.domain() {
            Domain::Floats => dtype.is_float(),
            Domain::FloatsAndIntegers => dtype != DType::Bool,
            Domain::Everything => true,
        };
        if !is_defined {
            return Err(TensorError::DType { op: name, left: dtype, right: DType::F32 });
        }
        // An infinite bound is the end of the integer type's range. 0.5 is no integer.
        let is_value = |x: f64| dtype.is_float() || x.is_infinite() || x.fract() == 0.0;
        if scalars.iter().all(|&scalar| is_value(scalar)) {
            return Ok(());
        }
        Err(TensorError::DType { op: name, left: dtype, right: DType::F64 })
    }
}

/// The common shape of broadcasting.
fn broadcast(name: &'static str, tensors: &[&Tensor]) -> Result<crate::layout::Shape> {
    let first = *tensors[0].shape();
    tensors[1..].iter().try_fold(first, |left, tensor| {
        let right = *tensor.shape();
        left.broadcast(&right).ok_or(TensorError::Shape { op: name, left, right })
    })
}

impl Tensor {
    /// `op` of `inputs` followed by `scalar`. Inputs have one type, except for masks.
    #[track_caller]
    fn elementwise(
        name: &'static str,
        op: Op,
        inputs: &[&Tensor],
        scalar: Option<f64>,
    ) -> Result<Tensor> {
        let value = inputs[usize::from(op.is_mask(0))];
        check_operands(name, op, value, inputs, scalar, |index| op.is_mask(index))?;
        let shape = broadcast(name, inputs)?;
        let dtype = value.dtype();
        division::check(name, op, dtype, inputs, scalar)?;
        let is_test = matches!(op.formula, op::Formula::Test(_));
        let result = if is_test { DType::Bool } else { dtype };
        let y = Tensor::empty(value.device(), shape, result)?;
        let kernel = Elementwise { name, op, dtype, result, scalar, len: shape.element_count() };
        launch(kernel, inputs, &y)?;
        Ok(y)
    }

    /// Writes `op` of this tensor, `others` and `scalar` over this tensor.
    #[track_caller]
    fn elementwise_(
        &mut self,
        name: &'static str,
        op: Op,
        others: &[&Tensor],
        scalar: Option<f64>,
    ) -> Result<()> {
        // This tensor is the first operand.
        check_operands(name, op, self, others, scalar, |index| op.is_mask(index + 1))?;
        let left = *self.shape();
        for other in others {
            let right = *other.shape();
            if left.broadcast(&right) != Some(left) {
                return Err(TensorError::Shape { op: name, left, right });
            }
        }
        let (dtype, len) = (self.dtype(), self.element_count());
        division::check(name, op, dtype, others, scalar)?;
        let kernel = Elementwise { name, op, dtype, result: dtype, scalar, len };
        launch(kernel, others, self)
    }
}

/// Checks that the formula is defined for the type of `value`, and that all operands have this
/// type. Masks are truth values.
fn check_operands(
    name: &'static str,
    op: Op,
    value: &Tensor,
    operands: &[&Tensor],
    scalar: Option<f64>,
    is_mask: impl Fn(usize) -> bool,
) -> Result<()> {
    for (index, operand) in operands.iter().enumerate() {
        let expected = if is_mask(index) { DType::Bool } else { value.dtype() };
        if operand.dtype() != expected {
            let (left, right) = if is_mask(index) {
                (operand.dtype(), expected)
            } else {
                (value.dtype(), operand.dtype())
            };
            return Err(TensorError::DType { op: name, left, right });
        }
    }
    let [p, q] = if op.has_scalars_apart() { [0.0; 2] } else { op.scalars };
    op.check(name, value.dtype(), &[p, q, scalar.unwrap_or(0.0)])
}

/// Launches `kernel` over `inputs`, broadcast to the shape of `y`.
#[track_caller]
fn launch(kernel: Elementwise, inputs: &[&Tensor], y: &Tensor) -> Result<()> {
    let stretched: Vec<Tensor> =
        inputs.iter().map(|input| input.expand(*y.shape())).collect::<Result<_>>()?;
    let reads: Vec<&Tensor> = stretched.iter().collect();
    y.device().launch(kernel, &reads, &[y])
}
