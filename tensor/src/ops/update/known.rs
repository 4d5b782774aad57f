//! The formulas that NVIDIA devices have kernels for, with the constants of a step; see
//! `update.cu`.

use super::{StateRange, UpdateFormula};
use crate::dtype::Float;

/// The most constants that a known formula has.
#[cfg(feature = "cuda")]
pub(super) const CONSTANTS_MAX: usize = 10;

/// A formula that NVIDIA devices have kernels for, in all floats, with states of any kind. `p` is
/// the parameter, `g` its gradient, all other letters are states in the order of the formula.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KnownFormula {
    /// Without a state or with one.
    Sgd(SgdUpdate),
    /// With the states `m` and `v`.
    Adam(AdamUpdate),
    /// Adam that divides by the largest mean square so far, the third state: `w = max(w, v)`.
    Amsgrad(AdamUpdate),
    /// Adam that looks ahead, of `[β₁, 1 - β₁, β₂, 1 - β₂, coupled, keep, mean_rate, rate,
    /// root_scale, eps]`, with `m`, `v` and the decayed `g` of [`AdamUpdate`]:
    ///
    /// ```text
    /// p = keep · p - (mean_rate · m + rate · g) / (√v · root_scale + eps)
    /// ```
    Nadam([f64; 10]),
    /// Of `[β₁, 1 - β₁, β₂, decay, rate, eps]`:
    ///
    /// ```text
    /// g = g + decay · p,  m = β₁ m + (1 - β₁) g,  u = max(β₂ u, |g| + eps)
    /// p = p - rate · m / u
    /// ```
    Adamax([f64; 6]),
    /// Of `[added, decay, rate, eps]`:
    ///
    /// ```text
    /// g = g + decay · p,  s = s + added + g²
    /// p = p - rate · g / (√s + eps)
    /// ```
    Adagrad([f64; 4]),
    /// Of `[ρ, 1 - ρ, decay, rate, eps]`:
    ///
    /// ```text
    /// g = g + decay · p,  v = ρ v + (1 - ρ) g²
    /// d = √(u + eps) / √(v + eps) · g,  u = ρ u + (1 - ρ) d²
    /// p = p - rate · d
    /// ```
    Adadelta([f64; 5]),
    /// Of `[α, 1 - α, decay, rate, eps, momentum]`, with one more state for the momentum, if any:
    ///
    /// ```text
    /// g = g + decay · p,  v = α v + (1 - α) g²
    /// d = g / (√v + eps),  m = momentum · m + d  (then d = m)
    /// p = p - rate · d
    /// ```
    RmsProp([f64; 6]),
    /// [`KnownFormula::RmsProp`] with the mean `a = α a + (1 - α) g` as second state, and the
    /// variance `v - a²` instead of `v` in the divisor.
    CenteredRmsProp([f64; 6]),
    /// Of `[added, down, up, low, high]`, with the states `h` and `s`:
    ///
    /// ```text
    /// s = s + added,  s = up · s where g · h > 0, down · s where g · h < 0;  low ≤ s ≤ high
    /// g = 0 where g · h < 0,  h = g
    /// p = p - sign(g) · s
    /// ```
    Rprop([f64; 5]),
    /// Of `[β₁, 1 - β₁, β₂, 1 - β₂, keep, rate]`:
    ///
    /// ```text
    /// p = keep · p - rate · sign(β₁ m + (1 - β₁) g),  m = β₂ m + (1 - β₂) g
    /// ```
    Lion([f64; 6]),
    /// Of `[β₁, 1 - β₁, β₂, 1 - β₂, scale, root_scale, eps, decay, rate]`, with the scalars `‖p‖`
    /// and `‖r‖`, whose quotient is 1 if one of them is not above 0:
    ///
    /// ```text
    /// m = β₁ m + (1 - β₁) g,  v = β₂ v + (1 - β₂) g²
    /// r = scale · m / (√v · root_scale + eps) + decay · p
    /// p = p - rate · ‖p‖ / ‖r‖ · r
    /// ```
    Lamb([f64; 9]),
    /// Of `[scale_min, rate, per_root_len, per_clip, keep]`, with the scalars `‖p‖` and `‖g‖`:
    ///
    /// ```text
    /// s = max(scale_min, ‖p‖ · per_root_len) · rate / max(1, ‖g‖ · per_clip)
    /// p = keep · p - s · g
    /// ```
    Adafactor([f64; 5]),
    /// `p = keep · p - rate · g`, of `[keep, rate]`.
    Step([f64; 2]),
    /// `p = p + take · (g - p)`: `p` is an average, `g` what it is of.
    Average(f64),
}

