//! Division of integers: rounding, wrapping, and the error for 0.

use lowtide_tensor::{DType, Tensor, TensorError, TensorResult as Result};
use proptest::prelude::*;

use crate::common::{broadcast_shapes, download, sample, shared, styles, upload};
use crate::naive::Array;

type Pair = fn(&Tensor, &Tensor) -> Result<Tensor>;
type InPlace = fn(&mut Tensor, &Tensor) -> Result<()>;
type Twin = fn(f64, f64) -> f64;

const DIVISIONS: [(&str, Pair, InPlace, Twin); 4] = [
    ("div_floor", Tensor::div_floor, Tensor::div_floor_, |a, b| (a / b).floor()),
    ("div_trunc", Tensor::div_trunc, Tensor::div_trunc_, |a, b| (a / b).trunc()),
    ("fmod", Tensor::fmod, Tensor::fmod_, |a, b| a % b),
    ("remainder", Tensor::remainder, Tensor::remainder_, |a, b| a - b * (a / b).floor()),
];

proptest! {
    #[test]
    fn quotients_of_integers_agree_with_their_twins(
        [dims, left, right] in broadcast_shapes(),
        styles in [styles(), styles()],
        dtype in prop::sample::select(vec![DType::I64, DType::I32, DType::U8]),
    ) {
        let shift = if dtype == DType::U8 { 0.0 } else { 12.0 };
        let (a, b) = (sample(&left, styles[0], dtype, 1).1, sample(&right, styles[1], dtype, 2).1);
        let a = a.map(|x| x - shift);
        // The divisor is never 0.
        let b = b.map(|x| if x < shift { x - shift } else { x - shift + 1.0 });
        let x = crate::common::laid_out(&a, styles[0], dtype);
        let y = crate::common::laid_out(&b, styles[1], dtype);
        for (name, divide, in_place, formula) in DIVISIONS {
            let expected = a.zip(&b, &dims, formula);
            let found = divide(&x, &y).unwrap();
            prop_assert_eq!(found.dtype(), dtype);
            prop_assert_eq!(&download(&found), &expected, "{}", name);
            let mut target = upload(shared(), &a.expand(&dims), dtype);
            in_place(&mut target, &y).unwrap();
            prop_assert_eq!(&download(&target), &expected, "{}", name);
        }
    }

    #[test]
    fn one_zero_among_many_divisors_is_an_error_and_nothing_is_written(
        place in 0..100_000usize,
        is_turned in any::<bool>(),
        dtype in prop::sample::select(vec![DType::I64, DType::I32, DType::U8]),
    ) {
        let divisors = Array::from_fn(&[100_000], |at| f64::from(u8::from(at[0] != place)));
        let divisors = upload(shared(), &divisors, dtype).reshape([200, 500]).unwrap();
        let divisors = if is_turned { divisors.transpose(0, 1).unwrap() } else { divisors };
        let mut x = Tensor::full(shared(), *divisors.shape(), dtype, 7.0).unwrap();
        let version = x.version();
        for (name, divide, in_place, _) in DIVISIONS {
            for error in [divide(&x, &divisors).err(), in_place(&mut x, &divisors).err()] {
                let text = error.unwrap().to_string();
                prop_assert_eq!(text, format!("{name}: division of an integer by zero"));
            }
        }
        prop_assert_eq!(x.version(), version);
        prop_assert!(download(&x).values.iter().all(|&x| x == 7.0));
    }
}

#[test]
fn a_zero_beside_integers_is_an_error_and_beside_floats_a_value() {
    let mut whole = Tensor::full(shared(), [2], DType::I32, 7.0).unwrap();
    let zero = |error: TensorError| matches!(error, TensorError::DivisionByZero { .. });
    assert!(zero(whole.div_floor_scalar(0.0).unwrap_err()));
    assert!(zero(whole.div_trunc_scalar_(-0.0).unwrap_err()));
    assert!(zero(whole.remainder_scalar(0.0).unwrap_err()));
    assert!(matches!(whole.div_floor_scalar(0.5).unwrap_err(), TensorError::DType { .. }));
    let x = Tensor::full(shared(), [2], DType::F32, 7.0).unwrap();
    assert_eq!(x.div_floor_scalar(0.0).unwrap().to_vec::<f32>().unwrap(), [f32::INFINITY; 2]);
    assert!(x.remainder_scalar(0.0).unwrap().to_vec::<f32>().unwrap()[0].is_nan());
}

#[test]
fn the_smallest_integer_over_minus_one_wraps() {
    let x = Tensor::from_slice(shared(), [1], &[i64::MIN]).unwrap();
    assert_eq!(x.div_floor_scalar(-1.0).unwrap().item::<i64>().unwrap(), i64::MIN);
    assert_eq!(x.div_trunc_scalar(-1.0).unwrap().item::<i64>().unwrap(), i64::MIN);
    assert_eq!(x.remainder_scalar(-1.0).unwrap().item::<i64>().unwrap(), 0);
}
