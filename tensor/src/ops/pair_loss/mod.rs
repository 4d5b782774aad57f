//! Losses of pairs of elements, summed: `Σ f(x[i], t[i])`, in one pass without an intermediate
//! tensor, and their gradients `dx[i] = dy · f'(x[i], t[i])`.
//!
//! The formulas, and their values at the ends of their domains, are PyTorch's.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;

use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::cpu::math::SimdFloat;
use crate::cpu::tiles::{Formula, Mode, Order, Source, Strided, evaluate};
use crate::dtype::{DType, Element, for_each_float};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::ops::workspace::Workspace;
use crate::tensor::Tensor;

/// A loss f of an element x and its target t.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PairLoss {
    /// `(x - t)²`.
    SquaredError,
    /// `|x - t|`.
    AbsoluteError,
    /// `(x - t)² / (2 · beta)` where the distance is less than beta, `|x - t| - beta / 2`
    /// elsewhere.
    SmoothL1 {
        /// The distance where the two formulas meet; not negative. 0 gives the absolute error.
        beta: f64,
    },
    /// `(x - t)² / 2` up to a distance of delta, then `delta · (|x - t| - delta / 2)`.
    Huber {
        /// The distance where the two formulas meet; positive.
        delta: f64,
    },
    /// `-t·ln x - (1 - t)·ln(1 - x)` of probabilities x; logarithms are at least -100, and the
    /// gradient divides by at least 1e-12.
    BinaryCrossEntropy,
    /// [`PairLoss::BinaryCrossEntropy`] of `1 / (1 + exp(-x))`, for any x. The first term may have
    /// a weight, see [`Tensor::pair_loss_weighted`].
    BinaryCrossEntropyOfLogits,
    /// `t · (ln t - x)`, where x is the logarithm of a probability; 0 where t is 0.
    KlDivergence,
    /// `exp(t) · (t - x)`, where x and t are logarithms of probabilities.
    KlDivergenceOfLog,
}

/// Reads x, t and perhaps a weight; writes the sum and the workspace.
struct Sum {
    loss: PairLoss,
    dtype: DType,
    len: usize,
}

fn cost(len: usize, passes: usize, dtype: DType) -> Cost {
    Cost {
        class: OpClass::Reduction,
        flops: 10.0 * len as f64,
        bytes: (passes * len * dtype.size_bytes()) as f64,
    }
}

impl FullKernel for Sum {
    fn name(&self) -> &'static str {
        "pair_loss"
    }

    fn cost(&self) -> Cost {
        cost(self.len, 2, self.dtype)
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let order = Order::row_major();
        for_each_float!(self.dtype, E as T => {
            let sources: Vec<Strided<'_, E>> = (0..operands.read_count())
                .map(|index| Strided::new(operands.read::<E>(index), &order))
                .collect();
            let sources: Vec<&dyn Source<T>> =
                sources.iter().map(|source| source as &dyn Source<T>).collect();
            let sum = operands.write::<T>(0).slice();
            let partials = operands.write::<f64>(1).slice();
            sum[0] = cpu::sum(cpu, self.loss, &sources, self.len, partials);
        });
        Ok(())
    }
}

/// Reads dy, x, t and perhaps a weight; writes dx.
struct Gradient {
    loss: PairLoss,
    dtype: DType,
    len: usize,
}

impl FullKernel for Gradient {
    fn name(&self) -> &'static str {
        "pair_loss_backward"
    }

    fn cost(&self) -> Cost {
        cost(self.len, 3, self.dtype)
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for_each_float!(self.dtype, E as T => {
            let seed = operands.read::<T>(0).slice()[0];
            write_part::<E>(cpu, operands, 1, self.loss, cpu::Part::Gradient(seed));
        });
        Ok(())
    }
}

/// Reads x, t and perhaps a weight; writes one number for each element.
struct Terms {
    loss: PairLoss,
    dtype: DType,
    len: usize,
}

impl FullKernel for Terms {
    fn name(&self) -> &'static str {
        "pair_loss_terms"
    }

    fn cost(&self) -> Cost {
        cost(self.len, 3, self.dtype)
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for_each_float!(self.dtype, E => {
            write_part::<E>(cpu, operands, 0, self.loss, cpu::Part::Value);
        });
        Ok(())
    }
}

/// Writes a part of the loss for each element. The operands from `first` on are x, t and perhaps a
/// weight.
fn write_part<E: Element<Compute: SimdFloat>>(
    cpu: &Cpu,
    operands: &mut Operands<'_>,
    first: usize,
    loss: PairLoss,
    part: cpu::Part<E::Compute>,
) {
    let order = operands.write_order(0);
    let sources: Vec<Strided<'_, E>> = (first..operands.read_count())
        .map(|index| Strided::new(operands.read::<E>(index), &order))
        .collect();
    let sources: Vec<&dyn Source<E::Compute>> =
        sources.iter().map(|source| source as &dyn Source<E::Compute>).collect();
    let formula: Formula<'_, E::Compute> = &move |sources, to| cpu::apply(part, loss, sources, to);
    let out = operands.write::<E>(0);
    evaluate(cpu, out, &order, Mode::Overwrite, &sources, Some(formula));
}