/// Values whose norms NVIDIA devices have kernels for, as in [`KnownFormula`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KnownNorms {
    /// `p` and `g`.
    ParameterAndGradient,
    /// `p` and the `r` of [`KnownFormula::Lamb`] with these constants.
    Lamb([f64; 9]),
    /// Of `[keep, 1 - keep, nesterov]`, with the momentum `p`:
    ///
    /// ```text
    /// p = p + (1 - keep) (g - p),  then  g + keep · (p - g)  if nesterov is not 0, else p
    /// ```
    Muon([f64; 3]),
}

/// A formula's number in `update.cu`, and its constants in the order that they have there.
#[cfg(feature = "cuda")]
pub(super) type OfKernel = (u32, [f64; CONSTANTS_MAX]);

/// The place of a name in its enum in `update.cu`, looked up by the compiler.
#[cfg(feature = "cuda")]
macro_rules! number {
    ($name:literal) => {
        const { crate::ops::elementwise::kernel_number(include_str!("update.cu"), $name) }
    };
}

#[cfg(feature = "cuda")]
fn with_zeros<const N: usize>(constants: [f64; N]) -> [f64; CONSTANTS_MAX] {
    std::array::from_fn(|k| constants.get(k).copied().unwrap_or(0.0))
}

#[cfg(feature = "cuda")]
impl KnownFormula {
    /// `None` if the kernel takes another number of states or scalars.
    pub(super) fn of_kernel(self, states: usize, scalars: usize) -> Option<OfKernel> {
        use KnownFormula as Known;
        let (number, constants) = match (self, states, scalars) {
            (Known::Sgd(sgd), 0, 0) => (number!("SGD"), sgd.constants()),
            (Known::Sgd(sgd), 1, 0) => (number!("MOMENTUM"), sgd.constants()),
            (Known::Adam(adam), 2, 0) => (number!("ADAM"), adam.constants()),
            (Known::Amsgrad(adam), 3, 0) => (number!("AMSGRAD"), adam.constants()),
            (Known::Nadam(all), 2, 0) => (number!("NADAM"), all),
            (Known::Adamax(all), 2, 0) => (number!("ADAMAX"), with_zeros(all)),
            (Known::Adagrad(all), 1, 0) => (number!("ADAGRAD"), with_zeros(all)),
            (Known::Adadelta(all), 2, 0) => (number!("ADADELTA"), with_zeros(all)),
            (Known::RmsProp(all), 1, 0) => (number!("RMS_PROP"), with_zeros(all)),
            (Known::RmsProp(all), 2, 0) => (number!("RMS_PROP_MOMENTUM"), with_zeros(all)),
            (Known::CenteredRmsProp(all), 2, 0) => (number!("RMS_PROP_VARIANCE"), with_zeros(all)),
            (Known::CenteredRmsProp(all), 3, 0) => {
                (number!("RMS_PROP_VARIANCE_MOMENTUM"), with_zeros(all))
            }
            (Known::Rprop(all), 2, 0) => (number!("RPROP"), with_zeros(all)),
            (Known::Lion(all), 1, 0) => (number!("LION"), with_zeros(all)),
            (Known::Lamb(all), 2, 2) => (number!("LAMB"), with_zeros(all)),
            (Known::Adafactor(all), 0, 2) => (number!("ADAFACTOR"), with_zeros(all)),
            (Known::Step(all), 0, 0) => (number!("STEP"), with_zeros(all)),
            (Known::Average(take), 0, 0) => (number!("AVERAGE"), with_zeros([take])),
            _ => return None,
        };
        Some((number, constants))
    }
}

#[cfg(feature = "cuda")]
impl KnownNorms {
    /// `None` if the kernel takes another number of states or has another number of values.
    pub(super) fn of_kernel(self, states: usize, norms: usize) -> Option<OfKernel> {
        let (number, constants) = match (self, states, norms) {
            (KnownNorms::ParameterAndGradient, 0, 2) => {
                (number!("PARAMETER_AND_GRADIENT"), with_zeros([]))
            }
            (KnownNorms::Lamb(all), 2, 2) => (number!("LAMB_DIRECTION"), with_zeros(all)),
            (KnownNorms::Muon(all), 0, 1) => (number!("MUON_DIRECTION"), with_zeros(all)),
            _ => return None,
        };
        Some((number, constants))
    }
}

