//! Functions of two numbers that may not be finite, replacement of such numbers, and comparison of
//! whole tensors. The expected values are from PyTorch 2.15.

use std::f64::consts::LN_2;

use lowtide_tensor::{Closeness, DType, Replacements, Tensor, TensorError, TensorResult as Result};

use crate::common::{epsilon, shared};

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;
const VALUES: [f64; 7] = [0.0, -0.0, 1.5, -2.25, INF, -INF, NAN];

type Pair = fn(&Tensor, &Tensor) -> Result<Tensor>;

/// Each value on the left with each on the right.
#[rustfmt::skip]
const PAIRS: [(&str, Pair, [f64; 49]); 8] = [
    ("hypot", Tensor::hypot, [
        0.0, 0.0, 1.5, 2.25, INF, INF, NAN,
        0.0, 0.0, 1.5, 2.25, INF, INF, NAN,
        1.5, 1.5, 2.121320, 2.704163, INF, INF, NAN,
        2.25, 2.25, 2.704163, 3.181981, INF, INF, NAN,
        INF, INF, INF, INF, INF, INF, INF,
        INF, INF, INF, INF, INF, INF, INF,
        NAN, NAN, NAN, NAN, INF, INF, NAN,
    ]),
    ("copysign", Tensor::copysign, [
        0.0, -0.0, 0.0, -0.0, 0.0, -0.0, 0.0,
        0.0, -0.0, 0.0, -0.0, 0.0, -0.0, 0.0,
        1.5, -1.5, 1.5, -1.5, 1.5, -1.5, 1.5,
        2.25, -2.25, 2.25, -2.25, 2.25, -2.25, 2.25,
        INF, -INF, INF, -INF, INF, -INF, INF,
        INF, -INF, INF, -INF, INF, -INF, INF,
        NAN, NAN, NAN, NAN, NAN, NAN, NAN,
    ]),
    ("fmod", Tensor::fmod, [
        NAN, NAN, 0.0, 0.0, 0.0, 0.0, NAN,
        NAN, NAN, -0.0, -0.0, -0.0, -0.0, NAN,
        NAN, NAN, 0.0, 1.5, 1.5, 1.5, NAN,
        NAN, NAN, -0.75, -0.0, -2.25, -2.25, NAN,
        NAN, NAN, NAN, NAN, NAN, NAN, NAN,
        NAN, NAN, NAN, NAN, NAN, NAN, NAN,
        NAN, NAN, NAN, NAN, NAN, NAN, NAN,
    ]),
    ("fmax", Tensor::fmax, [
        0.0, 0.0, 1.5, 0.0, INF, 0.0, 0.0,
        -0.0, -0.0, 1.5, -0.0, INF, -0.0, -0.0,
        1.5, 1.5, 1.5, 1.5, INF, 1.5, 1.5,
        0.0, -0.0, 1.5, -2.25, INF, -2.25, -2.25,
        INF, INF, INF, INF, INF, INF, INF,
        0.0, -0.0, 1.5, -2.25, INF, -INF, -INF,
        0.0, -0.0, 1.5, -2.25, INF, -INF, NAN,
    ]),
    ("fmin", Tensor::fmin, [
        0.0, 0.0, 0.0, -2.25, 0.0, -INF, 0.0,
        -0.0, -0.0, -0.0, -2.25, -0.0, -INF, -0.0,
        0.0, -0.0, 1.5, -2.25, 1.5, -INF, 1.5,
        -2.25, -2.25, -2.25, -2.25, -2.25, -INF, -2.25,
        0.0, -0.0, 1.5, -2.25, INF, -INF, INF,
        -INF, -INF, -INF, -INF, -INF, -INF, -INF,
        0.0, -0.0, 1.5, -2.25, INF, -INF, NAN,
    ]),
    ("logaddexp", Tensor::logaddexp, [
        LN_2, LN_2, 1.701413, 0.100207, INF, 0.0, NAN,
        LN_2, LN_2, 1.701413, 0.100207, INF, 0.0, NAN,
        1.701413, 1.701413, 2.193147, 1.523245, INF, 1.5, NAN,
        0.100207, 0.100207, 1.523245, -1.556853, INF, -2.25, NAN,
        INF, INF, INF, INF, INF, INF, NAN,
        0.0, 0.0, 1.5, -2.25, INF, -INF, NAN,
        NAN, NAN, NAN, NAN, NAN, NAN, NAN,
    ]),
    ("xlogy", Tensor::xlogy, [
        0.0, 0.0, 0.0, 0.0, 0.0, 0.0, NAN,
        0.0, 0.0, 0.0, 0.0, 0.0, 0.0, NAN,
        -INF, -INF, 0.608198, NAN, INF, NAN, NAN,
        INF, INF, -0.912296, NAN, -INF, NAN, NAN,
        -INF, -INF, INF, NAN, INF, NAN, NAN,
        INF, INF, -INF, NAN, -INF, NAN, NAN,
        NAN, NAN, NAN, NAN, NAN, NAN, NAN,
    ]),
    ("heaviside", Tensor::heaviside, [
        0.0, -0.0, 1.5, -2.25, INF, -INF, NAN,
        0.0, -0.0, 1.5, -2.25, INF, -INF, NAN,
        1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0,
        0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0,
        1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0,
        0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0,
        0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0,
    ]),
];

