//! Normalisations against the definition: layer, root mean square, groups and batches.

use lowtide_tensor::{DType, Normalized, NormalizedBackward, Statistics, Tensor};
use proptest::prelude::*;

use crate::common::{Style, all_floats, download, epsilon, sample, shapes, shared, styles};
use crate::naive::{Array, index_of};

const EPS: f64 = 0.25;

/// Rows of a normalisation. Two elements are in one row if `row` gives the same number for both,
/// and share parameters if `parameter` does.
struct Rows<'a> {
    row: &'a dyn Fn(&[usize]) -> usize,
    row_count: usize,
    parameter: &'a dyn Fn(&[usize]) -> usize,
    is_centered: bool,
}

struct Expected {
    y: Vec<f64>,
    mean: Vec<f64>,
    rstd: Vec<f64>,
    dx: Vec<f64>,
    dweight: Vec<f64>,
    dbias: Vec<f64>,
}

impl Rows<'_> {
    fn expected(&self, x: &Array, dy: &Array, w: &[f64], b: &[f64]) -> Expected {
        let indices: Vec<_> = (0..x.len()).map(|place| index_of(&x.dims, place)).collect();
        let row: Vec<usize> = indices.iter().map(|index| (self.row)(index)).collect();
        let parameter: Vec<usize> = indices.iter().map(|index| (self.parameter)(index)).collect();
        let mean_of = |value: &dyn Fn(usize) -> f64| {
            let (mut sums, mut counts) = (vec![0.0; self.row_count], vec![0.0; self.row_count]);
            for (place, &row) in row.iter().enumerate() {
                sums[row] += value(place);
                counts[row] += 1.0;
            }
            sums.iter().zip(counts).map(|(sum, count)| sum / count).collect::<Vec<f64>>()
        };
        let mean = match self.is_centered {
            true => mean_of(&|i| x.values[i]),
            false => vec![0.0; self.row_count],
        };
        let variance = mean_of(&|i| (x.values[i] - mean[row[i]]).powi(2));
        let rstd: Vec<f64> = variance.iter().map(|v| 1.0 / (v + EPS).sqrt()).collect();
        let hat = |i: usize| (x.values[i] - mean[row[i]]) * rstd[row[i]];
        let scaled = |i: usize| dy.values[i] * w[parameter[i]];
        let centered = f64::from(u8::from(self.is_centered));
        let (sum, product) = (mean_of(&scaled), mean_of(&|i| scaled(i) * hat(i)));
        let dx = (0..x.len())
            .map(|i| rstd[row[i]] * (scaled(i) - centered * sum[row[i]] - hat(i) * product[row[i]]))
            .collect();
        let (mut dweight, mut dbias) = (vec![0.0; w.len()], vec![0.0; w.len()]);
        for i in 0..x.len() {
            dweight[parameter[i]] += dy.values[i] * hat(i);
            dbias[parameter[i]] += dy.values[i];
        }
        let y = (0..x.len()).map(|i| hat(i) * w[parameter[i]] + b[parameter[i]]).collect();
        Expected { y, mean, rstd, dx, dweight, dbias }
    }
}

/// Checks that `tensor` agrees with `values` within some roundings of its type, one rounding of
/// `sum_dtype` for each term, and the twin's own errors.
#[track_caller]
fn check(tensor: &Tensor, values: &[f64], terms: usize, sum_dtype: DType) {
    let found = download(tensor);
    assert_eq!(found.len(), values.len());
    let relative =
        24.0 * epsilon(tensor.dtype()) + terms as f64 * (epsilon(sum_dtype) + 2.0 * f64::EPSILON);
    for (place, (x, y)) in found.values.iter().zip(values).enumerate() {
        let tolerance = relative * y.abs().max(1.0);
        let agrees = (x - y).abs() <= tolerance || (x.is_nan() && y.is_nan());
        assert!(agrees, "element {place}: {x}, not {y}, within {tolerance:e}");
    }
}

#[track_caller]
fn check_forward(found: &Normalized, expected: &Expected) {
    // Rows are summed in f64.
    let terms = expected.y.len() / expected.mean.len().max(1);
    check(&found.y, &expected.y, terms, DType::F64);
    check(&found.rstd, &expected.rstd, terms, DType::F64);
    if let Some(mean) = &found.mean {
        check(mean, &expected.mean, terms, DType::F64);
    }
}

#[track_caller]
fn check_backward(found: &NormalizedBackward, expected: &Expected) {
    let terms = expected.y.len() / expected.mean.len().max(1);
    check(&found.dx, &expected.dx, terms, DType::F64);
    if let Some([dweight, dbias]) = &found.parameters {
        let terms = expected.dx.len() / expected.dweight.len().max(1);
        let sum_dtype = if dweight.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        check(dweight, &expected.dweight, terms, sum_dtype);
        check(dbias, &expected.dbias, terms, sum_dtype);
    }
}

