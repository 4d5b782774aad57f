use lowtide_tensor::{Tensor, TensorResult as Result};

use crate::common::cpu;

/// The distance of `found` from `exact` in units in the last place of an f32 of that size.
fn ulps(found: f32, exact: f64) -> f64 {
    if f64::from(found) == exact || (found.is_nan() && exact.is_nan()) {
        return 0.0;
    }
    if exact.abs() >= f64::from(f32::MAX) {
        // The exact value rounds to infinity, or would with one more ulp.
        return if found == exact.signum() as f32 * f32::INFINITY { 0.0 } else { 1.0 };
    }
    let exponent = exact.abs().max(f64::from(f32::MIN_POSITIVE)).log2().floor();
    (f64::from(found) - exact).abs() / (exponent - 23.0).exp2()
}

/// Every 4099th bit pattern: all exponents and both signs, 255 samples of each power of two.
fn sample_of_all_f32() -> Vec<f32> {
    (0..=u32::MAX).step_by(4099).map(f32::from_bits).collect()
}

/// The sigmoid as PyTorch computes it: 0 if e^-x overflows an f32.
fn sigmoid(x: f64) -> f64 {
    if (-x).exp() > f64::from(f32::MAX) { 0.0 } else { 1.0 / (1.0 + (-x).exp()) }
}

type Function = (&'static str, fn(&Tensor) -> Result<Tensor>, fn(f64) -> f64, f64);

/// Functions with the largest error that the documentation of `cpu/math.rs` admits.
const FUNCTIONS: &[Function] = &[
    ("exp", Tensor::exp, f64::exp, 1.1),
    ("expm1", Tensor::expm1, f64::exp_m1, 1.7),
    ("log", Tensor::log, f64::ln, 0.8),
    ("log1p", Tensor::log1p, f64::ln_1p, 1.5),
    ("sin", Tensor::sin, f64::sin, 0.51),
    ("cos", Tensor::cos, f64::cos, 0.51),
    ("tan", Tensor::tan, f64::tan, 0.51),
    ("atan", Tensor::atan, f64::atan, 0.51),
    ("asin", Tensor::asin, f64::asin, 0.51),
    ("acos", Tensor::acos, f64::acos, 0.51),
    ("sinh", Tensor::sinh, f64::sinh, 3.0),
    ("cosh", Tensor::cosh, f64::cosh, 3.0),
    ("asinh", Tensor::asinh, f64::asinh, 0.5),
    ("acosh", Tensor::acosh, f64::acosh, 0.5),
    ("atanh", Tensor::atanh, f64::atanh, 0.5),
    ("erfc", Tensor::erfc, libm::erfc, 0.5),
    ("log2", Tensor::log2, f64::log2, 0.51),
    ("log10", Tensor::log10, f64::log10, 0.51),
    ("exp2", Tensor::exp2, f64::exp2, 0.51),
    ("tanh", Tensor::tanh, f64::tanh, 1.3),
    ("erf", Tensor::erf, libm::erf, 1.0),
    ("sigmoid", Tensor::sigmoid, sigmoid, 2.5),
    ("pow", |x| x.pow_scalar(1.25), |x| x.powf(1.25), 0.51),
    ("pow", |x| x.pow_scalar(-3.3), |x| x.powf(-3.3f32 as f64), 0.51),
    ("sqrt", Tensor::sqrt, f64::sqrt, 0.5),
];

#[test]
fn functions_of_f32_are_as_exact_as_documented() {
    let x = sample_of_all_f32();
    let tensor = Tensor::from_slice(&cpu(2), [x.len()], &x).unwrap();
    let mut wrong = Vec::new();
    for (name, function, exact, ulps_max) in FUNCTIONS {
        let y = function(&tensor).unwrap().to_vec::<f32>().unwrap();
        let errors = x.iter().zip(&y).map(|(&x, &y)| (ulps(y, exact(f64::from(x))), x, y));
        let worst = errors.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
        println!("{name}: {worst:?}");
        if worst.0.is_nan() || worst.0 > *ulps_max {
            let exact = exact(f64::from(worst.1));
            wrong.push(format!("{name}: {worst:?}, exact {exact:e}, allowed {ulps_max}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn gelu_of_f32_is_as_exact_as_documented() {
    let x = sample_of_all_f32();
    let tensor = Tensor::from_slice(&cpu(2), [x.len()], &x).unwrap();
    let y = tensor.gelu().unwrap().to_vec::<f32>().unwrap();
    for (&x, &y) in x.iter().zip(&y).filter(|(x, _)| x.is_finite()) {
        let exact = 0.5 * f64::from(x) * (1.0 + libm::erf(f64::from(x) / 2.0f64.sqrt()));
        let error = (f64::from(y) - exact).abs();
        // The last term is the smallest f32.
        let allowed = 3e-7 * f64::from(x.abs()).min(6.0) + 1.2e-7 * exact.abs() + 1.5e-45;
        assert!(error <= allowed, "{x:e}: {y:e}, exact {exact:e}");
    }
}
