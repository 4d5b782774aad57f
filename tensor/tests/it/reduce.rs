//! Sums, means and positions of the largest.

use lowtide_tensor::{DType, Tensor};
use proptest::prelude::*;

use crate::common::{assert_close, assert_same, floats, sample, shapes, shared, styles, upload};
use crate::naive::Array;

proptest! {
    #[test]
    fn sum_and_mean_run_over_the_named_axes(
        dims in shapes(), mask in any::<[bool; 5]>(), style in styles(), dtype in floats(),
    ) {
        let (x, twin) = sample(&dims, style, dtype, 1);
        let axes: Vec<usize> = (0..dims.len()).filter(|&axis| mask[axis]).collect();
        let expected = twin.sum(&axes);
        assert_same(&x.sum(&axes).unwrap(), &expected);
        let count = axes.iter().map(|&axis| dims[axis]).product::<usize>() as f64;
        assert_close(&x.mean(&axes).unwrap(), &expected.map(|sum| sum / count), 2);
        let all: Vec<usize> = (0..dims.len()).collect();
        assert_same(&x.sum_all().unwrap(), &twin.sum(&all));
    }

    #[test]
    fn sum_to_undoes_a_broadcast(
        dims in shapes(), ones in any::<[bool; 5]>(), dropped in 0..=5usize, style in styles(),
    ) {
        let (x, twin) = sample(&dims, style, DType::F32, 1);
        let dropped = dropped.min(dims.len());
        let target: Vec<usize> =
            dims.iter().zip(ones).map(|(&dim, one)| if one { 1 } else { dim }).collect();
        let target = &target[dropped..];
        let axes: Vec<usize> =
            (0..dims.len()).filter(|&axis| axis < dropped || ones[axis]).collect();
        let y = x.sum_to(target).unwrap();
        assert_same(&y, &twin.sum(&axes).reshape(target));
        prop_assert_eq!(y.shares_storage(&x), target == &dims[..]);
    }

    #[test]
    fn argmax_is_the_first_of_the_largest(
        dims in shapes(), row_len in 1..40usize, style in styles(), dtype in floats(),
    ) {
        let dims = [&dims[..], &[row_len]].concat();
        let (x, twin) = sample(&dims, style, dtype, 3);
        let y = x.argmax().unwrap();
        prop_assert_eq!(y.dtype(), DType::I64);
        assert_same(&y, &twin.argmax());
    }
}

#[test]
fn sums_longer_than_a_chunk_are_exact() {
    // The multiples of 1/8 add up without a rounding in f64, whatever the order.
    for dims in [[2, 100_003], [100_003, 2]] {
        let twin = Array::pattern(&dims, 1);
        let x = upload(shared(), &twin, DType::F64);
        for axes in [&[0][..], &[1], &[0, 1]] {
            assert_same(&x.sum(axes).unwrap(), &twin.sum(axes));
            let turned: Vec<usize> = axes.iter().map(|axis| 1 - axis).collect();
            assert_same(&x.transpose(0, 1).unwrap().sum(&turned).unwrap(), &twin.sum(axes));
        }
    }
}

#[test]
fn sum_of_f32_is_accumulated_in_f64() {
    // In f32, 2^24 + 1 is 2^24: ten million ones would stop there.
    let x = Tensor::full(shared(), [1], DType::F32, 1.0).unwrap().expand([20_000_000]).unwrap();
    assert_eq!(x.sum_all().unwrap().item::<f32>().unwrap(), 2e7);
}

#[test]
fn nan_counts_as_the_largest() {
    let x = Tensor::from_slice(shared(), [2, 3], &[1.0, f32::NAN, 9.0, f32::NAN, 1.0, f32::NAN]);
    assert_eq!(x.unwrap().argmax().unwrap().to_vec::<i64>().unwrap(), [1, 0]);
}