/// The shapes of `common`, and longer rows and more samples than one summation takes.
fn row_shapes() -> impl Strategy<Value = (Vec<usize>, usize)> {
    let long = prop::sample::select(vec![
        (vec![3, 150], 1),
        (vec![150, 3], 1),
        (vec![70, 2, 40], 2),
        (vec![1, 2100], 1),
    ]);
    let small = shapes().prop_flat_map(|dims| {
        let rank = dims.len();
        (Just(dims), 0..=rank)
    });
    // Rows of no elements have no mean.
    let small = small.prop_filter("empty rows", |(dims, axis_count)| {
        dims[dims.len() - axis_count..].iter().all(|&dim| dim > 0)
    });
    prop_oneof![3 => small, 1 => long]
}

/// `[N, C, ..]` and groups that divide C.
fn group_shapes() -> impl Strategy<Value = (Vec<usize>, usize)> {
    let channels = prop::sample::select(vec![(1, 1), (4, 2), (6, 3), (6, 6), (6, 1)]);
    let inner = prop::collection::vec(1..=5usize, 0..=3);
    let samples = prop::sample::select(vec![0, 1, 2, 5, 70, 131]);
    (samples, channels, inner, any::<bool>()).prop_map(|(n, (c, groups), mut inner, is_long)| {
        if n < 5 && is_long {
            inner.push(45);
        }
        ([vec![n, c], inner].concat(), groups)
    })
}

proptest! {
    #[test]
    fn layer_and_rms_norm_follow_the_definition(
        (dims, axis_count) in row_shapes(), style in styles(), dy_style in styles(),
        dtype in all_floats(), has_weight in any::<bool>(),
    ) {
        let kept = dims.len() - axis_count;
        let len: usize = dims[kept..].iter().product();
        let (x, x_twin) = sample(&dims, style, dtype, 1);
        let (dy, dy_twin) = sample(&dims, dy_style, dtype, 2);
        let (w, w_twin) = sample(&dims[kept..], Style::Transposed, dtype, 3);
        let (b, b_twin) = sample(&dims[kept..], Style::Narrowed, dtype, 4);
        let place = |dims: &[usize], index: &[usize]| {
            index.iter().zip(dims).fold(0, |place, (&at, &dim)| place * dim + at)
        };
        let mut rows = Rows {
            row: &|index| place(&dims[..kept], &index[..kept]),
            row_count: dims[..kept].iter().product(),
            parameter: &|index| place(&dims[kept..], &index[kept..]),
            is_centered: true,
        };
        let (ones, zeros) = (vec![1.0; len], vec![0.0; len]);
        let (weight, w) = if has_weight { (Some(&w), &w_twin.values) } else { (None, &ones) };

        let expected = rows.expected(&x_twin, &dy_twin, w, &b_twin.values);
        let found = x.layer_norm(axis_count, weight, Some(&b), EPS).unwrap();
        check_forward(&found, &expected);
        let mean = found.mean.as_ref().unwrap();
        let gradients = dy.layer_norm_backward(&x, mean, &found.rstd, weight).unwrap();
        check_backward(&gradients, &expected);
        prop_assert_eq!(gradients.parameters.is_some(), has_weight);

        rows.is_centered = false;
        let expected = rows.expected(&x_twin, &dy_twin, w, &zeros);
        let found = x.rms_norm(axis_count, weight, EPS).unwrap();
        check_forward(&found, &expected);
        prop_assert!(found.mean.is_none());
        check_backward(&dy.rms_norm_backward(&x, &found.rstd, weight).unwrap(), &expected);
    }

    #[test]
    fn group_norm_follows_the_definition(
        (dims, groups) in group_shapes(), style in styles(), dy_style in styles(),
        dtype in all_floats(), has_weight in any::<bool>(),
    ) {
        let channels = dims[1];
        let (x, x_twin) = sample(&dims, style, dtype, 1);
        let (dy, dy_twin) = sample(&dims, dy_style, dtype, 2);
        let (w, w_twin) = sample(&[channels], Style::Narrowed, dtype, 3);
        let (b, b_twin) = sample(&[channels], Style::Contiguous, dtype, 4);
        let rows = Rows {
            row: &|index| index[0] * groups + index[1] / (channels / groups),
            row_count: dims[0] * groups,
            parameter: &|index| index[1],
            is_centered: true,
        };
        let ones = vec![1.0; channels];
        let (weight, w) = if has_weight { (Some(&w), &w_twin.values) } else { (None, &ones) };
        let expected = rows.expected(&x_twin, &dy_twin, w, &b_twin.values);
        let found = x.group_norm(groups, weight, Some(&b), EPS).unwrap();
        check_forward(&found, &expected);
        let mean = found.mean.as_ref().unwrap();
        let gradients = dy.group_norm_backward(&x, mean, &found.rstd, weight).unwrap();
        check_backward(&gradients, &expected);
    }
}

