//! Differences, distances and covariances, composed of other operations.

pub(crate) mod combined;

use crate::axis::Axis;
use crate::dtype::DType;
use crate::error::{Result, TensorError};
use crate::layout::{Shape, check_axis};
use crate::tensor::Tensor;

/// The options of [`Tensor::cov`] that count observations. Values are not checked: a negative
/// frequency or weight subtracts observations.
#[derive(Clone, Copy, Debug)]
pub struct Covariance<'a> {
    /// The number that is subtracted from the number of observations to give the divisor: 1 for a
    /// sample, 0 for a whole population.
    pub correction: f64,
    /// Number of times that each observation counts.
    pub frequencies: Option<&'a Tensor>,
    /// The weight of each observation.
    pub weights: Option<&'a Tensor>,
}

impl Default for Covariance<'_> {
    fn default() -> Self {
        Covariance { correction: 1.0, frequencies: None, weights: None }
    }
}

/// The parts of a covariance and its gradient, for x: `[D, N]`.
struct Centered {
    /// x without the mean of each row.
    x: Tensor,
    /// The centered observations, times their weights.
    weighted: Tensor,
    /// The divisor of the products.
    divisor: Tensor,
}

impl Covariance<'_> {
    /// Checks that frequencies are whole numbers and that weights have the observations' type.
    fn check_types(&self, op: &'static str, dtype: DType) -> Result<()> {
        let mismatch = |left, right| Err(TensorError::DType { op, left, right });
        match (self.frequencies, self.weights) {
            (Some(frequencies), _) if frequencies.dtype().is_float() => {
                mismatch(frequencies.dtype(), DType::I64)
            }
            (_, Some(weights)) if weights.dtype() != dtype => mismatch(weights.dtype(), dtype),
            _ => Ok(()),
        }
    }

    /// The weight of each observation; `None` if all are 1.
    #[track_caller]
    fn factors(&self, op: &'static str, x: &Tensor) -> Result<Option<Tensor>> {
        let mut factors: Option<Tensor> = None;
        for part in [self.frequencies, self.weights].into_iter().flatten() {
            part.check_shape(op, [x.shape()[1]])?;
            let part = part.to_dtype(x.dtype())?;
            factors = Some(match factors {
                None => part,
                Some(factors) => factors.mul(&part)?,
            });
        }
        Ok(factors)
    }

    #[track_caller]
    fn centered(&self, op: &'static str, x: &Tensor) -> Result<Centered> {
        let (device, dtype) = (x.device(), x.dtype());
        let Some(factors) = self.factors(op, x)? else {
            let x = x.sub(&x.mean_keep(&[1])?)?;
            let count = (x.shape()[1] as f64 - self.correction).max(0.0);
            let divisor = Tensor::full(device, [], dtype, count)?;
            return Ok(Centered { weighted: x.clone(), x, divisor });
        };
        let sum = factors.sum_all()?;
        let mean = x.mul(&factors)?.sum_keep(&[1])?.div(&sum)?;
        let x = x.sub(&mean)?;
        let lost = match self.weights {
            Some(weights) if self.correction != 0.0 => {
                let squares = factors.mul(&weights.to_dtype(dtype)?)?.sum_all()?;
                squares.div(&sum)?.mul_scalar(self.correction)?
            }
            _ => Tensor::full(device, [], dtype, self.correction)?,
        };
        let divisor = sum.sub(&lost)?.maximum_scalar(0.0)?;
        Ok(Centered { weighted: x.mul(&factors)?, x, divisor })
    }
}

impl Tensor {
    /// A row for each variable, in the type of the computation.
    #[track_caller]
    fn variables(&self, op: &'static str) -> Result<Tensor> {
        if !self.dtype().is_float() {
            return Err(TensorError::DType { op, left: self.dtype(), right: DType::F32 });
        }
        let wide = self.to_dtype(self.dtype().computed())?;
        match self.shape()[..] {
            [] | [_] => wide.reshape([1, self.element_count()]),
            [_, _] => Ok(wide),
            _ => {
                let right = Shape::new(&[1, self.element_count()]);
                Err(TensorError::Shape { op, left: *self.shape(), right })
            }
        }
    }

    /// The covariances of variables, which are the rows of this tensor; columns are observations:
    /// `C = (x - m) W (x - m)ᵀ / d` with the weighted mean m of each row. The divisor d is the sum
    /// of the observations' factors w minus the correction; with weights a, minus
    /// `correction · Σ w a / Σ w`. Floats only; half types are computed in f32.
    ///
    /// # Shapes
    /// `[D, N] → [D, D]`, for one variable `[]`; frequencies (whole numbers) and weights (of x's
    /// type) are `[N]`.
    ///
    /// # Errors
    /// `Shape`, `DType`, `Device`, `OutOfMemory`.
    #[track_caller]
    pub fn cov(&self, covariance: Covariance<'_>) -> Result<Tensor> {
        let op = "cov";
        covariance.check_types(op, self.dtype())?;
        let x = self.variables(op)?;
        let Centered { x, weighted, divisor } = covariance.centered(op, &x)?;
        let mut y = weighted.matmul(&x.transpose(0, 1)?)?;
        y.div_(&divisor)?;
        let y = y.to_dtype(self.dtype())?;
        if y.element_count() == 1 { y.reshape([]) } else { Ok(y) }
    }

