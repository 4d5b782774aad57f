//! Inverse error function, gamma function and its derivatives against 40 digits of mpmath.

use lowtide_tensor::{DType, Tensor};

use crate::common::{epsilon, shared};

type Function = fn(&Tensor) -> lowtide_tensor::TensorResult<Tensor>;

/// The derivative of digamma: the gradient of its sum.
fn trigamma(x: &Tensor) -> lowtide_tensor::TensorResult<Tensor> {
    Tensor::full(x.device(), *x.shape(), x.dtype(), 1.0)?.digamma_backward(x)
}

/// A function, and its values at some arguments.
type Known = (&'static str, Function, &'static [(f64, f64)]);

const KNOWN: [Known; 4] = [
    (
        "erfinv",
        Tensor::erfinv,
        &[
            (0.0, 0.0),
            (1e-300, 8.86226925452758e-301),
            (1e-09, 8.86226925452758e-10),
            (0.125, 0.11123545184094996),
            (-0.5, -0.4769362762044699),
            (0.625, 0.627307347788559),
            (0.999, 2.3267537655135246),
            (1.0 - 5.960464477539063e-08, 3.832506856900711),
            (-1.0 + f64::EPSILON / 2.0, -5.8635847487551676),
        ],
    ),
    (
        "lgamma",
        Tensor::lgamma,
        &[
            (1e-09, 20.723265836369194),
            (0.5, 0.5723649429247001),
            (1.25, -0.09827183642181316),
            (2.5, 0.2846828704729192),
            (10.0, 12.80182748008147),
            (171.0, 706.5730622457874),
            (-0.5, 1.2655121234846454),
            (-3.25, -0.6231534513209986),
        ],
    ),
    (
        "digamma",
        Tensor::digamma,
        &[
            (1e-09, -1000000000.5772156),
            (0.5, -1.9635100260214235),
            (1.0, -0.5772156649015329),
            (1.4616321449683622, -9.241265521729427e-17),
            (7.5, 1.9467574842460869),
            (100.0, 4.600161852738087),
            (-0.5, 0.03648997397857652),
            (-3.25, 4.46627587235028),
        ],
    ),
    (
        "trigamma",
        trigamma,
        &[
            (1e-09, 9.999999999999999e+17),
            (0.25, 17.197329154507113),
            (0.5, 4.934802200544679),
            (1.0, 1.6449340668482264),
            (7.5, 0.1426158966967038),
            (100.0, 0.010050166663333571),
            (-0.5, 8.934802200544679),
            (-3.25, 19.474085068082154),
        ],
    ),
];

#[test]
fn special_functions_have_the_digits_of_their_type() {
    for (name, function, known) in KNOWN {
        let (x, expected): (Vec<f64>, Vec<f64>) = known.iter().copied().unzip();
        let x = Tensor::from_slice(shared(), [x.len()], &x).unwrap();
        let found = function(&x).unwrap().to_vec::<f64>().unwrap();
        for ((&found, &y), (x, _)) in found.iter().zip(&expected).zip(known) {
            let near = if y.abs() < 1e-200 { 8.0 * y.abs() } else { 8.0 * y.abs().max(1.0) };
            assert!((found - y).abs() <= near * f64::EPSILON, "{name} of {x}: {found}, not {y}");
        }
        // The argument is rounded to the narrower type, and the result is rounded once.
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let x = x.to_dtype(dtype).unwrap();
            let found = function(&x).unwrap().to_dtype(DType::F64).unwrap();
            let exact = function(&x.to_dtype(DType::F64).unwrap()).unwrap();
            let exact = exact.to_dtype(dtype).unwrap().to_dtype(DType::F64).unwrap();
            let [found, exact] = [found, exact].map(|x| x.to_vec::<f64>().unwrap());
            for (found, exact) in found.into_iter().zip(exact) {
                let near = epsilon(dtype) * exact.abs();
                let agrees = found == exact || (found - exact).abs() <= near;
                assert!(agrees || found.is_nan() && exact.is_nan(), "{name} in {dtype}: {found}");
            }
        }
    }
}

#[test]
fn special_functions_are_infinite_at_poles_and_nan_where_they_are_not_defined() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let cases: [(&str, Function, &[f64], &[f64]); 4] = [
        ("erfinv", Tensor::erfinv, &[1.0, -1.0, 1.5, -2.0, nan], &[inf, -inf, nan, nan, nan]),
        ("lgamma", Tensor::lgamma, &[0.0, -1.0, -7.0, inf, nan], &[inf, inf, inf, inf, nan]),
        ("digamma", Tensor::digamma, &[0.0, -0.0, -3.0, inf, nan], &[-inf, inf, nan, inf, nan]),
        ("trigamma", trigamma, &[0.0, -2.0, inf, nan], &[inf, inf, 0.0, nan]),
    ];
    for (name, function, x, expected) in cases {
        let values = Tensor::from_slice(shared(), [x.len()], x).unwrap();
        let found = function(&values).unwrap().to_vec::<f64>().unwrap();
        assert_eq!(format!("{found:?}"), format!("{expected:?}"), "{name} of {x:?}");
    }
}

#[test]
fn erfinv_turns_erf_back() {
    let x: Vec<f64> = (-40..=40).map(|i| f64::from(i) / 16.0).collect();
    let values = Tensor::from_slice(shared(), [x.len()], &x).unwrap();
    let back = values.erf().unwrap().erfinv().unwrap().to_vec::<f64>().unwrap();
    for (x, back) in x.iter().zip(back) {
        // The rounding error of erf, divided by the slope of erf there.
        let near = 4.0 * f64::EPSILON * (x * x).exp();
        assert!((x - back).abs() <= near, "{x}: {back}");
    }
}