#[test]
fn large_mean_does_not_swallow_the_variance() {
    // Around 4096 an f32 has steps of 1/2048; its square would have steps of 2.
    let x_twin = Array::pattern(&[3, 5000], 1).map(|x| x + 4096.0);
    let x = crate::common::upload(shared(), &x_twin, DType::F32);
    let found = x.layer_norm(1, None, None, 0.0).unwrap();
    for (row, rstd) in download(&found.rstd).values.into_iter().enumerate() {
        let row = &x_twin.values[row * 5000..][..5000];
        let mean = row.iter().sum::<f64>() / 5000.0;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 5000.0;
        assert!((rstd * variance.sqrt() - 1.0).abs() < 1e-6, "{rstd} against {variance}");
    }
}

/// The law also holds if the first element, from which the others are subtracted, is far from them.
#[test]
fn large_mean_does_not_swallow_the_variance_of_channels() {
    for (inner, first) in [(1, 4096.0), (10, 0.0), (10, -1e6), (300, 0.0)] {
        let mut x_twin = Array::pattern(&[500, 2, inner], 1).map(|x| x + 4096.0);
        x_twin.values[0] = first;
        let x = crate::common::upload(shared(), &x_twin, DType::F32);
        let found = x.batch_norm(None, None, 0.0).unwrap();
        let statistics = [download(&found.mean).values, download(&found.variance).values];
        for channel in 0..2 {
            let of_channel = |(at, x): (usize, &f64)| (at / inner % 2 == channel).then_some(*x);
            let of_channel: Vec<f64> =
                x_twin.values.iter().enumerate().filter_map(of_channel).collect();
            let count = of_channel.len() as f64;
            let mean = of_channel.iter().sum::<f64>() / count;
            let variance = of_channel.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
            for (found, expected) in statistics.iter().zip([mean, variance]) {
                assert!((found[channel] / expected - 1.0).abs() < 1e-6, "{found:?} {expected}");
            }
        }
    }
}

/// `[N, C, ..]` of few and of many samples, with short or long rows, or with no dimension after the
/// channels.
fn batch_shapes() -> impl Strategy<Value = Vec<usize>> {
    let inner = prop::collection::vec(prop::sample::select(vec![1, 2, 3, 5, 12, 17]), 0..=2);
    let samples = prop::sample::select(vec![1, 2, 5, 70, 131]);
    (samples, prop::sample::select(vec![1, 3, 35]), inner)
        .prop_map(|(n, c, inner)| [vec![n, c], inner].concat())
}

proptest! {
    #[test]
    fn batch_norm_follows_the_definition(
        dims in batch_shapes(), style in styles(), dy_style in styles(), dtype in all_floats(),
        has_weight in any::<bool>(),
    ) {
        let channels = dims[1];
        let (x, x_twin) = sample(&dims, style, dtype, 1);
        let (dy, dy_twin) = sample(&dims, dy_style, dtype, 2);
        let (w, w_twin) = sample(&[channels], Style::Narrowed, dtype, 3);
        let (b, b_twin) = sample(&[channels], Style::Contiguous, dtype, 4);
        let rows = Rows {
            row: &|index| index[1],
            row_count: channels,
            parameter: &|index| index[1],
            is_centered: true,
        };
        let ones = vec![1.0; channels];
        let (weight, w) = if has_weight { (Some(&w), &w_twin.values) } else { (None, &ones) };
        let expected = rows.expected(&x_twin, &dy_twin, w, &b_twin.values);
        let terms = x_twin.len() / channels;

        let found = x.batch_norm(weight, Some(&b), EPS).unwrap();
        let variances: Vec<f64> = expected.rstd.iter().map(|r| 1.0 / (r * r) - EPS).collect();
        check(&found.y, &expected.y, terms, DType::F64);
        check(&found.mean, &expected.mean, terms, DType::F64);
        check(&found.variance, &variances, terms, DType::F64);
        let (mean, variance) = (&found.mean, &found.variance);
        let gradients =
            dy.batch_norm_backward(&x, mean, variance, weight, Statistics::Batch, EPS).unwrap();
        check(&gradients.dx, &expected.dx, terms, DType::F64);
        // Terms are computed in the type of the statistics and summed in f64.
        check(&gradients.dweight, &expected.dweight, terms, mean.dtype());
        check(&gradients.dbias, &expected.dbias, terms, mean.dtype());

        // With fixed statistics, the result is a linear function of x.
        let y = x.batch_norm_fixed(mean, variance, weight, Some(&b), EPS).unwrap();
        prop_assert_eq!(download(&y), download(&found.y));
        let fixed =
            dy.batch_norm_backward(&x, mean, variance, weight, Statistics::Fixed, EPS).unwrap();
        let inner: usize = dims[2..].iter().product();
        let slope = |(place, dy): (usize, &f64)| {
            let channel = place / inner % channels;
            dy * w[channel] * expected.rstd[channel]
        };
        let dx: Vec<f64> = dy_twin.values.iter().enumerate().map(slope).collect();
        check(&fixed.dx, &dx, terms, DType::F64);
        prop_assert_eq!(download(&fixed.dweight), download(&gradients.dweight));
    }
}

