//! Muon (Jordan et al. 2024), `torch.optim.Muon`, for matrices; AdamW for the rest.

use lowtide_tensor::{DType, Float, KnownFormula, KnownNorms, NormFormula, Tensor, UpdateFormula};
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::checks::{check_not_negative, check_option};
use crate::error::Result;
use crate::optim::adam::AdamOptions;
use crate::optim::per_parameter::PerParameter;
use crate::optim::rule::{Job, Scratch, StateSpec, UpdateRule, UpdateStep, update_jobs};
use crate::optim::sgd::Momentum;
use crate::optim::slots::{block_bytes, norm_partials_bytes};

/// Options of [`Muon`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(deny_unknown_fields, default))]
pub struct MuonOptions {
    /// Learning rate of matrices.
    pub learning_rate: f64,
    /// Decoupled weight decay of matrices.
    pub weight_decay: f64,
    /// Momentum.
    pub momentum: f64,
    /// The kind of momentum.
    #[cfg_attr(feature = "serde", serde(rename = "nesterov"))]
    pub momentum_kind: Momentum,
    /// Coefficients `a`, `b` and `c` of the Newton-Schulz iteration.
    pub coefficients: [f64; 3],
    /// Smallest norm that a direction is divided by.
    pub eps: f64,
    /// Number of Newton-Schulz iterations.
    pub iterations: usize,
    /// The formula of the learning rate of a matrix.
    pub rate_scale: RateScale,
    /// The rule for matrices.
    pub matrices: Matrices,
    /// AdamW's options for all other parameters. A change of the learning rate keeps the ratio of
    /// the two learning rates.
    pub others: AdamOptions,
}

/// Formulas of Muon's learning rate for a matrix of shape `[A, B]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "kebab-case"))]
pub enum RateScale {
    /// `√max(1, A / B)`, Jordan's formula.
    #[default]
    Original,
    /// `0.2 √max(A, B)`, which makes updates as large as AdamW's. Learning rates of AdamW can then
    /// be used (Liu et al. 2025).
    #[cfg_attr(feature = "serde", serde(rename = "match-rms-adamw"))]
    MatchRmsAdamW,
    /// `√(A / B)` (Bernstein 2025).
    SpectralUnclamped,
}

/// Rules for matrices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "kebab-case"))]
pub enum Matrices {
    /// Matrices are updated by Muon.
    #[default]
    Orthogonal,
    /// Matrices are updated by AdamW, like all other parameters. For a group of embeddings and
    /// output layers, which Muon is not meant for.
    LikeOthers,
}

impl Default for MuonOptions {
    fn default() -> Self {
        MuonOptions {
            learning_rate: 1e-3,
            weight_decay: 0.1,
            momentum: 0.95,
            momentum_kind: Momentum::Nesterov,
            coefficients: [3.4445, -4.7750, 2.0315],
            eps: 1e-7,
            iterations: 5,
            rate_scale: RateScale::Original,
            matrices: Matrices::Orthogonal,
            others: AdamOptions::adamw(),
        }
    }
}

/// Muon, for parameters with two dimensions:
///
/// ```text
/// m = momentum · m + (1 - momentum) · g
/// x = m                                       (Nesterov: momentum · m + (1 - momentum) · g)
/// x = x / max(‖x‖, eps), then `iterations` times  A = x xᵀ,  x = a x + (b A + c A²) x
/// p = p · (1 - learning_rate · weight_decay) - learning_rate · rate_scale · x
/// ```
///
/// The iteration is computed in f32 (in PyTorch: bf16) and brings the singular values near 1.
/// Parameters with another number of dimensions are updated by AdamW.
pub type Muon = PerParameter<MuonOptions>;

impl UpdateRule for MuonOptions {
    const NAME: &'static str = "muon";
    const IS_KNOWN: bool = true;

    fn check(&self) -> Result<()> {
        check_not_negative(&[
            ("learning_rate", self.learning_rate),
            ("weight_decay", self.weight_decay),
            ("momentum", self.momentum),
            ("eps", self.eps),
        ])?;
        let iterations = self.iterations as f64;
        check_option("iterations", iterations, "0..100", |x| x < 100.0)?;
        let finite = |x| check_option("coefficient", x, "the numbers", f64::is_finite);
        self.coefficients.into_iter().try_for_each(finite)?;
        self.others.check()
    }

    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    fn states(&self, parameter: &Tensor) -> Vec<StateSpec> {
        if self.is_orthogonal(parameter) {
            vec![StateSpec::own("momentum_buffer", *parameter.shape())]
        } else {
            self.others.states(parameter)
        }
    }

