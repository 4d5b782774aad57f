//! One step of stochastic gradient descent on one tensor, in a single pass over its memory.
//!
//! Formula and defaults as `torch.optim.SGD` (PyTorch documentation, "SGD"); `grad_scale`
//! multiplies the gradient first, to undo loss scaling or to clip.

use crate::cpu::chunk::{Chunked, for_each_chunk, for_each_chunk2};
use crate::cpu::pool::Pool;
use crate::dtype::Float;

/// Elements of a task: enough to outweigh handing it out, and all of a small layer.
const CHUNK_LEN: usize = 16 * 1024;

/// The scalars of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdStep {
    /// Step size.
    pub learning_rate: f64,
    /// How much of the last direction is kept; 0 has no buffer.
    pub momentum: f64,
    /// How much of the gradient does not enter the momentum.
    pub dampening: f64,
    /// Pull towards 0, added to the gradient.
    pub weight_decay: f64,
    /// Whether the step looks ahead by the momentum.
    pub nesterov: bool,
    /// Whether this is the first step, which starts the momentum from the undamped gradient.
    pub is_first: bool,
    /// The gradient is multiplied by this first.
    pub grad_scale: f64,
}

/// Updates `parameter` and its momentum in place. Without momentum there is no buffer.
///
/// # Panics
/// If lengths differ, or a buffer is there without a momentum or the other way round.
pub(crate) fn sgd<T: Float>(
    pool: &Pool,
    step: SgdStep,
    parameter: &mut [T],
    gradient: &[T],
    momentum: Option<&mut [T]>,
) {
    assert_eq!(parameter.len(), gradient.len());
    assert_eq!(momentum.is_some(), step.momentum != 0.0, "momentum {}", step.momentum);
    let [learning_rate, weight_decay, scale] =
        [step.learning_rate, step.weight_decay, step.grad_scale].map(T::from_f64);
    let Some(momentum) = momentum else {
        for_each_chunk(pool, parameter, CHUNK_LEN, |chunk, parameter| {
            let gradient = &gradient[chunk * CHUNK_LEN..][..parameter.len()];
            for (p, &g) in parameter.iter_mut().zip(gradient) {
                *p = *p - learning_rate * (scale * g + weight_decay * *p);
            }
        });
        return;
    };
    assert_eq!(parameter.len(), momentum.len());
    // v = momentum · v + (1 - dampening) · g, but v = g in the first step.
    let (keep, take) = if step.is_first {
        (T::ZERO, T::ONE)
    } else {
        (T::from_f64(step.momentum), T::from_f64(1.0 - step.dampening))
    };
    // The direction is v, or g + momentum · v with nesterov.
    let (from_g, from_v) =
        if step.nesterov { (T::ONE, T::from_f64(step.momentum)) } else { (T::ZERO, T::ONE) };
    if step.is_first {
        // 0 · v would keep a NaN or an infinity of fresh memory.
        for_each_chunk(pool, momentum, CHUNK_LEN, |_, momentum| momentum.fill(T::ZERO));
    }
    for_each_chunk2(
        pool,
        Chunked::new(parameter, CHUNK_LEN),
        Chunked::new(momentum, CHUNK_LEN),
        |chunk, parameter, momentum| {
            let gradient = &gradient[chunk * CHUNK_LEN..][..parameter.len()];
            for ((p, v), &g) in parameter.iter_mut().zip(momentum).zip(gradient) {
                let g = scale * g + weight_decay * *p;
                *v = keep * *v + take * g;
                // Selected, not multiplied by 0: an infinite g must not turn into NaN.
                let direction = if step.nesterov { from_g * g + from_v * *v } else { *v };
                *p = *p - learning_rate * direction;
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The loop of PyTorch's documentation, one element at a time, in f64.
    fn naive(step: SgdStep, p: f64, g: f64, v: Option<f64>) -> (f64, f64) {
        let g = g * step.grad_scale + step.weight_decay * p;
        if step.momentum == 0.0 {
            return (p - step.learning_rate * g, 0.0);
        }
        let v = match v {
            None => g,
            Some(v) => step.momentum * v + (1.0 - step.dampening) * g,
        };
        let direction = if step.nesterov { g + step.momentum * v } else { v };
        (p - step.learning_rate * direction, v)
    }

    fn check_two_steps<T: Float>(step: SgdStep, len: usize, tolerance: f64) {
        let pool = Pool::new(2);
        let value = |i: usize, seed: usize| ((i * 7 + seed) % 23) as f64 / 8.0 - 1.25;
        let mut p: Vec<T> = (0..len).map(|i| T::from_f64(value(i, 1))).collect();
        let g: Vec<T> = (0..len).map(|i| T::from_f64(value(i, 5))).collect();
        let mut v = vec![T::from_f64(f64::NAN); len];
        for is_first in [true, false] {
            let before = (p.clone(), v.clone());
            let step = SgdStep { is_first, ..step };
            let buffer = (step.momentum != 0.0).then_some(v.as_mut_slice());
            sgd(&pool, step, &mut p, &g, buffer);
            for i in 0..len {
                let old = (!is_first).then(|| before.1[i].to_f64());
                let (p_new, v_new) = naive(step, before.0[i].to_f64(), g[i].to_f64(), old);
                assert!((p[i].to_f64() - p_new).abs() <= tolerance, "{step:?} p[{i}] {}", p[i]);
                let v_close = (v[i].to_f64() - v_new).abs() <= tolerance;
                assert!(step.momentum == 0.0 || v_close, "{step:?} v[{i}] {}", v[i]);
            }
        }
    }

    proptest! {
        #[test]
        fn fused_update_agrees_with_the_formula(
            scalars in (0.0..1.0f64, 0.0..0.99f64, 0.0..1.0f64, 0.0..0.1f64, 0.1..2.0f64),
            options in (any::<bool>(), any::<bool>()),
            len in prop_oneof![0..=3usize, Just(16 * 1024 + 5)],
        ) {
            let (learning_rate, momentum, dampening, weight_decay, grad_scale) = scalars;
            let (nesterov, has_momentum) = options;
            let step = SgdStep {
                learning_rate,
                momentum: if has_momentum { momentum } else { 0.0 },
                dampening,
                weight_decay,
                nesterov,
                is_first: true,
                grad_scale,
            };
            // A handful of roundings of values below 16.
            check_two_steps::<f32>(step, len, 16.0 * 16.0 * f64::from(f32::EPSILON));
            check_two_steps::<f64>(step, len, 16.0 * 16.0 * f64::EPSILON);
        }
    }
}
