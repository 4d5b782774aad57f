//! Adafactor (Shazeer & Stern 2018), `torch.optim.Adafactor`. For a matrix, only the mean squares
//! of its rows and columns are kept.

use lowtide_tensor::{
    DType, Float, KnownFormula, KnownNorms, NormFormula, Shape, Tensor, UpdateFormula,
};
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::checks::{check_not_negative, check_option};
use crate::error::Result;
use crate::optim::per_parameter::PerParameter;
use crate::optim::rule::{Job, Scratch, StateSpec, UpdateRule, UpdateStep, update_jobs};
use crate::optim::slots::{block_bytes, norm_partials_bytes};

/// Options of [`Adafactor`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(deny_unknown_fields, default))]
pub struct AdafactorOptions {
    /// Largest step size, relative to the root mean square of the parameter. From step `1 /
    /// learning_rate²` on, the step size is 1 / √t instead.
    pub learning_rate: f64,
    /// Exponent of `w = t^beta2_decay`, the weight of the new square in step `t`; not above 0.
    pub beta2_decay: f64,
    /// The number that keeps quotients finite; the machine epsilon of the parameter's type if
    /// absent.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub eps: Option<f64>,
    /// Lower bound of the root mean square of a parameter in the step size.
    pub scale_min: f64,
    /// Largest root mean square of an update. A larger update is scaled down to this value.
    pub clip: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
}

impl Default for AdafactorOptions {
    fn default() -> Self {
        AdafactorOptions {
            learning_rate: 1e-2,
            beta2_decay: -0.8,
            eps: None,
            scale_min: 1e-3,
            clip: 1.0,
            weight_decay: 0.0,
        }
    }
}

/// Adafactor, with `w = t^beta2_decay`. `row` are means over the last dimension, `col` means over
/// the last but one. A tensor with fewer than two dimensions keeps the whole mean square `v`:
///
/// ```text
/// row = row + w (mean(g²) - row),  col = col + w (mean(g²) - col),  v = row · col / mean(row)
/// u = g / √max(v, eps²)
/// s = max(scale_min, rms(p)) · min(learning_rate, 1 / √t) / max(1, rms(u) / clip)
/// p = p · (1 - learning_rate · weight_decay) - s · u
/// ```
pub type Adafactor = PerParameter<AdafactorOptions>;

impl UpdateRule for AdafactorOptions {
    const NAME: &'static str = "adafactor";
    const IS_KNOWN: bool = true;

    fn check(&self) -> Result<()> {
        check_not_negative(&[
            ("learning_rate", self.learning_rate),
            ("eps", self.eps.unwrap_or(0.0)),
            ("scale_min", self.scale_min),
            ("weight_decay", self.weight_decay),
        ])?;
        check_option("beta2_decay", self.beta2_decay, "..=0", |x| x <= 0.0)?;
        check_option("clip", self.clip, "1..", |x| x >= 1.0)
    }

    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    fn states(&self, parameter: &Tensor) -> Vec<StateSpec> {
        match factors(parameter) {
            Some([rows, columns]) => {
                vec![StateSpec::own("row_var", rows), StateSpec::own("col_var", columns)]
            }
            None => vec![StateSpec::own("variance", *parameter.shape())],
        }
    }

    fn scratch(&self, parameters: &[&Tensor]) -> Scratch {
        let of_one = |parameter: &&Tensor| {
            let (len, dtype) = (parameter.element_count(), parameter.dtype().computed());
            let full_bytes = block_bytes(len, dtype);
            let is_half = dtype != parameter.dtype();
            let norms_bytes = block_bytes(2, dtype);
            let partials_bytes = norm_partials_bytes([*parameter].into_iter(), 2);
            let (states_bytes, mean_bytes) = match factors(parameter) {
                Some(factors) => {
                    let states =
                        factors.iter().map(|shape| block_bytes(shape.element_count(), dtype));
                    (states.sum(), block_bytes(row_mean_shape(parameter).element_count(), dtype))
                }
                None => (full_bytes, 0),
            };
            let kept_bytes = states_bytes + if is_half { full_bytes } else { 0 };
            Scratch {
                held_bytes: kept_bytes + norms_bytes,
                peak_bytes: kept_bytes
                    + (mean_bytes + full_bytes).max(norms_bytes + partials_bytes),
            }
        };
        parameters.iter().map(of_one).fold(Scratch::default(), Scratch::then)
    }

    fn prepare(&self, jobs: &mut [Job]) -> Result<Vec<Tensor>> {
        for job in jobs {
            job.own_gradient()?;
            let new_states = self.prepare_update(job)?;
            let norms = job.parameter.update_norms(&job.gradient, &[], Norms)?;
            job.scratch = vec![norms.narrow(0, 0, 1)?, norms.narrow(0, 1, 1)?];
            job.scratch.extend(new_states);
        }
        Ok(Vec::new())
    }

    fn commit(&self, jobs: &mut [Job], _: &mut [Tensor]) -> lowtide_tensor::TensorResult<()> {
        for Job { states, scratch, .. } in &mut *jobs {
            let mut pairs = states.iter_mut().zip(&scratch[2..]);
            pairs.try_for_each(|(state, new)| state.copy_(new))?;
        }
        update_jobs::<_, 0, 2>(jobs, |job| self.formula(job.at, job.parameter.element_count()))
    }
}