/// Stochastic gradient descent of a parameter `p` by its gradient `g`, with the state `m` or, for
/// `p -= along_g · g`, without:
///
/// ```text
/// g = g + weight_decay · p
/// m = keep · m + take · g
/// p = p - (along_g · g + along_m · m)
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdUpdate {
    /// Pull towards 0.
    pub weight_decay: f64,
    /// How much of `m` is kept.
    pub keep: f64,
    /// How much of the gradient `m` takes.
    pub take: f64,
    /// Step size along the gradient.
    pub along_g: f64,
    /// Step size along `m`.
    pub along_m: f64,
}

#[cfg(feature = "cuda")]
impl SgdUpdate {
    fn constants(self) -> [f64; CONSTANTS_MAX] {
        let SgdUpdate { weight_decay, keep, take, along_g, along_m } = self;
        with_zeros([weight_decay, keep, take, along_g, along_m])
    }
}

/// Without momentum.
impl UpdateFormula<0, 0> for SgdUpdate {
    const NAME: &'static str = "sgd";
    const FLOPS: f64 = 4.0;

    fn known(&self) -> Option<KnownFormula> {
        Some(KnownFormula::Sgd(*self))
    }

    #[inline(always)]
    fn element<T: Float>(&self, _: [T; 0], p: T, g: T, _: [T; 0]) -> (T, [T; 0]) {
        let [decay, rate] = [self.weight_decay, self.along_g].map(T::from_f64);
        (p - rate * (g + decay * p), [])
    }
}

/// With momentum.
impl UpdateFormula<1, 0> for SgdUpdate {
    const NAME: &'static str = "sgd";
    const FLOPS: f64 = 9.0;

    fn known(&self) -> Option<KnownFormula> {
        Some(KnownFormula::Sgd(*self))
    }

    #[inline(always)]
    fn element<T: Float>(&self, _: [T; 0], p: T, g: T, [m]: [T; 1]) -> (T, [T; 1]) {
        let [decay, keep, take] = [self.weight_decay, self.keep, self.take].map(T::from_f64);
        let [along_g, along_m] = [self.along_g, self.along_m].map(T::from_f64);
        let g = g + decay * p;
        let m = keep * m + take * g;
        (p - (along_g * g + along_m * m), [m])
    }
}

/// Adam (Kingma & Ba 2015) and AdamW (Loshchilov & Hutter 2019) of a parameter `p` by its gradient
/// `g`, with the states `m` and `v` and both corrections taken out of the loop:
///
/// ```text
/// g = g + coupled · p
/// m = β₁ m + (1 - β₁) g,  v = β₂ v + (1 - β₂) g²
/// p = keep · p - rate · m / (√v · root_scale + eps)
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamUpdate {
    /// β₁ and β₂.
    pub betas: [f64; 2],
    /// Pull towards 0 by way of the gradient: Adam.
    pub coupled: f64,
    /// How much of the parameter is kept beside the gradient: AdamW; else 1.
    pub keep: f64,
    /// Step size over `1 - β₁ᵗ`.
    pub rate: f64,
    /// `1 / √(1 - β₂ᵗ)`.
    pub root_scale: f64,
    /// Keeps the quotient finite.
    pub eps: f64,
}

#[cfg(feature = "cuda")]
impl AdamUpdate {
    fn constants(self) -> [f64; CONSTANTS_MAX] {
        let AdamUpdate { betas: [beta1, beta2], coupled, keep, rate, root_scale, eps } = self;
        let [take1, take2] = [1.0 - beta1, 1.0 - beta2];
        with_zeros([beta1, take1, beta2, take2, coupled, keep, rate, root_scale, eps])
    }
}

impl UpdateFormula<2, 0> for AdamUpdate {
    const NAME: &'static str = "adam";
    const FLOPS: f64 = 15.0;

    fn state_ranges(&self) -> [StateRange; 2] {
        [StateRange::Signed, StateRange::Positive]
    }

    fn known(&self) -> Option<KnownFormula> {
        Some(KnownFormula::Adam(*self))
    }

    #[inline(always)]
    fn element<T: Float>(&self, _: [T; 0], p: T, g: T, [m, v]: [T; 2]) -> (T, [T; 2]) {
        let [beta1, beta2] = self.betas.map(T::from_f64);
        let [take1, take2] = self.betas.map(|beta| T::from_f64(1.0 - beta));
        let [coupled, keep, rate] = [self.coupled, self.keep, self.rate].map(T::from_f64);
        let [root_scale, eps] = [self.root_scale, self.eps].map(T::from_f64);
        let g = g + coupled * p;
        let m = beta1 * m + take1 * g;
        let v = beta2 * v + take2 * g * g;
        (keep * p - rate * m / (v.sqrt() * root_scale + eps), [m, v])
    }
}
