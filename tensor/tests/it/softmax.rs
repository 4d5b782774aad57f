//! Softmax and its logarithm against the definition, over any axis and layout.

use lowtide_tensor::{DType, Tensor};
use proptest::prelude::*;

use crate::common::{
    Style, all_floats, assert_close, assert_same, cpu, download, epsilon, laid_out, sample, shapes,
    styles, upload, writable_styles,
};
use crate::naive::{Array, index_of};

/// Applies `f` to each row along `axis`, in place of the row.
fn map_rows(x: &Array, axis: usize, f: impl Fn(&[f64]) -> Vec<f64>) -> Array {
    let mut y = x.clone();
    let len = x.dims.get(axis).copied().unwrap_or(1);
    for place in 0..x.len() {
        let mut index = index_of(&x.dims, place);
        if !index.is_empty() && index[axis] > 0 {
            continue;
        }
        let places: Vec<usize> = (0..len)
            .map(|at| {
                if let Some(index) = index.get_mut(axis) {
                    *index = at;
                }
                index.iter().zip(&x.dims).fold(0, |place, (&at, &dim)| place * dim + at)
            })
            .collect();
        let row: Vec<f64> = places.iter().map(|&place| x.values[place]).collect();
        places.iter().zip(f(&row)).for_each(|(&place, value)| y.values[place] = value);
    }
    y
}

fn softmax_row(x: &[f64]) -> Vec<f64> {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = x.iter().map(|x| (x - max).exp()).sum();
    x.iter().map(|x| (x - max).exp() / sum).collect()
}

pub(crate) fn softmax(x: &Array, axis: usize) -> Array {
    map_rows(x, axis, softmax_row)
}

fn log_softmax(x: &Array, axis: usize) -> Array {
    map_rows(x, axis, |x| softmax_row(x).into_iter().map(f64::ln).collect())
}

/// The shapes of `common`, and shapes that are longer than a line along or across the rows.
fn shapes_with_axis() -> impl Strategy<Value = (Vec<usize>, usize)> {
    let long = prop::sample::select(vec![vec![3, 70], vec![70, 3], vec![2, 5, 150], vec![200]]);
    prop_oneof![4 => shapes(), 1 => long].prop_flat_map(|dims| {
        let rank = dims.len().max(1);
        (Just(dims), 0..rank)
    })
}

proptest! {
    #[test]
    fn forward_follows_the_definition(
        (dims, axis) in shapes_with_axis(), style in styles(), dtype in all_floats(),
    ) {
        let (x, twin) = sample(&dims, style, dtype, 1);
        assert_close(&x.softmax(axis).unwrap(), &softmax(&twin, axis), 8);
        assert_close(&x.log_softmax(axis).unwrap(), &log_softmax(&twin, axis), 8);
    }

    #[test]
    fn forward_in_place_follows_the_definition(
        (dims, axis) in shapes_with_axis(), style in writable_styles(), dtype in all_floats(),
    ) {
        let (mut x, twin) = sample(&dims, style, dtype, 1);
        x.softmax_(axis).unwrap();
        assert_close(&x, &softmax(&twin, axis), 8);
        let (mut x, _) = sample(&dims, style, dtype, 1);
        x.log_softmax_(axis).unwrap();
        assert_close(&x, &log_softmax(&twin, axis), 8);
    }

    #[test]
    fn backward_follows_the_definition(
        (dims, axis) in shapes_with_axis(), style in styles(), dy_style in writable_styles(),
        dtype in all_floats(),
    ) {
        let (y_of_log, log_twin) = sample(&dims, style, dtype, 1);
        let y_twin = softmax(&log_twin, axis);
        let y = laid_out(&y_twin, style, dtype);
        let (dy, dy_twin) = sample(&dims, dy_style, dtype, 2);
        let len = dims.get(axis).copied().unwrap_or(1);
        let sum = |array: &Array| {
            map_rows(array, axis, |row| vec![row.iter().sum(); row.len()])
        };
        let product = dy_twin.zip(&y_twin, &dims, |dy, y| dy * y);
        let expected = dy_twin.zip(&sum(&product), &dims, |dy, s| dy - s);
        let expected = expected.zip(&y_twin, &dims, |dx, y| dx * y);
        let weighted = sum(&dy_twin).zip(&log_twin, &dims, |s, y| s * y.exp());
        let expected_log = dy_twin.zip(&weighted, &dims, |dy, s| dy - s);

        assert_close(&dy.softmax_backward(&y, axis).unwrap(), &expected, 8 + 2 * len);
        let of_log = dy.log_softmax_backward(&y_of_log, axis).unwrap();
        assert_close(&of_log, &expected_log, 8 + 2 * len);
        let (mut dx, _) = sample(&dims, dy_style, dtype, 2);
        dx.softmax_backward_(&y, axis).unwrap();
        assert_close(&dx, &expected, 8 + 2 * len);
        let (mut dx, _) = sample(&dims, dy_style, dtype, 2);
        dx.log_softmax_backward_(&y_of_log, axis).unwrap();
        assert_close(&dx, &expected_log, 8 + 2 * len);
    }
}

