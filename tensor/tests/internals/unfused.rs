//! The f32 functions without fused multiplication; `it/accuracy.rs` tests those of the processor
//! that runs the tests.

use lowtide_tensor::testing::cpu::unfused;

/// The distance from the f64 function in units in the last place, with f32's as the least
/// exponent.
fn ulps(found: f32, exact: f64) -> f64 {
    if found == exact as f32 || (found.is_nan() && exact.is_nan()) {
        return 0.0;
    }
    let exponent = exact.abs().max(f64::from(f32::MIN_POSITIVE)).log2().floor();
    (f64::from(found) - exact).abs() / (exponent - 23.0).exp2()
}

#[track_caller]
fn check(ulps_max: f64, f: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64) {
    for x in (0..=u32::MAX).step_by(40_009).map(f32::from_bits) {
        let exact = exact(f64::from(x));
        let error = ulps(f(x), exact);
        assert!(error <= ulps_max, "f({x:e}) is {:e}, not {exact:e}: {error} ulps", f(x));
    }
}

#[test]
fn functions_are_exact_without_fused_multiplication_too() {
    check(1.5, unfused::exp, f64::exp);
    let in_range = |x: f32| if (-126.0..=127.0).contains(&x) { x } else { 0.5 };
    let exact = |x: f64| f64::from(in_range(x as f32)).exp2();
    check(2.0, |x| unfused::exp2_fast(in_range(x)), exact);
    check(2.5, unfused::expm1, f64::exp_m1);
    check(1.5, unfused::log, f64::ln);
    check(2.0, unfused::log1p, f64::ln_1p);
    check(0.51, unfused::atan, f64::atan);
    check(2.0, unfused::tanh, f64::tanh);
    check(2.0, unfused::erf, libm::erf);
    let is_angle = |x: f32| x.abs() <= unfused::TRIG_MAX;
    let inside = |x: f32| if is_angle(x) { x } else { 0.5 };
    let exact = |f: fn(f64) -> f64| move |x: f64| f(f64::from(inside(x as f32)));
    check(0.51, |x| unfused::sin(inside(x)), exact(f64::sin));
    check(0.51, |x| unfused::cos(inside(x)), exact(f64::cos));
    check(0.51, |x| unfused::tan(inside(x)), exact(f64::tan));
    let base = |x: f32| if x > 0.0 && x.is_finite() { x } else { 2.0 };
    check(0.51, |x| unfused::pow(base(x), 1.25), |x| f64::from(base(x as f32)).powf(1.25));
}

#[test]
fn fast_erf_ends_at_one_exactly() {
    for x in [3.92501f32, 3.93, 10.0, 1e30, f32::INFINITY] {
        assert_eq!([x, -x].map(unfused::erf_fast), [1.0, -1.0]);
    }
    assert!(unfused::erf_fast(f32::NAN).is_nan());
}
