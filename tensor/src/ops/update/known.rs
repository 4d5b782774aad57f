//! The formulas with kernels for NVIDIA devices, and the constants of a step; see `update.cu`.

use super::{StateRange, UpdateFormula};
use crate::dtype::Float;

/// A formula with a kernel for NVIDIA devices, for all float types and any states. `p` is the
/// parameter, `g` its gradient; all other letters are states, in the order of the formula.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KnownFormula {
    /// SGD, with or without a state.
    Sgd(SgdUpdate),
    /// Adam, with the states `m` and `v`.
    Adam(AdamUpdate),
    /// Adam that divides by the largest mean square so far, the third state: `w = max(w, v)`.
    Amsgrad(AdamUpdate),
    /// Nadam: Adam with Nesterov momentum, of `[β₁, 1 - β₁, β₂, 1 - β₂, coupled, keep, mean_rate,
    /// rate, root_scale, eps]`, with `m`, `v` and the decayed `g` of [`AdamUpdate`]:
    ///
    /// ```text
    /// p = keep · p - (mean_rate · m + rate · g) / (√v · root_scale + eps)
    /// ```
    Nadam([f64; 10]),
    /// Adamax, of `[β₁, 1 - β₁, β₂, decay, rate, eps]`:
    ///
    /// ```text
    /// g = g + decay · p,  m = β₁ m + (1 - β₁) g,  u = max(β₂ u, |g| + eps)
    /// p = p - rate · m / u
    /// ```
    Adamax([f64; 6]),
    /// Adagrad, of `[added, decay, rate, eps]`:
    ///
    /// ```text
    /// g = g + decay · p,  s = s + added + g²
    /// p = p - rate · g / (√s + eps)
    /// ```
    Adagrad([f64; 4]),
    /// Adadelta, of `[ρ, 1 - ρ, decay, rate, eps]`:
    ///
    /// ```text
    /// g = g + decay · p,  v = ρ v + (1 - ρ) g²
    /// d = √(u + eps) / √(v + eps) · g,  u = ρ u + (1 - ρ) d²
    /// p = p - rate · d
    /// ```
    Adadelta([f64; 5]),
    /// RMSprop, of `[α, 1 - α, decay, rate, eps, momentum]`. With momentum, there is one more
    /// state:
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
    /// Rprop, of `[added, down, up, low, high]`, with the states `h` and `s`:
    ///
    /// ```text
    /// s = s + added,  s = up · s where g · h > 0, down · s where g · h < 0;  low ≤ s ≤ high
    /// g = 0 where g · h < 0,  h = g
    /// p = p - sign(g) · s
    /// ```
    Rprop([f64; 5]),
    /// Lion, of `[β₁, 1 - β₁, β₂, 1 - β₂, keep, rate]`:
    ///
    /// ```text
    /// p = keep · p - rate · sign(β₁ m + (1 - β₁) g),  m = β₂ m + (1 - β₂) g
    /// ```
    Lion([f64; 6]),
    /// LAMB, of `[β₁, 1 - β₁, β₂, 1 - β₂, scale, root_scale, eps, decay, rate]`, with the scalars
    /// `‖p‖` and `‖r‖`, whose quotient is 1 if one of them is not above 0:
    ///
    /// ```text
    /// m = β₁ m + (1 - β₁) g,  v = β₂ v + (1 - β₂) g²
    /// r = scale · m / (√v · root_scale + eps) + decay · p
    /// p = p - rate · ‖p‖ / ‖r‖ · r
    /// ```
    Lamb([f64; 9]),
    /// Adafactor, of `[scale_min, rate, per_root_len, per_clip, keep]`, with the scalars `‖p‖` and
    /// `‖g‖`:
    ///
    /// ```text
    /// s = max(scale_min, ‖p‖ · per_root_len) · rate / max(1, ‖g‖ · per_clip)
    /// p = keep · p - s · g
    /// ```
    Adafactor([f64; 5]),
    /// `p = keep · p - rate · g`, of `[keep, rate]`.
    Step([f64; 2]),
    /// `p = p + take · (g - p)`, where `p` is an average of `g`.
    Average(f64),
}

/// Values with kernels for their norms on NVIDIA devices; letters as in [`KnownFormula`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KnownNorms {
    /// `p` and `g`.
    ParameterAndGradient,
    /// `p` and the `r` of [`KnownFormula::Lamb`] with these constants.
    Lamb([f64; 9]),
    /// Muon, of `[keep, 1 - keep, nesterov]`, with the momentum `p`:
    ///
    /// ```text
    /// p = p + (1 - keep) (g - p),  then  g + keep · (p - g)  if nesterov is not 0, else p
    /// ```
    Muon([f64; 3]),
}

/// Stochastic gradient descent of a parameter `p` with gradient `g` and state `m`. Without the
/// state the last line is `p -= along_g · g`:
///
/// ```text
/// g = g + weight_decay · p
/// m = keep · m + take · g
/// p = p - (along_g · g + along_m · m)
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdUpdate {
    /// Weight decay: the pull towards 0.
    pub weight_decay: f64,
    /// The factor of `m` in the new `m`.
    pub keep: f64,
    /// The factor of the gradient in the new `m`.
    pub take: f64,
    /// Step size along the gradient.
    pub along_g: f64,
    /// Step size along `m`.
    pub along_m: f64,
}

/// SGD without momentum.
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

/// SGD with momentum.
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

/// Adam (Kingma & Ba 2015) and AdamW (Loshchilov & Hutter 2019) of a parameter `p` with gradient
/// `g` and the states `m` and `v`. Both bias corrections are constants:
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
    /// Weight decay through the gradient: Adam.
    pub coupled: f64,
    /// The factor of the parameter, for decoupled weight decay: AdamW; else 1.
    pub keep: f64,
    /// Step size divided by `1 - β₁ᵗ`.
    pub rate: f64,
    /// `1 / √(1 - β₂ᵗ)`.
    pub root_scale: f64,
    /// The summand that keeps the quotient finite.
    pub eps: f64,
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