/// x, and the other operands, such as the target and the weight, broadcast to the shape of x.
fn operands(op: &'static str, x: &Tensor, others: &[Option<&Tensor>]) -> Result<Vec<Tensor>> {
    x.check_any_float(op)?;
    let mut operands = vec![x.clone()];
    for other in others.iter().flatten() {
        x.check_dtype(op, other)?;
        let (left, right) = (*x.shape(), *other.shape());
        if left.broadcast(&right) != Some(left) {
            return Err(TensorError::Shape { op, left, right });
        }
        operands.push(other.expand(left)?);
    }
    Ok(operands)
}

impl Tensor {
    /// `Σ f(x, t)` over all elements of `self = x`, without dimensions, in f32 or f64. The target
    /// broadcasts to x. For the mean, divide by the number of elements.
    ///
    /// # Shapes
    /// `x: [..], target: [..] → []`
    ///
    /// # Errors
    /// `Shape`, `DType` unless both are of one float type, `OutOfMemory`.
    #[track_caller]
    pub fn pair_loss(&self, target: &Tensor, loss: PairLoss) -> Result<Tensor> {
        self.pair_loss_weighted(target, loss, None)
    }

    /// [`Tensor::pair_loss`] with a weight of the term of `t` in
    /// [`PairLoss::BinaryCrossEntropyOfLogits`]: `-weight·t·ln σ(x) - (1 - t)·ln(1 - σ(x))`. The
    /// weight broadcasts to x. Other losses ignore the weight.
    ///
    /// # Errors
    /// The errors of [`Tensor::pair_loss`].
    #[track_caller]
    pub fn pair_loss_weighted(
        &self,
        target: &Tensor,
        loss: PairLoss,
        positive_weight: Option<&Tensor>,
    ) -> Result<Tensor> {
        let reads = operands("pair_loss", self, &[Some(target), positive_weight])?;
        let reads: Vec<&Tensor> = reads.iter().collect();
        let (len, dtype) = (self.element_count(), self.dtype());
        let sum = Tensor::empty(self.device(), [], dtype.computed())?;
        let workspace = Workspace::new(DType::F64, [cpu::partial_count(len)]);
        self.device().launch_with(&workspace, Sum { loss, dtype, len }, &reads, &[&sum])?;
        Ok(sum)
    }

    /// The gradient of x through [`Tensor::pair_loss`], for `self = dy`, the gradient of the sum.
    ///
    /// # Errors
    /// The errors of [`Tensor::pair_loss`].
    #[track_caller]
    pub fn pair_loss_backward(
        &self,
        x: &Tensor,
        target: &Tensor,
        loss: PairLoss,
    ) -> Result<Tensor> {
        self.pair_loss_weighted_backward(x, target, loss, None)
    }

    /// The gradient of x through [`Tensor::pair_loss_weighted`], for `self = dy`.
    ///
    /// # Errors
    /// The errors of [`Tensor::pair_loss`].
    #[track_caller]
    pub fn pair_loss_weighted_backward(
        &self,
        x: &Tensor,
        target: &Tensor,
        loss: PairLoss,
        positive_weight: Option<&Tensor>,
    ) -> Result<Tensor> {
        let op = "pair_loss_backward";
        let operands = operands(op, x, &[Some(target), positive_weight])?;
        self.check_shape(op, [])?;
        let (left, right) = (self.dtype(), x.dtype().computed());
        if left != right {
            return Err(TensorError::DType { op, left, right });
        }
        let (len, dtype) = (x.element_count(), x.dtype());
        let dx = Tensor::empty(x.device(), *x.shape(), dtype)?;
        let reads: Vec<&Tensor> = std::iter::once(self).chain(&operands).collect();
        x.device().launch(Gradient { loss, dtype, len }, &reads, &[&dx])?;
        Ok(dx)
    }

    /// The terms `f(x, t)` of the sum of [`Tensor::pair_loss_weighted`], for `self = x`, in the
    /// type of x. Their gradient is the gradient of the sum times dy, element by element.
    ///
    /// # Shapes
    /// `x: [..]`, target and weight broadcast to x, `→ [..]`
    ///
    /// # Errors
    /// The errors of [`Tensor::pair_loss`].
    #[track_caller]
    pub fn pair_loss_terms(
        &self,
        target: &Tensor,
        loss: PairLoss,
        positive_weight: Option<&Tensor>,
    ) -> Result<Tensor> {
        let reads = operands("pair_loss_terms", self, &[Some(target), positive_weight])?;
        let reads: Vec<&Tensor> = reads.iter().collect();
        let (len, dtype) = (self.element_count(), self.dtype());
        let y = Tensor::empty(self.device(), *self.shape(), dtype)?;
        self.device().launch(Terms { loss, dtype, len }, &reads, &[&y])?;
        Ok(y)
    }
}