    fn scratch(&self, parameters: &[&Tensor]) -> Scratch {
        let matrices = || parameters.iter().copied().filter(|matrix| self.is_orthogonal(matrix));
        let own = |matrix: &Tensor| {
            let dtype = matrix.dtype().computed();
            let is_half = dtype != matrix.dtype();
            let wide_bytes = if is_half { block_bytes(matrix.element_count(), dtype) } else { 0 };
            wide_bytes + block_bytes(1, dtype)
        };
        let shared = shared_lens(matrices()).into_iter();
        let shared = shared.map(|(dtype, len)| block_bytes(len, dtype)).sum::<usize>();
        let held_bytes = matrices().map(own).sum::<usize>() + shared;
        Scratch { held_bytes, peak_bytes: held_bytes + norm_partials_bytes(matrices(), 1) }
    }

    fn prepare(&self, jobs: &mut [Job]) -> Result<Vec<Tensor>> {
        let is_matrix = |job: &&mut Job| self.is_orthogonal(&job.parameter);
        let mut matrices: Vec<&mut Job> = jobs.iter_mut().filter(is_matrix).collect();
        let lens = shared_lens(matrices.iter().map(|job| &job.parameter));
        let Some(device) = matrices.first().map(|job| job.parameter.device().clone()) else {
            return Ok(Vec::new());
        };
        let shared = lens.into_iter().map(|(dtype, len)| Tensor::empty(&device, [len], dtype));
        let shared = shared.collect::<lowtide_tensor::TensorResult<Vec<_>>>()?;
        for job in &mut matrices {
            job.own_gradient()?;
            let direction = UpdateDirection { momentum: self.momentum, kind: self.momentum_kind };
            let mut norm = job.states[0].update_norms(&job.gradient, &[], direction)?;
            norm.maximum_scalar_(self.eps)?;
            job.scratch = vec![norm];
        }
        Ok(shared)
    }

    fn commit(&self, jobs: &mut [Job], shared: &mut [Tensor]) -> lowtide_tensor::TensorResult<()> {
        // Matrices come first, so that each rule gets a contiguous slice of jobs.
        jobs.sort_by_key(|job| !self.is_orthogonal(&job.parameter));
        let count = jobs.partition_point(|job| self.is_orthogonal(&job.parameter));
        let (matrices, others) = jobs.split_at_mut(count);
        for job in &mut *matrices {
            self.orthogonalize(job, shared)?;
        }
        update_jobs::<_, 0, 0>(matrices, |job| self.formula(job))?;
        update_jobs::<_, 2, 0>(others, |job| {
            let ratio = match self.learning_rate {
                0.0 => 1.0,
                base => self.others.learning_rate / base,
            };
            let learning_rate = ratio * job.at.learning_rate;
            self.others.formula(UpdateStep { learning_rate, ..job.at })
        })
    }
}

impl MuonOptions {
    fn is_orthogonal(&self, parameter: &Tensor) -> bool {
        self.matrices == Matrices::Orthogonal && parameter.shape().len() == 2
    }

    /// Updates the momentum, and replaces the gradient by a direction with singular values near 1.
    fn orthogonalize(&self, job: &mut Job, shared: &[Tensor]) -> lowtide_tensor::TensorResult<()> {
        let Job { gradient, states, scratch, .. } = job;
        let momentum = &mut states[0];
        momentum.lerp_(gradient, 1.0 - self.momentum)?;
        match self.momentum_kind {
            Momentum::Nesterov => gradient.lerp_(momentum, self.momentum)?,
            Momentum::Classical => gradient.copy_(momentum)?,
        }
        gradient.div_(&scratch[0])?;
        let [a, b, c] = self.coefficients;
        let [mut x, mut y, mut gram, mut square] = workspace(gradient, shared)?;
        for _ in 0..self.iterations {
            gram.zero_()?;
            gram.matmul_add_(&x, &x.transpose(0, 1)?)?;
            square.zero_()?;
            square.matmul_add_(&gram, &gram)?;
            gram.mul_scalar_(b)?;
            gram.add_scaled_(&square, c)?;
            y.copy_(&x)?;
            y.mul_scalar_(a)?;
            y.matmul_add_(&gram, &x)?;
            std::mem::swap(&mut x, &mut y);
        }
        // After an even number of iterations the result is in the gradient already.
        if self.iterations % 2 == 1 { y.copy_(&x) } else { Ok(()) }
    }

