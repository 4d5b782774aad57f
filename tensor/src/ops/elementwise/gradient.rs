//! Gradients through activations, in one pass: `dx[i] = f(dy[i], x[i])`, or of `y[i]` where that is
//! enough. The derivatives of the formulas in `cpu.rs`.

use super::cpu::{Arithmetic, SELU_ALPHA, SELU_SCALE, tanh_softplus, zip};
use super::op::Gradient;
use crate::cpu::functions::Functions;
use crate::cpu::math::Math;
use crate::cpu::simd::Fused;
use crate::dtype::Float;

#[inline(always)]
pub(super) fn gradient<T: Functions + Arithmetic, F: Fused>(
    op: Gradient,
    sources: &[&[T]],
    to: &mut [T],
) {
    let [zero, half, one] = [0.0, 0.5, 1.0].map(T::from_f64);
    let [three, sixth] = [3.0, 1.0 / 6.0].map(T::from_f64);
    match op {
        // A NaN lets its gradient through, as in PyTorch.
        Gradient::Relu => zip(sources, to, |dy, y| if y <= zero { zero } else { dy }),
        Gradient::Sigmoid => zip(sources, to, |dy, y| dy * (one - y) * y),
        Gradient::Tanh => zip(sources, to, |dy, y| dy * (one - y * y)),
        Gradient::Gelu => {
            let scale = T::from_f64(std::f64::consts::FRAC_1_SQRT_2);
            let density = T::from_f64((0.5 / std::f64::consts::PI).sqrt());
            zip(sources, to, |dy, x| {
                let below = half * (one + (x * scale).erf_fast_in::<F>());
                dy * (below + x * density * (-half * x * x).exp_in::<F>())
            });
        }
        Gradient::GeluTanh => {
            let scale = T::from_f64((2.0 / std::f64::consts::PI).sqrt());
            let [cubic, slope] = [0.044715, 3.0 * 0.044715].map(T::from_f64);
            zip(sources, to, |dy, x| {
                let tanh = (scale * (x + cubic * x * x * x)).tanh_in::<F>();
                let inner = scale * (one + slope * x * x);
                dy * half * (one + tanh + x * (one - tanh * tanh) * inner)
            });
        }
        Gradient::Silu => zip(sources, to, |dy, x| {
            let s = sigmoid::<T, F>(x);
            dy * s * (one + x * (one - s))
        }),
        Gradient::Elu(alpha) => {
            let alpha = T::from_f64(alpha);
            zip(sources, to, |dy, x| if x > zero { dy } else { dy * alpha * x.exp_in::<F>() });
        }
        Gradient::LeakyRelu(slope) => {
            let slope = T::from_f64(slope);
            zip(sources, to, |dy, x| if x > zero { dy } else { dy * slope });
        }
        Gradient::Softplus { beta, threshold } => {
            let [beta, threshold] = [beta, threshold].map(T::from_f64);
            zip(sources, to, |dy, x| {
                let slope = dy * sigmoid::<T, F>(x * beta);
                if x * beta > threshold { dy } else { slope }
            });
        }
        Gradient::Mish => zip(sources, to, |dy, x| {
            let tanh = tanh_softplus::<T, F>(x);
            dy * (tanh + x * sigmoid::<T, F>(x) * (one - tanh * tanh))
        }),
        Gradient::HardSwish => zip(sources, to, |dy, x| {
            let y = dy * (x / three + half);
            let y = if x >= three { dy } else { y };
            if x <= -three { zero } else { y }
        }),
        Gradient::HardSigmoid => {
            zip(sources, to, |dy, x| if (x > -three) & (x < three) { dy * sixth } else { zero })
        }
        Gradient::Selu => {
            let [scale, alpha] = [SELU_SCALE, SELU_SCALE * SELU_ALPHA].map(T::from_f64);
            zip(sources, to, |dy, x| dy * if x > zero { scale } else { alpha * x.exp_in::<F>() });
        }
        Gradient::Softsign => zip(sources, to, |dy, x| {
            let y = one + Functions::abs(x);
            dy / (y * y)
        }),
        Gradient::LogSigmoid => zip(sources, to, |dy, x| dy * sigmoid::<T, F>(-x)),
    }
}

#[inline(always)]
fn sigmoid<T: Math, F: Fused>(x: T) -> T {
    let one = <T as Float>::ONE;
    one / (one + (-x).exp_in::<F>())
}