    /// The gradient of `x` through [`Tensor::cov`] for `self = dy`: `(dy + dyᵀ) (x - m) W / d`.
    ///
    /// # Errors
    /// The errors of [`Tensor::cov`].
    #[track_caller]
    pub fn cov_backward(&self, x: &Tensor, covariance: Covariance<'_>) -> Result<Tensor> {
        let op = "cov_backward";
        self.check_dtype(op, x)?;
        covariance.check_types(op, self.dtype())?;
        let rows = x.variables(op)?;
        let Centered { weighted, divisor, .. } = covariance.centered(op, &rows)?;
        let count = rows.shape()[0];
        let dy = self.reshape([count, count])?.to_dtype(rows.dtype())?;
        let mut both = dy.add(&dy.transpose(0, 1)?)?;
        both.div_(&divisor)?;
        both.matmul(&weighted)?.to_dtype(self.dtype())?.reshape(*x.shape())
    }

    /// The correlations of variables, which are the rows of this tensor: [`Tensor::cov`] divided by
    /// the standard deviations of both variables, limited to -1 and 1. Floats only.
    ///
    /// # Shapes
    /// `[D, N] → [D, D]`, for one variable `[]`.
    ///
    /// # Errors
    /// The errors of [`Tensor::cov`].
    #[track_caller]
    pub fn corrcoef(&self) -> Result<Tensor> {
        let c = self.cov(Covariance::default())?;
        if c.shape().is_empty() {
            return c.div(&c);
        }
        let deviations = c.diagonal(0, 0, 1)?.sqrt()?;
        let mut y = c.div(&deviations.unsqueeze(1)?)?;
        y.div_(&deviations)?;
        y.clamp_(-1.0, 1.0)?;
        Ok(y)
    }

    /// The sum of the diagonal of a matrix, without dimensions; result types as [`Tensor::sum`].
    ///
    /// # Errors
    /// `Shape` unless there are two dimensions, `OutOfMemory`.
    #[track_caller]
    pub fn trace(&self) -> Result<Tensor> {
        if self.shape().len() != 2 {
            let right = Shape::new(&[1, self.element_count()]);
            return Err(TensorError::Shape { op: "trace", left: *self.shape(), right });
        }
        self.diagonal(0, 0, 1)?.sum(&[0])
    }

    /// The differences of neighbours along `axis`, `y[i] = x[i + 1] - x[i]`, computed `times` times
    /// in turn. For truth values, true if neighbours differ. To put elements in front or behind,
    /// [`Tensor::cat`] them first.
    ///
    /// # Shapes
    /// `[A, N, C] → [A, N - times, C]` for axis 1; empty if N is at most `times`.
    ///
    /// # Errors
    /// `Index`, `OutOfMemory`.
    #[track_caller]
    pub fn diff(&self, times: usize, axis: impl Into<Axis>) -> Result<Tensor> {
        let axis = check_axis("diff", self.shape(), axis)?;
        let mut y = self.clone();
        for _ in 0..times {
            let Some(len) = y.shape()[axis].checked_sub(1) else { break };
            let [after, before] = [y.narrow(axis, 1, len)?, y.narrow(axis, 0, len)?];
            y = match self.dtype() {
                DType::Bool => after.logical_xor(&before)?,
                _ => after.sub(&before)?,
            };
        }
        if times == 0 { self.copied() } else { Ok(y) }
    }

    /// `(Σ |self - other|^order)^(1/order)` over all elements, both operands broadcast, without
    /// dimensions; see [`Tensor::norm`]. Floats only; the difference of half types is in f32.
    ///
    /// # Errors
    /// `Shape`, `DType`, `Device`, `OutOfMemory`, `Index` for an infinite order without elements.
    #[track_caller]
    pub fn dist(&self, other: &Tensor, order: f64) -> Result<Tensor> {
        self.check_dtype("dist", other)?;
        let wide = |x: &Tensor| x.to_dtype(x.dtype().computed());
        let difference = wide(self)?.sub(&wide(other)?)?;
        let axes: Vec<usize> = (0..difference.shape().len()).collect();
        difference.norm(&axes, order)?.to_dtype(self.dtype())
    }

    /// Scales each slice along `axis` down to `norm_max` if its [`Tensor::norm`] is larger. Floats
    /// only.
    ///
    /// # Errors
    /// `Index`, `Shape` for fewer than two dimensions, `DType`, `OutOfMemory`.
    #[track_caller]
    pub fn renorm(&self, order: f64, axis: impl Into<Axis>, norm_max: f64) -> Result<Tensor> {
        let op = "renorm";
        let rank = self.shape().len();
        if rank < 2 {
            let right = Shape::new(&[1, self.element_count()]);
            return Err(TensorError::Shape { op, left: *self.shape(), right });
        }
        let axis = check_axis(op, self.shape(), axis)?;
        let others: Vec<usize> = (0..rank).filter(|&other| other != axis).collect();
        let norms = self.norm_keep(&others, order)?;
        // As in PyTorch, the factor is a little smaller, so that rounding does not exceed
        // `norm_max`.
        let mut factors = norms.add_scalar(1e-7)?;
        factors.reciprocal_()?;
        factors.mul_scalar_(norm_max)?;
        factors.masked_fill_(&norms.gt_scalar(norm_max)?.logical_not()?, 1.0)?;
        self.mul(&factors)
    }
}
