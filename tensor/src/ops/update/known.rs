//! The formulas that NVIDIA devices have kernels for, with the constants of a step; see
//! `update.cu`.

use super::{StateRange, UpdateFormula};
use crate::dtype::Float;

/// A formula that NVIDIA devices have a kernel for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KnownFormula {
    /// Without a state or with one.
    Sgd(SgdUpdate),
    /// With two states.
    Adam(AdamUpdate),
}

impl KnownFormula {
    /// How many states it can have.
    #[cfg(feature = "cuda")]
    pub(super) fn state_counts(&self) -> std::ops::RangeInclusive<usize> {
        match self {
            KnownFormula::Sgd(_) => 0..=1,
            KnownFormula::Adam(_) => 2..=2,
        }
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