/// True if the values agree. NaN equals NaN, and the sign of 0 counts; the expected values have at
/// most seven digits.
fn is_same(dtype: DType, found: f64, expected: f64) -> bool {
    let is_zero = found == 0.0 && expected == 0.0;
    let is_sign = !is_zero || found.is_sign_negative() == expected.is_sign_negative();
    (found.is_nan() && expected.is_nan())
        || (found == expected && is_sign)
        || (found - expected).abs() <= (epsilon(dtype) + 1e-5) * expected.abs()
}

fn column(dtype: DType, values: &[f64]) -> Tensor {
    let x = Tensor::from_slice(shared(), [values.len()], values).unwrap();
    x.to_dtype(dtype).unwrap().reshape([values.len(), 1]).unwrap()
}

fn numbers(x: &Tensor) -> Vec<f64> {
    x.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

#[test]
fn pairs_of_zeros_infinities_and_nan_are_as_in_pytorch() {
    for dtype in [DType::F64, DType::F32, DType::F16] {
        let a = column(dtype, &VALUES);
        let b = a.transpose(0, 1).unwrap();
        for (name, function, expected) in PAIRS {
            let y = function(&a, &b).unwrap();
            for (place, (found, expected)) in numbers(&y).into_iter().zip(expected).enumerate() {
                let (left, right) = (VALUES[place / 7], VALUES[place % 7]);
                let text = format!("{name}({left}, {right}) in {dtype}: {found}, not {expected}");
                assert!(is_same(dtype, found, expected), "{text}");
            }
        }
    }
}

#[test]
fn a_hypotenuse_overflows_and_underflows_only_where_it_has_to() {
    for (dtype, large, small) in [(DType::F64, 1e300, 1e-300), (DType::F32, 1e38, 1e-40)] {
        let [a, b] = [3.0, 4.0].map(|x| column(dtype, &[x * large / 5.0, x * small / 5.0]));
        let y = numbers(&a.hypot(&b).unwrap());
        assert!((y[0] / large - 1.0).abs() < 1e-6 && (y[1] / small - 1.0).abs() < 1e-4, "{y:?}");
    }
}

#[test]
fn numbers_that_are_not_finite_are_replaced_by_the_largest_of_the_type() {
    let largest = [
        (DType::F64, f64::MAX),
        (DType::F32, f32::MAX.into()),
        (DType::F16, 65504.0),
        (DType::BF16, 3.3895313892515355e38),
    ];
    for (dtype, largest) in largest {
        let mut x = column(dtype, &[INF, -INF, NAN, 1.5]);
        let y = x.nan_to_num(Replacements::default()).unwrap();
        assert_eq!(numbers(&y), [largest, -largest, 0.0, 1.5], "{dtype}");
        let (infinity, negative_infinity) = (Some(2.0), Some(-3.0));
        x.nan_to_num_(Replacements { nan: 7.0, infinity, negative_infinity }).unwrap();
        assert_eq!(numbers(&x), [2.0, -3.0, 7.0, 1.5], "{dtype}");
    }
    let whole = Tensor::from_slice(shared(), [2], &[3_i64, -4]).unwrap();
    let y = whole.nan_to_num(Replacements { nan: 0.5, ..Default::default() }).unwrap();
    assert_eq!(y.to_vec::<i64>().unwrap(), [3, -4]);
}

#[test]
fn numbers_are_close_by_the_magnitude_of_the_second() {
    let closeness = Closeness { relative: 0.1, absolute: 0.01, is_nan_equal: false };
    let a = column(DType::F32, &[1.1, 1.12, 0.009, INF, INF, NAN, NAN, 1.0]);
    let b = column(DType::F32, &[1.0, 1.0, 0.0, INF, -INF, NAN, 1.0, INF]);
    let y = a.isclose(&b, closeness).unwrap();
    let expected = [true, false, true, true, false, false, false, false];
    assert_eq!(y.to_vec::<bool>().unwrap(), expected);
    let closeness = Closeness { is_nan_equal: true, ..closeness };
    let y = a.isclose(&b, closeness).unwrap();
    assert_eq!(y.to_vec::<bool>().unwrap(), [true, false, true, true, false, true, false, false]);
    // Integers are compared too, within a tolerance that is not a whole number.
    let [a, b] = [&[10, 20][..], &[11, 23]].map(|x| Tensor::from_slice(shared(), [2], x).unwrap());
    let y = a.isclose(&b, Closeness { relative: 0.1, ..Default::default() }).unwrap();
    assert_eq!(y.to_vec::<bool>().unwrap(), [true, false]);
}

#[test]
fn whole_tensors_are_equal_by_shape_and_elements() {
    let x = column(DType::F32, &[1.0, 2.0, -0.0]);
    assert!(x.equal(&column(DType::F32, &[1.0, 2.0, 0.0])).unwrap());
    assert!(!x.equal(&column(DType::F32, &[1.0, 2.0, 1e-30])).unwrap());
    assert!(!x.equal(&x.reshape([3]).unwrap()).unwrap());
    assert!(!column(DType::F32, &[NAN]).equal(&column(DType::F32, &[NAN])).unwrap());
    let other_type = x.equal(&x.to_dtype(DType::F64).unwrap());
    assert!(matches!(other_type, Err(TensorError::DType { .. })));
    assert!(x.allclose(&column(DType::F32, &[1.0, 2.0, 1e-9]), Closeness::default()).unwrap());
    assert!(!x.allclose(&column(DType::F32, &[1.0, 2.1, 0.0]), Closeness::default()).unwrap());
    let none = Tensor::zeros(shared(), [0, 3], DType::F32).unwrap();
    assert!(none.equal(&none).unwrap() && none.allclose(&none, Closeness::default()).unwrap());
}
