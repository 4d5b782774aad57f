//! Reductions over any dimensions, and positions of the largest and the smallest.

use lowtide_tensor::{DType, Tensor, TensorResult as Result};
use proptest::prelude::*;

use crate::common::{
    all_floats, assert_close, assert_same, download, floats, sample, shapes, shared, styles, upload,
};
use crate::naive::Array;

type Axes = fn(&Tensor, &[usize]) -> Result<Tensor>;
type Twin = fn(&[f64]) -> f64;

fn nonzero(x: &[f64]) -> f64 {
    x.iter().filter(|&&x| x != 0.0).count() as f64
}

fn largest(x: &[f64]) -> f64 {
    x.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b))
}

fn smallest(x: &[f64]) -> f64 {
    x.iter().fold(f64::INFINITY, |a, &b| a.min(b))
}

fn power_sum(x: &[f64], p: f64) -> f64 {
    x.iter().map(|x| x.abs().powf(p)).sum()
}

fn variance(x: &[f64]) -> f64 {
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (x.len() as f64 - 1.0).max(0.0)
}

fn magnitudes(x: &[f64]) -> Vec<f64> {
    x.iter().map(|x| x.abs()).collect()
}

/// Reductions of all element types, each with the form that keeps dimensions, its twin, and true if
/// no elements have a result.
const OF_ALL: [(Axes, Axes, Twin, bool); 7] = [
    (Tensor::sum, Tensor::sum_keep, |x| x.iter().sum(), true),
    (Tensor::prod, Tensor::prod_keep, |x| x.iter().product(), true),
    (Tensor::amax, Tensor::amax_keep, largest, false),
    (Tensor::amin, Tensor::amin_keep, smallest, false),
    (Tensor::any, Tensor::any_keep, |x| f64::from(nonzero(x) > 0.0), true),
    (Tensor::all, Tensor::all_keep, |x| f64::from(nonzero(x) == x.len() as f64), true),
    (Tensor::count_nonzero, Tensor::count_nonzero_keep, nonzero, true),
];

const OF_FLOATS: [(Axes, Axes, Twin, bool); 10] = [
    (Tensor::mean, Tensor::mean_keep, |x| x.iter().sum::<f64>() / x.len() as f64, true),
    (
        Tensor::logsumexp,
        Tensor::logsumexp_keep,
        |x| x.iter().map(|x| x.exp()).sum::<f64>().ln(),
        true,
    ),
    (|x, axes| x.var(axes, 1.0), |x, axes| x.var_keep(axes, 1.0), variance, true),
    (|x, axes| x.std(axes, 1.0), |x, axes| x.std_keep(axes, 1.0), |x| variance(x).sqrt(), true),
    (|x, axes| x.norm(axes, 0.0), |x, axes| x.norm_keep(axes, 0.0), nonzero, true),
    (|x, axes| x.norm(axes, 1.0), |x, axes| x.norm_keep(axes, 1.0), |x| power_sum(x, 1.0), true),
    (
        |x, axes| x.norm(axes, 2.0),
        |x, axes| x.norm_keep(axes, 2.0),
        |x| power_sum(x, 2.0).sqrt(),
        true,
    ),
    (
        |x, axes| x.norm(axes, 3.0),
        |x, axes| x.norm_keep(axes, 3.0),
        |x| power_sum(x, 3.0).powf(1.0 / 3.0),
        true,
    ),
    (
        |x, axes| x.norm(axes, f64::INFINITY),
        |x, axes| x.norm_keep(axes, f64::INFINITY),
        |x| largest(&magnitudes(x)),
        false,
    ),
    (
        |x, axes| x.norm(axes, f64::NEG_INFINITY),
        |x, axes| x.norm_keep(axes, f64::NEG_INFINITY),
        |x| smallest(&magnitudes(x)),
        false,
    ),
];

