use lowtide_tensor::{DType, Element, Tensor, Value, bf16, f16};
use proptest::prelude::*;

use crate::common::{
    Style, assert_same, broadcast_shapes, laid_out, sample, shapes, shared, styles, with_type,
    writable_styles,
};
use crate::naive::Array;

/// The conversion that `to_dtype` documents, for the small numbers of [`sample`].
fn converted(to: DType) -> fn(f64) -> f64 {
    match to {
        DType::Bool => |x| f64::from(u8::from(x != 0.0)),
        DType::U8 => |x| x.trunc().rem_euclid(256.0),
        _ if to.is_float() => |x| x,
        _ => f64::trunc,
    }
}

proptest! {
    #[test]
    fn copy_and_fill_convert_between_all_types(
        dims in shapes(), styles in (writable_styles(), styles()), seed in 0..50usize,
    ) {
        for from in DType::ALL {
            let (source, twin) = sample(&dims, styles.1, from, seed);
            assert_same(&source.copied().unwrap(), &twin);
            for to in DType::ALL {
                let as_to = converted(to);
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
        for dtype in DType::ALL {
            let (mut target, twin) = sample(&dims, style, dtype, seed);
            let flipped = twin.map(|x| match dtype {
                DType::Bool => 1.0 - x,
                _ if dtype.is_float() => -x,
                _ => 31.0 - x,
            });
            let mut bytes = vec![0u8]; // One ahead, so that the numbers are not aligned.
            for &x in &flipped.values {
                with_type!(dtype, T => {
                    bytes.extend(T::as_bytes(&[T::from_f64(x)]));
                });
            }
            target.set_bytes_(&bytes[1..]).unwrap();
            assert_same(&target, &flipped);
        }
    }
}

#[test]
fn floats_become_integers_as_in_pytorch() {
    let x = [-1.5f32, 300.7, f32::NAN, 1e30, f32::NEG_INFINITY, 0.5];
    let x = Tensor::from_slice(shared(), [6], &x).unwrap();
    fn of<T: Value>(x: &Tensor) -> Vec<T> {
        x.to_dtype(T::Element::DTYPE).unwrap().to_vec().unwrap()
    }
    assert_eq!(of::<i64>(&x), [-1, 300, 0, i64::MAX, i64::MIN, 0]);
    assert_eq!(of::<i32>(&x), [-1, 300, 0, i32::MAX, i32::MIN, 0]);
    assert_eq!(of::<u8>(&x), [255, 44, 0, 255, 0, 0]);
    assert_eq!(of::<bool>(&x), [true; 6]);
    let zeros = Tensor::from_slice(shared(), [2], &[0.0f64, -0.0]).unwrap();
    assert_eq!(of::<bool>(&zeros), [false; 2]);
}

#[test]
fn integers_wrap_and_round() {
    let x = Tensor::from_slice(shared(), [4], &[-1i64, 256, 1 << 32, (1 << 53) + 1]).unwrap();
    assert_eq!(x.to_dtype(DType::U8).unwrap().to_vec::<u8>().unwrap(), [255, 0, 0, 1]);
    assert_eq!(x.to_dtype(DType::I32).unwrap().to_vec::<i32>().unwrap(), [-1, 256, 0, 1]);
    assert_eq!(
        x.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap(),
        [-1.0, 256.0, 4294967296.0, 9007199254740992.0]
    );
    // 2^53 + 1 has no f64, so a copy must not go through f64.
    assert_eq!(x.select(0, 3).unwrap().copied().unwrap().item::<i64>().unwrap(), (1 << 53) + 1);
}

#[test]
fn halves_round_to_nearest_even_in_vectors_and_alone() {
    // The tensor is longer than a vector, so that both the loop over vectors and the rest convert.
    let x: Vec<f32> = (0..1000).map(|i| (i as f32 - 500.0) * 1.000_37).collect();
    let tensor = Tensor::from_slice(shared(), [1000], &x).unwrap();
    let halves = tensor.to_dtype(DType::F16).unwrap().to_vec::<f16>().unwrap();
    assert!(halves.iter().zip(&x).all(|(h, &x)| *h == f16::from_f32_const(x)));
    let halves = tensor.to_dtype(DType::BF16).unwrap().to_vec::<bf16>().unwrap();
    assert!(halves.iter().zip(&x).all(|(h, &x)| *h == bf16::from_f32_const(x)));
    let ties = Tensor::from_slice(shared(), [3], &[2049.0f32, 2051.0, 65520.0]).unwrap();
    let ties = ties.to_dtype(DType::F16).unwrap().to_dtype(DType::F32).unwrap();
    assert_eq!(ties.to_vec::<f32>().unwrap(), [2048.0, 2052.0, f32::INFINITY]);
}

#[test]
fn any_byte_but_zero_is_true() {
    let x = Tensor::from_bytes(shared(), [3], DType::Bool, &[0, 1, 200]).unwrap();
    assert_eq!(x.to_vec::<bool>().unwrap(), [false, true, true]);
    assert_eq!(x.to_dtype(DType::I32).unwrap().to_vec::<i32>().unwrap(), [0, 1, 1]);
    assert_eq!(x.logical_not().unwrap().to_vec::<bool>().unwrap(), [true, false, false]);
}

#[test]
fn same_type_shares_and_another_type_does_not() {
    let (x, _) = sample(&[3], Style::Contiguous, DType::F32, 1);
    assert!(x.to_dtype(DType::F32).unwrap().shares_storage(&x));
    assert!(!x.to_dtype(DType::F64).unwrap().shares_storage(&x));
}
