//! Each element on its own: formulas, broadcasting, in place, conversion.

use lowtide_tensor::{CpuOptions, DType, Device, Result, Tensor};
use proptest::prelude::*;

use crate::common::{
    DTYPES, Style, assert_close, assert_same, download, floats, laid_out, sample, shapes, shared,
    styles, writable_styles,
};
use crate::naive::Array;

type Unary = (&'static str, fn(&Tensor) -> Result<Tensor>, fn(f64) -> f64);

const UNARY: [Unary; 7] = [
    ("neg", Tensor::neg, |x| -x),
    ("exp", Tensor::exp, f64::exp),
    ("log", Tensor::log, f64::ln),
    ("sqrt", Tensor::sqrt, f64::sqrt),
    ("relu", Tensor::relu, |x| if x > 0.0 { x } else { 0.0 }),
    ("add_scalar", |x| x.add_scalar(0.375), |x| x + 0.375),
    ("mul_scalar", |x| x.mul_scalar(-1.5), |x| x * -1.5),
];

type Binary = (
    &'static str,
    fn(&Tensor, &Tensor) -> Result<Tensor>,
    fn(&mut Tensor, &Tensor) -> Result<()>,
    fn(f64, f64) -> f64,
);

const BINARY: [Binary; 4] = [
    ("add", Tensor::add, Tensor::add_, |a, b| a + b),
    ("sub", Tensor::sub, Tensor::sub_, |a, b| a - b),
    ("mul", Tensor::mul, Tensor::mul_, |a, b| a * b),
    ("div", Tensor::div, Tensor::div_, |a, b| a / b),
];

/// A result shape, and two shapes that broadcast to it.
fn broadcast_shapes() -> impl Strategy<Value = [Vec<usize>; 3]> {
    (shapes(), any::<[bool; 5]>(), 0..=5usize, any::<bool>()).prop_map(
        |(dims, ones, dropped, is_first)| {
            let stretched = dims.iter().zip(ones);
            let small: Vec<usize> =
                stretched.map(|(&dim, one)| if one { 1 } else { dim }).collect();
            let small = small[dropped.min(small.len())..].to_vec();
            // The other one has every dimension, so the result is `dims`.
            if is_first { [dims.clone(), small, dims] } else { [dims.clone(), dims, small] }
        },
    )
}

proptest! {
    #[test]
    fn unary_formula_holds_for_every_layout(
        dims in shapes(), style in styles(), dtype in floats(), seed in 0..50usize,
    ) {
        let (x, twin) = sample(&dims, style, dtype, seed);
        for (_, op, formula) in UNARY {
            assert_close(&op(&x).unwrap(), &twin.map(formula), 4);
        }
    }

    #[test]
    fn binary_formula_broadcasts_over_every_layout(
        [dims, left, right] in broadcast_shapes(),
        styles in [styles(), styles()],
        dtype in floats(),
        seed in 0..50usize,
    ) {
        let (a, a_twin) = sample(&left, styles[0], dtype, seed);
        let (b, b_twin) = sample(&right, styles[1], dtype, seed + 1);
        for (_, op, _, formula) in BINARY {
            assert_close(&op(&a, &b).unwrap(), &a_twin.zip(&b_twin, &dims, formula), 1);
        }
    }

    #[test]
    fn in_place_equals_out_of_place_and_writes_through_the_view(
        dims in shapes(),
        ones in any::<[bool; 5]>(),
        styles in (writable_styles(), styles()),
        dtype in floats(),
        seed in 0..50usize,
    ) {
        let small: Vec<usize> =
            dims.iter().zip(ones).map(|(&dim, one)| if one { 1 } else { dim }).collect();
        let (b, _) = sample(&small, styles.1, dtype, seed + 1);
        for (_, op, op_, _) in BINARY {
            let (mut a, _) = sample(&dims, styles.0, dtype, seed);
            let other_handle = a.clone();
            let expected = download(&op(&a, &b).unwrap());
            op_(&mut a, &b).unwrap();
            // `x == x` is false for 0/0, so the bits are compared as text.
            prop_assert_eq!(format!("{:?}", download(&other_handle)), format!("{expected:?}"));
        }
        let (mut a, twin) = sample(&dims, styles.0, dtype, seed);
        a.add_scaled_(&b, -0.5).unwrap();
        assert_same(&a, &twin.zip(&download(&b), &dims, |a, b| a - 0.5 * b));
        let before = download(&a);
        a.relu_().unwrap();
        a.mul_scalar_(0.25).unwrap();
        assert_same(&a, &before.map(|x| x.max(0.0) * 0.25));
    }

    #[test]
    fn relu_backward_passes_where_the_output_is_positive(
        dims in shapes(), styles in (writable_styles(), styles()), dtype in floats(),
    ) {
        let (mut dy, dy_twin) = sample(&dims, styles.0, dtype, 3);
        let (y, y_twin) = sample(&dims, styles.1, dtype, 4);
        let expected = dy_twin.zip(&y_twin, &dims, |dy, y| if y > 0.0 { dy } else { 0.0 });
        assert_same(&dy.relu_backward(&y).unwrap(), &expected);
        dy.relu_backward_(&y).unwrap();
        assert_same(&dy, &expected);
    }

    #[test]
    fn copy_and_fill_convert_between_all_types(
        dims in shapes(), styles in (writable_styles(), styles()), seed in 0..50usize,
    ) {
        for from in DTYPES {
            let (source, twin) = sample(&dims, styles.1, from, seed);
            assert_same(&source.copied().unwrap(), &twin);
            for to in DTYPES {
                let as_to = |x: f64| if to.is_float() { x } else { x.trunc() };
                let as_to = |x: f64| if to == DType::U8 { as_to(x).max(0.0) } else { as_to(x) };
                let expected = twin.map(as_to);
                assert_same(&source.to_dtype(to).unwrap(), &expected);
                let mut target = laid_out(&twin.map(|_| 9.0), styles.0, to);
                target.copy_(&source).unwrap();
                assert_same(&target, &expected);
                target.fill_(2.75).unwrap();
                assert_same(&target, &twin.map(|_| as_to(2.75)));
            }
        }
    }

    #[test]
    fn copy_broadcasts_its_source([dims, _, small] in broadcast_shapes(), style in styles()) {
        let (source, twin) = sample(&small, style, DType::F32, 1);
        let mut target = laid_out(&Array::pattern(&dims, 5), Style::Narrowed, DType::F64);
        target.copy_(&source).unwrap();
        assert_same(&target, &twin.expand(&dims));
    }

    #[test]
    fn bytes_are_written_where_the_view_lies(
        dims in shapes(), style in writable_styles(), seed in 0..50usize,
    ) {
        for dtype in DTYPES {
            let (mut target, twin) = sample(&dims, style, dtype, seed);
            let flipped = twin.map(|x| 31.0 - x);
            let mut bytes = vec![0u8]; // One ahead, so that the numbers are not aligned.
            for &x in &flipped.values {
                match dtype {
                    DType::F64 => bytes.extend(x.to_ne_bytes()),
                    DType::F32 => bytes.extend((x as f32).to_ne_bytes()),
                    DType::I64 => bytes.extend((x as i64).to_ne_bytes()),
                    _ => bytes.push(x as u8),
                }
            }
            target.set_bytes_(&bytes[1..]).unwrap();
            assert_same(&target, &flipped);
        }
    }
}

#[test]
fn writing_a_view_leaves_its_surroundings_alone() {
    let whole = laid_out(&Array::pattern(&[4, 5], 1), Style::Contiguous, DType::F32);
    let mut inside = whole.narrow(0, 1, 2).unwrap().narrow(1, 2, 2).unwrap();
    inside.fill_(100.0).unwrap();
    let expected = Array::from_fn(&[4, 5], |at| {
        let is_inside = (1..3).contains(&at[0]) && (2..4).contains(&at[1]);
        if is_inside { 100.0 } else { Array::pattern(&[4, 5], 1).at(at) }
    });
    assert_same(&whole, &expected);
}

#[test]
fn conversion_saturates_and_keeps_large_integers() {
    let device = shared();
    let x = Tensor::from_slice(device, [4], &[-1.5f32, 300.7, f32::NAN, 1e30]).unwrap();
    assert_eq!(x.to_dtype(DType::U8).unwrap().to_vec::<u8>().unwrap(), [0, 255, 0, 255]);
    assert_eq!(x.to_dtype(DType::I64).unwrap().to_vec::<i64>().unwrap(), [-1, 300, 0, i64::MAX]);
    // 2^53 + 1 has no f64.
    let large = Tensor::from_slice(device, [1], &[(1i64 << 53) + 1]).unwrap();
    assert_eq!(large.copied().unwrap().item::<i64>().unwrap(), (1 << 53) + 1);
}

#[test]
fn nan_goes_through_relu() {
    let x = Tensor::from_slice(shared(), [2], &[f32::NAN, -0.0]).unwrap();
    let values = x.relu().unwrap().to_vec::<f32>().unwrap();
    assert!(values[0].is_nan() && values[1] == 0.0);
}

#[test]
fn same_type_shares_and_another_type_does_not() {
    let (x, _) = sample(&[3], Style::Contiguous, DType::F32, 1);
    assert!(x.to_dtype(DType::F32).unwrap().shares_storage(&x));
    assert!(!x.to_dtype(DType::F64).unwrap().shares_storage(&x));
}

#[test]
fn relu_passes_nan_on_in_both_directions() {
    let device = Device::cpu(CpuOptions::default()).unwrap();
    let of = |values: &[f32]| Tensor::from_slice(&device, [values.len()], values).unwrap();
    let y = of(&[f32::NAN, -1.0, 0.0, 2.0]).relu().unwrap();
    let dx = of(&[5.0; 4]).relu_backward(&y).unwrap().to_vec::<f32>().unwrap();
    assert!(y.to_vec::<f32>().unwrap()[0].is_nan());
    assert_eq!(dx, [5.0, 0.0, 0.0, 5.0]);
}
