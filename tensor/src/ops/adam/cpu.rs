//! One step of Adam or AdamW on one tensor, in a single pass over its memory.
//!
//! Formulas and defaults as `torch.optim.Adam` and `torch.optim.AdamW` (PyTorch documentation;
//! Kingma and Ba 2015; Loshchilov and Hutter 2019). `grad_scale` multiplies the gradient first, to
//! undo loss scaling or to clip.

use crate::cpu::chunk::{Chunked, for_each_chunk3};
use crate::cpu::pool::Pool;
use crate::dtype::Float;

/// Elements of a task: enough to outweigh handing it out, and all of a small layer.
const CHUNK_LEN: usize = 8 * 1024;

/// How the weights are pulled towards zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WeightDecay {
    /// Added to the gradient: Adam.
    Coupled(f64),
    /// Taken from the weights beside the gradient: AdamW.
    Decoupled(f64),
}

/// The scalars of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamStep {
    /// Step size.
    pub learning_rate: f64,
    /// How much of the last mean is kept.
    pub beta1: f64,
    /// How much of the last mean square is kept.
    pub beta2: f64,
    /// Keeps the quotient finite.
    pub eps: f64,
    /// Pull towards 0, and where it acts.
    pub weight_decay: WeightDecay,
    /// 1 - beta1^t for step t = 1, 2, ...
    pub bias_correction1: f64,
    /// 1 - beta2^t.
    pub bias_correction2: f64,
    /// The gradient is multiplied by this first.
    pub grad_scale: f64,
}

/// Updates `parameter` and the two moments in place. The moments start as zeros.
///
/// # Panics
/// If lengths differ.
pub(crate) fn adam<T: Float>(
    pool: &Pool,
    step: AdamStep,
    parameter: &mut [T],
    gradient: &[T],
    moment1: &mut [T],
    moment2: &mut [T],
) {
    let len = parameter.len();
    assert_eq!([gradient.len(), moment1.len(), moment2.len()], [len; 3]);
    let (coupled, keep) = match step.weight_decay {
        WeightDecay::Coupled(decay) => (decay, 1.0),
        WeightDecay::Decoupled(decay) => (0.0, 1.0 - step.learning_rate * decay),
    };
    let [beta1, beta2, coupled, keep, scale] =
        [step.beta1, step.beta2, coupled, keep, step.grad_scale].map(T::from_f64);
    let [take1, take2] = [1.0 - step.beta1, 1.0 - step.beta2].map(T::from_f64);
    // lr · m̂ / (√v̂ + eps), with both corrections taken out of the loop.
    let [rate, root_scale, eps] =
        [step.learning_rate / step.bias_correction1, 1.0 / step.bias_correction2.sqrt(), step.eps]
            .map(T::from_f64);
    for_each_chunk3(
        pool,
        Chunked::new(parameter, CHUNK_LEN),
        Chunked::new(moment1, CHUNK_LEN),
        Chunked::new(moment2, CHUNK_LEN),
        |chunk, parameter, moment1, moment2| {
            let gradient = &gradient[chunk * CHUNK_LEN..][..parameter.len()];
            let moments = moment1.iter_mut().zip(moment2);
            for ((p, (m, v)), &g) in parameter.iter_mut().zip(moments).zip(gradient) {
                let g = scale * g + coupled * *p;
                *m = beta1 * *m + take1 * g;
                *v = beta2 * *v + take2 * g * g;
                *p = keep * *p - rate * *m / (v.sqrt() * root_scale + eps);
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The loop of PyTorch's documentation, one element at a time, in f64.
    fn naive(step: AdamStep, mut p: f64, g: f64, m: f64, v: f64) -> [f64; 3] {
        let mut g = g * step.grad_scale;
        match step.weight_decay {
            WeightDecay::Coupled(decay) => g += decay * p,
            WeightDecay::Decoupled(decay) => p -= step.learning_rate * decay * p,
        }
        let m = step.beta1 * m + (1.0 - step.beta1) * g;
        let v = step.beta2 * v + (1.0 - step.beta2) * g * g;
        let (m_hat, v_hat) = (m / step.bias_correction1, v / step.bias_correction2);
        [p - step.learning_rate * m_hat / (v_hat.sqrt() + step.eps), m, v]
    }

    fn check_steps<T: Float>(step: AdamStep, len: usize, tolerance: f64) {
        let pool = Pool::new(2);
        let value = |i: usize, seed: usize| ((i * 7 + seed) % 23) as f64 / 8.0 - 1.25;
        let mut p: Vec<T> = (0..len).map(|i| T::from_f64(value(i, 1))).collect();
        let (mut m, mut v) = (vec![T::ZERO; len], vec![T::ZERO; len]);
        for t in 1..=3 {
            let g: Vec<T> = (0..len).map(|i| T::from_f64(value(i, t as usize))).collect();
            let before = (p.clone(), m.clone(), v.clone());
            let step = AdamStep {
                bias_correction1: 1.0 - step.beta1.powi(t),
                bias_correction2: 1.0 - step.beta2.powi(t),
                ..step
            };
            adam(&pool, step, &mut p, &g, &mut m, &mut v);
            for i in 0..len {
                let old = [before.0[i], before.1[i], before.2[i]].map(T::to_f64);
                let expected = naive(step, old[0], g[i].to_f64(), old[1], old[2]);
                for (found, expected) in [p[i], m[i], v[i]].into_iter().zip(expected) {
                    let error = (found.to_f64() - expected).abs();
                    assert!(error <= tolerance, "{step:?} step {t} at {i}: {found} {expected}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn fused_update_agrees_with_the_formula(
            scalars in (0.0..0.1f64, 0.0..0.99f64, 0.5..0.9999f64, 0.0..0.1f64, 0.1..2.0f64),
            is_coupled in any::<bool>(),
            len in prop_oneof![0..=3usize, Just(8 * 1024 + 5)],
        ) {
            let (learning_rate, beta1, beta2, decay, grad_scale) = scalars;
            let weight_decay = match is_coupled {
                true => WeightDecay::Coupled(decay),
                false => WeightDecay::Decoupled(decay),
            };
            let step = AdamStep {
                learning_rate,
                beta1,
                beta2,
                eps: 1e-8,
                weight_decay,
                bias_correction1: 1.0,
                bias_correction2: 1.0,
                grad_scale,
            };
            // A handful of roundings of values below 16; the quotient's error is relative.
            check_steps::<f32>(step, len, 16.0 * 16.0 * f64::from(f32::EPSILON));
            check_steps::<f64>(step, len, 16.0 * 16.0 * f64::EPSILON);
        }
    }
}
