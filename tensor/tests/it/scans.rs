//! Scans and sorting along one dimension.

use lowtide_tensor::{DType, SortOrder, Tensor};
use proptest::prelude::*;

use crate::common::{assert_close, assert_same, laid_out, sample, shapes, shared, styles};
use crate::naive::Array;

/// Applies `f` to each row along `axis`. All results of `f` have one length.
pub(crate) fn by_rows(
    array: &Array,
    axis: usize,
    len: usize,
    f: impl Fn(&[f64]) -> Vec<f64>,
) -> Array {
    let mut axes: Vec<usize> = (0..array.dims.len()).filter(|&at| at != axis).collect();
    axes.push(axis);
    let turned = array.permute(&axes);
    let mut dims = turned.dims.clone();
    dims[axes.len() - 1] = len;
    let row_len = array.dims[axis];
    let rows: usize = dims[..axes.len() - 1].iter().product();
    let values = (0..rows).flat_map(|row| f(&turned.values[row * row_len..][..row_len])).collect();
    let mut back = vec![0; axes.len()];
    axes.iter().enumerate().for_each(|(at, &axis)| back[axis] = at);
    Array::new(&dims, values).permute(&back)
}

fn running(x: &[f64], f: impl Fn(f64, f64) -> f64, start: f64) -> Vec<f64> {
    let mut sum = start;
    x.iter()
        .map(|&x| {
            sum = f(sum, x);
            sum
        })
        .collect()
}

/// Positions in sorted order. Equal elements keep their order, and NaN is the largest.
pub(crate) fn order_of(x: &[f64], order: SortOrder) -> Vec<usize> {
    let mut positions: Vec<usize> = (0..x.len()).collect();
    positions.sort_by(|&a, &b| {
        let key = |at: usize| (x[at].is_nan(), if x[at].is_nan() { 0.0 } else { x[at] });
        let by_value = key(a).partial_cmp(&key(b)).unwrap();
        if order == SortOrder::Ascending { by_value } else { by_value.reverse() }
    });
    positions
}

fn orders() -> impl Strategy<Value = SortOrder> {
    prop::sample::select(vec![SortOrder::Ascending, SortOrder::Descending])
}

fn dtypes() -> impl Strategy<Value = DType> {
    prop::sample::select(DType::ALL.to_vec())
}

/// Shapes, some of them large enough for several tiles and tasks.
fn large_shapes() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![
        6 => shapes(),
        1 => Just(vec![3, 1300]),
        1 => Just(vec![1300, 3]),
        1 => Just(vec![5, 33, 40]),
    ]
}

proptest! {
    #[test]
    fn scans_agree_with_their_twins(
        dims in large_shapes(),
        at in any::<prop::sample::Index>(),
        style in styles(),
        dtype in dtypes(),
    ) {
        prop_assume!(!dims.is_empty());
        let (x, twin) = sample(&dims, style, dtype, 1);
        let axis = at.index(dims.len());
        let len = dims[axis];
        let sums = by_rows(&twin, axis, len, |x| running(x, |a, b| a + b, 0.0));
        assert_close(&x.cumsum(axis).unwrap(), &sums, 1);
        let reversed = by_rows(&twin, axis, len, |x| {
            let turned: Vec<f64> = x.iter().rev().copied().collect();
            running(&turned, |a, b| a + b, 0.0).into_iter().rev().collect()
        });
        assert_close(&x.cumsum_backward(axis).unwrap(), &reversed, 1);
        let products = by_rows(&twin, axis, len, |x| running(x, |a, b| a * b, 1.0));
        let y = x.cumprod(axis).unwrap();
        prop_assert_eq!(y.dtype(), if dtype.is_float() { dtype } else { DType::I64 });
        if products.values.iter().all(|y| y.abs() < 1e15) {
            assert_close(&y, &products, 1);
        }
    }

    #[test]
    fn sorting_agrees_with_its_twin(
        dims in large_shapes(),
        at in any::<prop::sample::Index>(),
        k in any::<prop::sample::Index>(),
        style in styles(),
        dtype in dtypes(),
        order in orders(),
        has_nan in any::<bool>(),
    ) {
        prop_assume!(!dims.is_empty());
        let (x, twin) = sample(&dims, style, dtype, 2);
        let (x, twin) = if has_nan && dtype.is_float() {
            let twin = twin.map(|x| if x == 0.5 { f64::NAN } else { x });
            (laid_out(&twin, style, dtype), twin)
        } else {
            (x, twin)
        };
        let axis = at.index(dims.len());
        let k = k.index(dims[axis] + 1);
        for len in [dims[axis], k] {
            let positions = by_rows(&twin, axis, len, |x| {
                order_of(x, order)[..len].iter().map(|&at| at as f64).collect()
            });
            let values = by_rows(&twin, axis, len, |x| {
                order_of(x, order)[..len].iter().map(|&at| x[at]).collect()
            });
            let (found, places) = x.topk(len, axis, order).unwrap();
            assert_same(&places, &positions);
            assert_close(&found, &values, 0);
            if len == dims[axis] {
                let (found, places) = x.sort(axis, order).unwrap();
                assert_same(&places, &positions);
                assert_close(&found, &values, 0);
                assert_same(&x.argsort(axis, order).unwrap(), &positions);
            }
        }
    }
}