impl AdafactorOptions {
    /// Turns the gradient into the unscaled update. Returns the new states.
    fn prepare_update(&self, job: &mut Job) -> Result<Vec<Tensor>> {
        let eps = self.eps.unwrap_or_else(|| epsilon(job.parameter.dtype()));
        // The weight of the old mean.
        let keep = 1.0 - (job.at.number as f64).powf(self.beta2_decay);
        let (g, rank) = (&mut job.gradient, job.parameter.shape().len());
        let (new_states, mut v) = match &job.states[..] {
            [row, column] => {
                let row = mean_square(g, rank - 1)?.lerped(row, keep)?;
                let column = mean_square(g, rank - 2)?.lerped(column, keep)?;
                let mut mean = row.mean_keep(&[rank - 2])?;
                mean.maximum_scalar_(eps)?;
                let mut v = row.mul(&column)?;
                v.div_(&mean)?;
                (vec![row, column], v)
            }
            [variance] => {
                let variance = g.mul(g)?.lerped(variance, keep)?;
                let v = variance.copied()?;
                (vec![variance], v)
            }
            _ => unreachable!("rows and columns, or all"),
        };
        v.maximum_scalar_(eps * eps)?;
        v.rsqrt_()?;
        g.mul_(&v)?;
        Ok(new_states)
    }

    fn formula(&self, at: UpdateStep, len: usize) -> Formula {
        let root_len = (len as f64).sqrt();
        let rate = at.learning_rate.min(1.0 / (at.number as f64).sqrt());
        let keep = 1.0 - at.learning_rate * self.weight_decay;
        Formula([self.scale_min, rate, 1.0 / root_len, 1.0 / (root_len * self.clip), keep])
    }
}

/// The shapes of the means over rows and over columns; `None` for fewer than two dimensions.
fn factors(parameter: &Tensor) -> Option<[Shape; 2]> {
    let rank = parameter.shape().len();
    (rank >= 2).then(|| [rank - 1, rank - 2].map(|axis| with_one(parameter.shape(), axis)))
}

/// The shape of the mean over the means of the rows.
fn row_mean_shape(parameter: &Tensor) -> Shape {
    let rank = parameter.shape().len();
    with_one(&with_one(parameter.shape(), rank - 1), rank - 2)
}

fn with_one(shape: &Shape, axis: usize) -> Shape {
    let mut dims = shape.to_vec();
    dims[axis] = 1;
    Shape::new(&dims)
}

/// `mean(x²)` along `axis`, which keeps length 1. No tensor of squares is made.
fn mean_square(x: &Tensor, axis: usize) -> Result<Tensor> {
    let mut mean = x.norm_keep(&[axis], 2.0)?;
    mean.pow_scalar_(2.0)?;
    mean.div_scalar_(x.shape()[axis] as f64)?;
    Ok(mean)
}

trait Lerped: Sized {
    fn lerped(self, end: &Tensor, weight: f64) -> Result<Self>;
}

impl Lerped for Tensor {
    /// [`Tensor::lerp_`] for a tensor that is not shared.
    fn lerped(mut self, end: &Tensor, weight: f64) -> Result<Self> {
        self.lerp_(end, weight)?;
        Ok(self)
    }
}

/// The distance from 1 to the next larger number of a type.
fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::EPSILON,
        DType::F16 => 1.0 / 1024.0,
        DType::BF16 => 1.0 / 128.0,
        _ => f64::from(f32::EPSILON),
    }
}

/// The formula of the norms of parameter and update.
#[derive(Clone, Copy)]
struct Norms;

impl NormFormula<0, 2> for Norms {
    const NAME: &'static str = AdafactorOptions::NAME;
    const FLOPS: f64 = 0.0;

    fn known(&self) -> Option<KnownNorms> {
        Some(KnownNorms::ParameterAndGradient)
    }

    #[inline(always)]
    fn element<T: Float>(&self, p: T, u: T, _: [T; 0]) -> [T; 2] {
        [p, u]
    }
}

/// The coefficients of an update, in the order of [`KnownFormula::Adafactor`].
#[derive(Clone, Copy)]
struct Formula([f64; 5]);

impl UpdateFormula<0, 2> for Formula {
    const NAME: &'static str = AdafactorOptions::NAME;
    const FLOPS: f64 = 3.0;

    fn known(&self) -> Option<KnownFormula> {
        Some(KnownFormula::Adafactor(self.0))
    }

    #[inline(always)]
    fn element<T: Float>(&self, [p_norm, u_norm]: [T; 2], p: T, u: T, _: [T; 0]) -> (T, [T; 0]) {
        let [scale_min, rate, per_root_len, per_clip, keep] = self.0.map(T::from_f64);
        let alpha = scale_min.maximum(p_norm * per_root_len) * rate;
        let step = alpha / T::ONE.maximum(u_norm * per_clip);
        (keep * p - step * u, [])
    }
}