/// The squares are beyond f32. PyTorch 2.15 gives 0, or NaN for short rows.
#[test]
fn rows_of_huge_numbers_are_normalised() {
    for len in [3, 4, 40, 700] {
        for scale in [1e20_f32, 1e37] {
            let values: Vec<f32> = (0..4 * len).map(|at| (at % 5) as f32 * scale).collect();
            let x = Tensor::from_slice(shared(), [4, len], &values).unwrap();
            let wide = x.to_dtype(DType::F64).unwrap();
            let near = |found: &Tensor, expected: &Tensor| {
                let (found, expected) = (download(found).values, download(expected).values);
                let is_near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-5 * (1.0 + b.abs());
                assert!(found.iter().zip(&expected).all(is_near), "{found:?} {expected:?}");
            };
            let of = |x: &Tensor| x.layer_norm(1, None, None, EPS).unwrap();
            let (found, expected) = (of(&x), of(&wide));
            near(&found.y, &expected.y);
            let ones = Tensor::ones(shared(), [4, len], DType::F32).unwrap();
            let mean = found.mean.unwrap();
            let gradients = ones.layer_norm_backward(&x, &mean, &found.rstd, None).unwrap();
            assert!(download(&gradients.dx).values.iter().all(|dx| dx.is_finite()));

            let of = |x: &Tensor| x.rms_norm(1, None, EPS).unwrap().y;
            near(&of(&x), &of(&wide));
            let of = |x: &Tensor| {
                let x = x.reshape([2, 2, len]).unwrap();
                x.group_norm(1, None, None, EPS).unwrap().y
            };
            near(&of(&x), &of(&wide));
        }
    }
}

#[test]
fn rows_with_infinities_stay_nan() {
    let x = Tensor::from_slice(shared(), [1, 3], &[1.0_f32, f32::INFINITY, 2.0]).unwrap();
    let y = x.layer_norm(1, None, None, EPS).unwrap().y;
    assert!(download(&y).values.iter().all(|y| y.is_nan()));
}

#[test]
fn running_statistics_move_by_the_momentum() {
    let vector = |values: &[f32]| Tensor::from_slice(shared(), [2], values).unwrap();
    let (mut mean, mut variance) = (vector(&[1.0, 2.0]), vector(&[1.0, 4.0]));
    let batch = [vector(&[3.0, -2.0]), vector(&[3.0, 0.0])];
    let batch = batch.each_ref();
    mean.update_running_(&mut variance, batch, 4, 0.25).unwrap();
    // The variance of 4 elements times 4 / 3.
    assert_eq!(mean.to_vec::<f32>().unwrap(), [1.5, 1.0]);
    assert_eq!(variance.to_vec::<f32>().unwrap(), [1.75, 3.0]);

    let version = mean.version();
    assert!(mean.update_running_(&mut variance, batch, 1, 0.25).is_err());
    variance.freeze();
    assert!(mean.update_running_(&mut variance, batch, 4, 0.25).is_err());
    variance.unfreeze();
    assert_eq!((mean.version(), mean.to_vec::<f32>().unwrap()), (version, vec![1.5, 1.0]));
}

#[test]
fn empty_batches_have_no_gradients() {
    let x = Tensor::zeros(shared(), [0, 3, 4], DType::F32).unwrap();
    let found = x.batch_norm(None, None, EPS).unwrap();
    assert!(download(&found.mean).values.iter().all(|mean| mean.is_nan()));
    let (mean, variance) = (&found.mean, &found.variance);
    let gradients =
        x.batch_norm_backward(&x, mean, variance, None, Statistics::Batch, EPS).unwrap();
    assert_eq!(gradients.dweight.to_vec::<f32>().unwrap(), [0.0; 3]);
    let weight = Tensor::ones(shared(), [3], DType::F32).unwrap();
    let found = x.group_norm(3, Some(&weight), None, EPS).unwrap();
    let mean = found.mean.unwrap();
    let gradients = x.group_norm_backward(&x, &mean, &found.rstd, Some(&weight)).unwrap();
    assert_eq!(gradients.parameters.unwrap()[1].to_vec::<f32>().unwrap(), [0.0; 3]);
}