/// Checks both forms of every reduction against its twin.
fn check_reductions(
    reductions: &[(Axes, Axes, Twin, bool)],
    x: &Tensor,
    array: &Array,
    axes: &[usize],
) {
    let kept: Vec<usize> = (0..array.dims.len())
        .map(|at| if axes.contains(&at) { 1 } else { array.dims[at] })
        .collect();
    let is_empty = axes.iter().any(|&axis| array.dims[axis] == 0);
    for (index, &(reduce, keep, twin, takes_none)) in reductions.iter().enumerate() {
        if is_empty && !takes_none {
            let error = reduce(x, axes).unwrap_err().to_string();
            assert!(error.contains("index 0 is out of range for length 0"), "{index}: {error}");
            continue;
        }
        let expected = array.reduce(axes, twin);
        let wrapped = |y: &Tensor, expected: &Array| match y.dtype() {
            // Products of integers wrap, and f64 twins do not.
            DType::I64 if expected.values.iter().any(|y| y.abs() > 1e15) => {}
            // A product may overflow the type, and the twin in f64 rounds, too.
            dtype => {
                let in_twin =
                    if dtype == DType::F64 { array.len() / expected.len().max(1) } else { 0 };
                assert_close(y, &download(&upload(shared(), expected, dtype)), 4 + in_twin);
            }
        };
        wrapped(&reduce(x, axes).unwrap(), &expected);
        wrapped(&keep(x, axes).unwrap(), &expected.reshape(&kept));
    }
}

/// Dimensions, some of their axes, and sometimes a larger pair for several chunks and tiles.
fn large_shapes() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![
        6 => shapes(),
        1 => Just(vec![3, 700]),
        1 => Just(vec![700, 3]),
        1 => Just(vec![5, 33, 40]),
        1 => Just(vec![40, 35, 6]),
    ]
}