    fn formula(&self, job: &Job) -> Formula {
        let &[rows, columns] = &job.parameter.shape()[..] else { unreachable!("a matrix") };
        let [rows, columns] = [rows as f64, columns as f64];
        let scale = match self.rate_scale {
            RateScale::Original => (rows / columns).max(1.0).sqrt(),
            RateScale::MatchRmsAdamW => 0.2 * rows.max(columns).sqrt(),
            RateScale::SpectralUnclamped => (rows / columns).sqrt(),
        };
        let rate = job.at.learning_rate;
        Formula([1.0 - rate * self.weight_decay, scale * rate])
    }
}

/// Number of elements of the workspaces that matrices share, one for each type. The largest matrix
/// of a type determines the number.
fn shared_lens<'a>(matrices: impl Iterator<Item = &'a Tensor>) -> Vec<(DType, usize)> {
    let mut lens = [(DType::F32, None), (DType::F64, None)];
    for matrix in matrices {
        let (rows, columns) = (matrix.shape()[0], matrix.shape()[1]);
        let short = rows.min(columns);
        let (_, len) = &mut lens[usize::from(matrix.dtype() == DType::F64)];
        *len = (*len).max(Some(rows * columns + 2 * short * short));
    }
    lens.into_iter().filter_map(|(dtype, len)| Some((dtype, len?))).collect()
}

/// Tensors of the iteration: the gradient with its shorter dimension first, a second tensor of this
/// shape, and two square matrices.
fn workspace(gradient: &Tensor, shared: &[Tensor]) -> lowtide_tensor::TensorResult<[Tensor; 4]> {
    let is_tall = gradient.shape()[0] > gradient.shape()[1];
    let x = if is_tall { gradient.transpose(0, 1)? } else { gradient.clone() };
    let (short, long) = (x.shape()[0], x.shape()[1]);
    let is_same = |tensor: &&Tensor| tensor.dtype() == gradient.dtype();
    let shared = shared.iter().find(is_same).expect("one for each type of the matrices");
    let square = |start| shared.narrow(0, start, short * short)?.reshape([short, short]);
    let y = shared.narrow(0, 0, short * long)?.reshape([short, long])?;
    let first = short * long;
    Ok([x, y, square(first)?, square(first + short * short)?])
}

/// The formula of the norm of the direction, from momentum and gradient.
#[derive(Clone, Copy)]
struct UpdateDirection {
    momentum: f64,
    kind: Momentum,
}

impl NormFormula<0, 1> for UpdateDirection {
    const NAME: &'static str = MuonOptions::NAME;
    const FLOPS: f64 = 6.0;

    fn known(&self) -> Option<KnownNorms> {
        let nesterov = if self.kind == Momentum::Nesterov { 1.0 } else { 0.0 };
        Some(KnownNorms::Muon([self.momentum, 1.0 - self.momentum, nesterov]))
    }

    #[inline(always)]
    fn element<T: Float>(&self, m: T, g: T, _: [T; 0]) -> [T; 1] {
        let [keep, take] = [self.momentum, 1.0 - self.momentum].map(T::from_f64);
        let m = m + take * (g - m);
        let ahead = g + keep * (m - g);
        [if self.kind == Momentum::Nesterov { ahead } else { m }]
    }
}

/// The coefficients of an update, in the order of [`KnownFormula::Step`].
#[derive(Clone, Copy)]
struct Formula([f64; 2]);

impl UpdateFormula<0, 0> for Formula {
    const NAME: &'static str = MuonOptions::NAME;
    const FLOPS: f64 = 3.0;

    fn known(&self) -> Option<KnownFormula> {
        Some(KnownFormula::Step(self.0))
    }

    #[inline(always)]
    fn element<T: Float>(&self, _: [T; 0], p: T, x: T, _: [T; 0]) -> (T, [T; 0]) {
        let [keep, rate] = self.0.map(T::from_f64);
        (keep * p - rate * x, [])
    }
}
