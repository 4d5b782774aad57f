//! Comparison of results by the rules of `torch.testing.assert_close`.

use lowtide_tensor::DType;

use crate::case::{Numbers, Values};

/// Allowed differences.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// A difference relative to the expected value.
    pub relative: f64,
    /// An absolute difference.
    pub absolute: f64,
}

impl Tolerance {
    /// The tolerance of `torch.testing.assert_close` for a type.
    pub const fn of(dtype: DType) -> Self {
        let (relative, absolute) = match dtype {
            DType::F64 => (1e-7, 1e-7),
            DType::F32 => (1.3e-6, 1e-5),
            DType::F16 => (1e-3, 1e-5),
            DType::BF16 => (1.6e-2, 1e-5),
            _ => (0.0, 0.0),
        };
        Tolerance { relative, absolute }
    }
}

/// `Ok` if shapes and types are equal, and each element is within `absolute + relative ·
/// |expected|` of its expected value; NaN equals NaN. Integers must be equal.
///
/// # Errors
/// The first difference, in words.
pub fn compare(found: &Values, expected: &Values, tolerance: Tolerance) -> Result<(), String> {
    if found.dtype != expected.dtype {
        return Err(format!("type {}, not {}", found.dtype, expected.dtype));
    }
    compare_values(found, expected, tolerance)
}

/// [`compare`] without the types.
///
/// # Errors
/// The first difference, in words.
pub fn compare_values(
    found: &Values,
    expected: &Values,
    tolerance: Tolerance,
) -> Result<(), String> {
    if found.shape != expected.shape {
        return Err(format!("shape {}, not {}", found.shape, expected.shape));
    }
    let differ = |at: usize, found: &dyn std::fmt::Display, expected: &dyn std::fmt::Display| {
        Err(format!("element {at} is {found}, not {expected}"))
    };
    match (&found.numbers, &expected.numbers) {
        (Numbers::Floats(found), Numbers::Floats(expected)) => {
            let pairs = found.iter().zip(expected).enumerate();
            for (at, (found, expected)) in pairs {
                let allowed = tolerance.absolute + tolerance.relative * expected.abs();
                let is_close = found == expected
                    || (found.is_nan() && expected.is_nan())
                    // An infinity is close only to itself.
                    || (expected.is_finite() && (found - expected).abs() <= allowed);
                if !is_close {
                    return differ(at, found, expected);
                }
            }
            Ok(())
        }
        (Numbers::Integers(found), Numbers::Integers(expected)) => {
            match found.iter().zip(expected).position(|(found, expected)| found != expected) {
                Some(at) => differ(at, &found[at], &expected[at]),
                None => Ok(()),
            }
        }
        _ => Err("floats and integers".to_owned()),
    }
}

/// True if all elements are 0. The peer leaves out the gradient of an operand without influence.
pub fn is_zero(values: &Values) -> bool {
    match &values.numbers {
        Numbers::Floats(values) => values.iter().all(|&x| x == 0.0),
        Numbers::Integers(values) => values.iter().all(|&x| x == 0),
    }
}

/// The distance of `peer` from `truth` at the worst finite element. lowtide must be as close to the
/// results in f64 as the peer's own results are.
pub fn distance(peer: &Values, truth: &Values) -> f64 {
    let (Numbers::Floats(peer), Numbers::Floats(truth)) = (&peer.numbers, &truth.numbers) else {
        return 0.0;
    };
    let distances = peer.iter().zip(truth).map(|(peer, truth)| (peer - truth).abs());
    distances.filter(|distance| distance.is_finite()).fold(0.0, f64::max)
}