proptest! {
    #[test]
    fn reductions_agree_with_their_twins(
        dims in large_shapes(),
        mask in any::<[bool; 5]>(),
        style in styles(),
        dtype in prop::sample::select(DType::ALL.to_vec()),
    ) {
        let (x, twin) = sample(&dims, style, dtype, 1);
        let axes: Vec<usize> = (0..dims.len()).filter(|&axis| mask[axis]).collect();
        check_reductions(&OF_ALL, &x, &twin, &axes);
        if dtype.is_float() {
            check_reductions(&OF_FLOATS, &x, &twin, &axes);
        } else {
            prop_assert_eq!(x.sum(&axes).unwrap().dtype(), DType::I64);
            for (reduce, ..) in OF_FLOATS {
                let error = reduce(&x, &axes).unwrap_err().to_string();
                prop_assert!(error.contains("element types"), "{}", error);
            }
        }
    }

    #[test]
    fn positions_and_values_are_those_of_the_first_of_equals(
        dims in large_shapes(),
        at in any::<prop::sample::Index>(),
        style in styles(),
        dtype in prop::sample::select(DType::ALL.to_vec()),
    ) {
        prop_assume!(!dims.is_empty());
        let (x, twin) = sample(&dims, style, dtype, 3);
        let axis = at.index(dims.len());
        if dims[axis] == 0 {
            prop_assert!(x.max(axis).is_err() && x.argmin_axis(axis).is_err());
            return Ok(());
        }
        let kept: Vec<usize> =
            (0..dims.len()).map(|other| if other == axis { 1 } else { dims[other] }).collect();
        let first = |of: Twin| move |x: &[f64]| {
            let best = of(x);
            x.iter().position(|&x| x == best).unwrap() as f64
        };
        let expected = twin.reduce(&[axis], first(largest));
        assert_same(&x.argmax_axis(axis).unwrap(), &expected);
        assert_same(&x.argmax_keep(axis).unwrap(), &expected.reshape(&kept));
        assert_same(&x.max(axis).unwrap().1, &expected);
        assert_same(&x.max(axis).unwrap().0, &twin.reduce(&[axis], largest));
        assert_same(&x.max_keep(axis).unwrap().0, &twin.reduce(&[axis], largest).reshape(&kept));
        let expected = twin.reduce(&[axis], first(smallest));
        assert_same(&x.argmin_axis(axis).unwrap(), &expected);
        assert_same(&x.argmin_keep(axis).unwrap(), &expected.reshape(&kept));
        assert_same(&x.min(axis).unwrap().1, &expected);
        assert_same(&x.min(axis).unwrap().0, &twin.reduce(&[axis], smallest));
        assert_same(&x.min_keep(axis).unwrap().1, &expected.reshape(&kept));
        if twin.len() > 0 {
            let all: Vec<usize> = (0..dims.len()).collect();
            assert_same(&x.argmax_all().unwrap(), &twin.reduce(&all, first(largest)));
            assert_same(&x.argmin_all().unwrap(), &twin.reduce(&all, first(smallest)));
        }
    }

    #[test]
    fn nan_wins_wherever_it_stands(
        len in 1..100_000usize,
        place in any::<prop::sample::Index>(),
        columns in prop::sample::select(vec![1usize, 3]),
        dtype in all_floats(),
    ) {
        let at = place.index(len);
        let (x, _) = sample(&[len, columns], crate::common::Style::Contiguous, dtype, 1);
        x.narrow(0, at, 1).unwrap().fill_(f64::NAN).unwrap();
        if at + 1 < len {
            x.narrow(0, len - 1, 1).unwrap().fill_(f64::NAN).unwrap();
        }
        let place = Array::new(&[columns], vec![at as f64; columns]);
        assert_same(&x.argmax_axis(0).unwrap(), &place);
        assert_same(&x.argmin_axis(0).unwrap(), &place);
        for y in [x.amax(&[0]), x.amin(&[0]), x.norm(&[0], f64::INFINITY), x.logsumexp(&[0])] {
            let values = download(&y.unwrap()).values;
            prop_assert!(values.iter().all(|y| y.is_nan()));
        }
        let first = x.argmax_all().unwrap().item::<i64>().unwrap();
        prop_assert_eq!(first as usize, at * columns);
    }

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

#[test]
fn extremes_longer_than_a_task_are_found_once() {
    // The largest element is in the third task, and again in a later task.
    let mut values = vec![1i64; 300_000];
    (values[100_000], values[250_000], values[7], values[299_999]) = (5, 5, -3, -3);
    for dims in [[1, 300_000], [300_000, 1], [3, 100_000], [100_000, 3]] {
        let x = Tensor::from_slice(shared(), dims, &values).unwrap();
        assert_eq!(x.argmax_all().unwrap().item::<i64>().unwrap(), 100_000);
        assert_eq!(x.argmin_all().unwrap().item::<i64>().unwrap(), 7);
        let (best, at) = x.reshape([300_000]).unwrap().max(0).unwrap();
        assert_eq!((best.item::<i64>().unwrap(), at.item::<i64>().unwrap()), (5, 100_000));
    }
}

#[test]
fn infinities_go_through_logsumexp() {
    let inf = f32::INFINITY;
    let x = Tensor::from_slice(shared(), [4, 2], &[-inf, -inf, inf, 1.0, inf, -inf, 1e38, 1e38]);
    let y = x.unwrap().logsumexp(&[1]).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(y, [-inf, inf, inf, 1e38]);
    let none = Tensor::zeros(shared(), [2, 0], DType::F32).unwrap();
    assert_eq!(none.logsumexp(&[1]).unwrap().to_vec::<f32>().unwrap(), [-inf; 2]);
}

#[test]
fn integers_keep_all_their_digits() {
    let big = (1i64 << 53) + 1;
    let x = Tensor::from_slice(shared(), [3], &[big, big, -1]).unwrap();
    assert_eq!(x.sum_all().unwrap().item::<i64>().unwrap(), 2 * big - 1);
    assert_eq!(x.amax(&[0]).unwrap().item::<i64>().unwrap(), big);
    let wrapping = Tensor::from_slice(shared(), [2], &[i64::MAX, 1]).unwrap();
    assert_eq!(wrapping.sum_all().unwrap().item::<i64>().unwrap(), i64::MIN);
    let least = Tensor::full(shared(), [3], DType::I64, f64::NEG_INFINITY).unwrap();
    assert_eq!(least.argmax_all().unwrap().item::<i64>().unwrap(), 0);
}