/// If one y is nearly 1, its dy and the sum of products cancel. Roundings of either would be as
/// large as the gradient.
#[test]
fn backward_of_a_row_that_one_element_fills_is_as_near_as_its_elements() {
    let (x, dy) = ([10.0, 0.0, -3.0, -0.5], [5.51, 3.13, -1.07, 2.23]);
    let rows = |row: [f64; 4]| Array::new(&[2, 4], [row, row].concat());
    let y = softmax_row(&x);
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        for style in [Style::Contiguous, Style::Transposed] {
            let mut dx = laid_out(&rows(dy), style, dtype);
            let dy = download(&dx).values;
            dx.softmax_backward_(&laid_out(&softmax(&rows(x), 1), style, dtype), 1).unwrap();
            for (place, found) in download(&dx).values.into_iter().enumerate() {
                // `dy[i] - Σ_j y[j]·dy[j]` without its cancellation, as Σ y = 1.
                let differences = y.iter().zip(&dy).map(|(y, other)| y * (dy[place] - other));
                let expected = y[place % 4] * differences.sum::<f64>();
                let most = 8.0 * epsilon(dtype) * expected.abs();
                assert!((found - expected).abs() <= most, "{dtype}: {found}, not {expected}");
            }
        }
    }
}

#[test]
fn rows_without_a_finite_maximum_are_nan_as_in_pytorch() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let rows = [[-inf, -inf, -inf], [inf, 0.0, 1.0], [0.0, nan, 1.0], [-inf, 3.0, -inf]];
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        let x = upload(&cpu(1), &Array::new(&[4, 3], rows.concat()), dtype);
        let [y, log] = [x.softmax(1).unwrap(), x.log_softmax(1).unwrap()].map(|y| download(&y));
        assert!(y.values[..9].iter().chain(&log.values[..9]).all(|y| y.is_nan()), "{y:?} {log:?}");
        assert_eq!(
            (&y.values[9..], &log.values[9..]),
            (&[0.0, 1.0, 0.0][..], &[-inf, 0.0, -inf][..])
        );
        // Across columns, on a view that is not contiguous.
        let turned = x.transpose(0, 1).unwrap();
        let across = download(&turned.softmax(0).unwrap().transpose(0, 1).unwrap());
        assert!(across.values[..9].iter().all(|y| y.is_nan()));
        assert_eq!(across.values[9..], y.values[9..]);
    }
}

#[test]
fn large_logits_neither_overflow_nor_vanish() {
    let x = upload(&cpu(1), &Array::new(&[3], vec![1e30, 1e30, -1e30]), DType::F32);
    assert_same(&x.softmax(0).unwrap(), &Array::new(&[3], vec![0.5, 0.5, 0.0]));
    let x = upload(&cpu(1), &Array::new(&[2], vec![-1e4, -1e4]), DType::F32);
    let log = Array::new(&[2], vec![-(2f64.ln()); 2]);
    assert_close(&x.log_softmax(0).unwrap(), &log, 1);
}

#[test]
fn rows_of_a_matrix_sum_to_one() {
    let x = Tensor::from_slice(&cpu(2), [64, 1000], &vec![0.25f32; 64_000]).unwrap();
    let sums = download(&x.softmax(1).unwrap().sum(&[1]).unwrap());
    assert!(sums.values.iter().all(|sum| (sum - 1.0).abs() < 1e-5), "{sums:?}");
}