#[test]
fn sums_longer_than_a_chunk_go_on() {
    for dims in [vec![200_003], vec![2, 100_001], vec![100_003, 2], vec![3, 700, 200]] {
        let twin = Array::pattern(&dims, 1);
        let x = crate::common::upload(shared(), &twin, DType::F64);
        for (axis, &len) in dims.iter().enumerate() {
            let sums = by_rows(&twin, axis, len, |x| running(x, |a, b| a + b, 0.0));
            assert_same(&x.cumsum(axis).unwrap(), &sums);
            let reversed = by_rows(&twin, axis, len, |x| {
                let turned: Vec<f64> = x.iter().rev().copied().collect();
                running(&turned, |a, b| a + b, 0.0).into_iter().rev().collect()
            });
            assert_same(&x.cumsum_backward(axis).unwrap(), &reversed);
        }
    }
}

#[test]
fn signs_of_zero_are_equal_and_ends_are_in_order() {
    let values = [0.0f64, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::MIN, 5e-324, -5e-324, -0.0];
    let x = Tensor::from_slice(shared(), [8], &values).unwrap();
    let positions = x.argsort(0, SortOrder::Ascending).unwrap().to_vec::<i64>().unwrap();
    assert_eq!(positions, [3, 4, 6, 0, 1, 7, 5, 2]);
    let single = x.to_dtype(DType::F32).unwrap().argsort(0, SortOrder::Descending).unwrap();
    // In f32 the smallest numbers are 0, and the largest negative one is -∞.
    assert_eq!(single.to_vec::<i64>().unwrap(), [2, 0, 1, 5, 6, 7, 3, 4]);
    let whole = Tensor::from_slice(shared(), [3], &[i64::MAX, i64::MIN, -1]).unwrap();
    let positions = whole.argsort(0, SortOrder::Ascending).unwrap();
    assert_eq!(positions.to_vec::<i64>().unwrap(), [1, 2, 0]);
}

#[test]
fn mistakes_are_errors() {
    let x = Tensor::zeros(shared(), [2, 3], DType::F32).unwrap();
    let message = |error: lowtide_tensor::TensorError| error.to_string();
    assert!(message(x.cumsum(2).unwrap_err()).starts_with("cumsum: index 2"));
    assert!(message(x.cumprod(2).unwrap_err()).starts_with("cumprod: index 2"));
    assert!(message(x.sort(2, SortOrder::Ascending).unwrap_err()).starts_with("sort: index 2"));
    assert!(message(x.topk(4, 1, SortOrder::Ascending).unwrap_err()).starts_with("topk: index 4"));
}
