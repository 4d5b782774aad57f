//! Elements by rank, quantiles, unique elements, counts, and places in sorted rows.

use lowtide_tensor::{
    Covariance, DType, MatrixNorm, QuantileRule, Side, SortOrder, Tensor, TensorError, Unique,
    UniqueOptions,
};
use proptest::prelude::*;

use crate::common::{
    Style, all_floats, assert_close, assert_same, download, floats, full_shapes, laid_out, sample,
    shapes, shared, sim, styles, upload,
};
use crate::naive::Array;
use crate::scans::{by_rows, order_of};

fn dtypes() -> impl Strategy<Value = DType> {
    prop::sample::select(DType::ALL.to_vec())
}

/// Shapes with several rows in a task, and with rows longer than a task.
fn large_shapes() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![
        6 => shapes(),
        1 => Just(vec![3, 9000]),
        1 => Just(vec![1300, 3]),
        1 => Just(vec![5, 33, 40]),
    ]
}

/// Shapes for tests whose twins look at all earlier elements for each element.
fn short_shapes() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![
        6 => shapes(),
        1 => Just(vec![3, 130]),
        1 => Just(vec![130, 3]),
        1 => Just(vec![5, 33, 4]),
    ]
}

/// A tensor. Some elements are NaN if `has_nan` is true and the type has NaN.
fn with_nan(dims: &[usize], style: Style, dtype: DType, has_nan: bool) -> (Tensor, Array) {
    let (x, twin) = sample(dims, style, dtype, 2);
    if !has_nan || !dtype.is_float() {
        return (x, twin);
    }
    let twin = twin.map(|x| if x == 0.5 || x == -0.25 { f64::NAN } else { x });
    (laid_out(&twin, style, dtype), twin)
}

fn sorted(x: &[f64]) -> Vec<f64> {
    order_of(x, SortOrder::Ascending).into_iter().map(|at| x[at]).collect()
}

fn numbers(x: &[f64]) -> Vec<f64> {
    x.iter().copied().filter(|x| !x.is_nan()).collect()
}

/// The smallest and the largest number.
fn ends(x: &[f64]) -> [f64; 2] {
    let of = |start: f64, f: fn(f64, f64) -> f64| x.iter().copied().fold(start, f);
    [of(f64::INFINITY, f64::min), of(f64::NEG_INFINITY, f64::max)]
}

/// The middle of a row, or the lower of two; NaN for an empty row.
fn middle(x: &[f64]) -> f64 {
    if x.is_empty() { f64::NAN } else { sorted(x)[(x.len() - 1) / 2] }
}

fn median_of(x: &[f64]) -> f64 {
    if x.iter().any(|x| x.is_nan()) { f64::NAN } else { middle(x) }
}

fn mode_of(x: &[f64]) -> f64 {
    let key = |x: f64| (x + 0.0).to_bits() & if x.is_nan() { 0x7ff8 << 48 } else { u64::MAX };
    let count = |a: f64| x.iter().filter(|&&b| key(a) == key(b)).count();
    let in_order = sorted(x);
    let most = in_order.iter().map(|&x| count(x)).max().unwrap();
    in_order.into_iter().find(|&x| count(x) == most).unwrap()
}

/// Fails unless the elements of `x` at `places` are `values`.
fn assert_places_lead_to(x: &Tensor, axis: usize, (values, places): &(Tensor, Tensor)) {
    let kept = places.unsqueeze(axis).unwrap();
    let found = x.gather(axis, &kept).unwrap().squeeze(axis).unwrap();
    assert_close(&found, &download(values), 0);
}

proptest! {
    #[test]
    fn ranks_agree_with_sorted_rows(
        dims in large_shapes(),
        at in any::<prop::sample::Index>(),
        k in any::<prop::sample::Index>(),
        style in styles(),
        dtype in dtypes(),
        has_nan in any::<bool>(),
    ) {
        prop_assume!(!dims.is_empty() && !dims.contains(&0));
        let (x, twin) = with_nan(&dims, style, dtype, has_nan);
        let axis = at.index(dims.len());
        let k = 1 + k.index(dims[axis]);
        let mut dropped = dims.clone();
        dropped.remove(axis);
        let rows = |f: &dyn Fn(&[f64]) -> f64| {
            by_rows(&twin, axis, 1, |x| vec![f(x)]).reshape(&dropped)
        };
        let check = |found: (Tensor, Tensor), kept: (Tensor, Tensor), f: &dyn Fn(&[f64]) -> f64| {
            assert_close(&found.0, &rows(f), 0);
            assert_places_lead_to(&x, axis, &found);
            assert_close(&kept.0.squeeze(axis).unwrap(), &rows(f), 0);
            assert_same(&kept.1.squeeze(axis).unwrap(), &download(&found.1));
        };
        let kth = |x: &[f64]| sorted(x)[k - 1];
        check(x.kthvalue(k, axis).unwrap(), x.kthvalue_keep(k, axis).unwrap(), &kth);
        check(x.median(axis).unwrap(), x.median_keep(axis).unwrap(), &median_of);
        let of_numbers = |x: &[f64]| middle(&numbers(x));
        check(x.nanmedian(axis).unwrap(), x.nanmedian_keep(axis).unwrap(), &of_numbers);
        if dims[axis] < 100 {
            check(x.mode(axis).unwrap(), x.mode_keep(axis).unwrap(), &mode_of);
        }
        let all = |f: &dyn Fn(&[f64]) -> f64| Array::new(&[], vec![f(&twin.values)]);
        assert_close(&x.median_all().unwrap(), &all(&median_of), 0);
        assert_close(&x.nanmedian_all().unwrap(), &all(&of_numbers), 0);
    }

    #[test]
    fn quantiles_are_between_sorted_elements(
        dims in full_shapes(1..=4),
        at in any::<prop::sample::Index>(),
        style in styles(),
        dtype in all_floats(),
        has_nan in any::<bool>(),
    ) {
        let (x, twin) = with_nan(&dims, style, dtype, has_nan);
        let axis = at.index(dims.len());
        // Multiples of 1/8, so that ranks are exact in every type.
        let quantiles = [0.5, 0.0, 1.0, 0.125, 0.625];
        use QuantileRule as R;
        for rule in [R::Linear, R::Lower, R::Higher, R::Midpoint, R::Nearest] {
            let one = |x: &[f64], q: f64| {
                if x.is_empty() {
                    return f64::NAN;
                }
                let (x, rank) = (sorted(x), q * (x.len() - 1) as f64);
                let [low, high] = [rank.floor(), rank.ceil()].map(|rank| x[rank as usize]);
                match rule {
                    R::Linear => low + (rank - rank.floor()) * (high - low),
                    R::Lower => low,
                    R::Higher => high,
                    R::Midpoint => low + 0.5 * (high - low),
                    R::Nearest => x[rank.round_ties_even() as usize],
                }
            };
            let front = |y: Array| {
                let mut axes: Vec<usize> = (0..dims.len()).filter(|&at| at != axis).collect();
                axes.insert(0, axis);
                y.permute(&axes)
            };
            let whole = by_rows(&twin, axis, quantiles.len(), |x| {
                let is_nan = x.iter().any(|x| x.is_nan());
                quantiles.iter().map(|&q| if is_nan { f64::NAN } else { one(x, q) }).collect()
            });
            assert_close(&x.quantile(&quantiles, axis, rule).unwrap(), &front(whole), 4);
            let of_numbers = by_rows(&twin, axis, quantiles.len(), |x| {
                quantiles.iter().map(|&q| one(&numbers(x), q)).collect()
            });
            assert_close(&x.nanquantile(&quantiles, axis, rule).unwrap(), &front(of_numbers), 4);
        }
    }

    #[test]
    fn running_extremes_agree_with_their_twin(
        dims in short_shapes(),
        at in any::<prop::sample::Index>(),
        style in styles(),
        dtype in dtypes(),
        has_nan in any::<bool>(),
    ) {
        prop_assume!(!dims.is_empty());
        let (x, twin) = with_nan(&dims, style, dtype, has_nan);
        let axis = at.index(dims.len());
        let len = dims[axis];
        for is_max in [true, false] {
            let found = if is_max { x.cummax(axis) } else { x.cummin(axis) }.unwrap();
            let place = |x: &[f64], end: usize| {
                let nan = x[..=end].iter().rposition(|x| x.is_nan());
                let [low, high] = ends(&x[..=end]);
                let best = if is_max { high } else { low };
                nan.unwrap_or_else(|| x[..=end].iter().rposition(|&x| x == best).unwrap())
            };
            let places = by_rows(&twin, axis, len, |x| {
                (0..len).map(|end| place(x, end) as f64).collect()
            });
            let values = by_rows(&twin, axis, len, |x| {
                (0..len).map(|end| x[place(x, end)]).collect()
            });
            assert_close(&found.0, &values, 0);
            assert_same(&found.1, &places);
        }
    }

    #[test]
    fn running_sums_of_exponentials_agree_with_their_twin(
        dims in short_shapes(),
        at in any::<prop::sample::Index>(),
        style in styles(),
        dtype in all_floats(),
        scale in prop::sample::select(vec![1.0, 100.0, 1024.0]),
    ) {
        prop_assume!(!dims.is_empty());
        let (_, twin) = sample(&dims, style, dtype, 1);
        let twin = twin.map(|x| x * scale);
        let x = laid_out(&twin, style, dtype);
        let twin = download(&x);
        let axis = at.index(dims.len());
        let log_sum = |x: &[f64]| {
            let high = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            high + x.iter().map(|x| (x - high).exp()).sum::<f64>().ln()
        };
        let y = by_rows(&twin, axis, dims[axis], |x| {
            (1..=x.len()).map(|end| log_sum(&x[..end])).collect()
        });
        let found = x.logcumsumexp(axis).unwrap();
        // The sum has positive terms and starts anew at each larger one, so its logarithm is as
        // exact as the twin's. Each result is rounded once, and so is the shared input.
        assert_close(&found, &y, 2);
        prop_assume!(twin.len() < 400);
        let (dy, dy_twin) = sample(&dims, style, dtype, 3);
        let y = download(&found);
        let expected = Array::from_fn(&dims, |at| {
            let part = |t: usize| {
                let mut to = at.to_vec();
                to[axis] = t;
                dy_twin.at(&to) * (twin.at(at) - y.at(&to)).exp()
            };
            (at[axis]..dims[axis]).map(part).sum()
        });
        let dx = dy.logcumsumexp_backward(&x, &found, axis).unwrap();
        // Each step backwards multiplies a sum by a share and adds to it, with three roundings.
        assert_close(&dx, &expected, 3 * dims[axis]);
    }

    #[test]
    fn different_elements_are_those_of_a_set(
        dims in shapes(), style in styles(), dtype in dtypes(), has_nan in any::<bool>(),
        axis in 0..5usize, is_consecutive in any::<bool>(),
    ) {
        let (x, twin) = with_nan(&dims, style, dtype, has_nan);
        let of = |along: Option<usize>| {
            let options = UniqueOptions { along: along.map(Into::into), assumed_count: None };
            if is_consecutive { x.unique_consecutive(options) } else { x.unique(options) }.unwrap()
        };
        check_unique(&twin, of(None), None, is_consecutive);
        if !dims.is_empty() {
            let axis = axis % dims.len();
            check_unique(&twin, of(Some(axis)), Some(axis), is_consecutive);
        }
    }

    #[test]
    fn places_in_sorted_rows_keep_the_order(
        rows in 0..4usize, len in 0..9usize, count in 0..9usize,
        style in styles(), dtype in dtypes(), has_nan in any::<bool>(),
    ) {
        let (sequence, _) = sample(&[rows, len], Style::Contiguous, dtype, 1);
        let sorted = sequence.sort(1, SortOrder::Ascending).unwrap().0;
        let (values, twin) = with_nan(&[rows, count], style, dtype, has_nan);
        let rows_of = download(&sorted);
        for side in [Side::Left, Side::Right] {
            let expected = Array::from_fn(&[rows, count], |at| {
                let (row, value) = (&rows_of.values[at[0] * len..][..len], twin.at(at));
                count_before(row, value, side)
            });
            assert_same(&sorted.searchsorted(&values, side).unwrap(), &expected);
            if rows > 0 {
                let (first, row) = (sorted.select(0, 0).unwrap(), &rows_of.values[..len]);
                let expected = twin.map(|value| count_before(row, value, side));
                assert_same(&first.searchsorted(&values, side).unwrap(), &expected);
                assert_same(&values.bucketize(&first, side).unwrap(), &expected);
            }
        }
        let expected = twin.map(|x| f64::from(u8::from(rows_of.values.contains(&x))));
        assert_same(&values.isin(&sorted).unwrap(), &expected);
    }

    #[test]
    fn counts_are_those_of_a_loop(
        values in prop::collection::vec(0..9i64, 0..60), count_min in 0..12usize,
        bins in 1..12usize, dtype in all_floats(), style in styles(),
    ) {
        let x = Tensor::from_slice(shared(), [values.len()], &values).unwrap();
        let len = values.iter().max().map_or(0, |max| *max as usize + 1).max(count_min);
        let count = |of: &dyn Fn(usize) -> f64| {
            let mut counts = vec![0.0; len];
            values.iter().enumerate().for_each(|(at, &x)| counts[x as usize] += of(at));
            Array::new(&[len], counts)
        };
        assert_same(&x.bincount(None, count_min).unwrap(), &count(&|_| 1.0));
        let (weights, twin) = sample(&[values.len()], Style::Contiguous, DType::F32, 1);
        let sums = count(&|at| twin.values[at]);
        assert_same(&x.bincount(Some(&weights), count_min).unwrap(), &sums);

        let (x, twin) = with_nan(&[7, 11], style, dtype, true);
        for (low, high) in [(-1.0, 1.0), (0.0, 0.0), (-8.0, 0.5)] {
            let all = numbers(&twin.values);
            let [from, to] = if low == high { ends(&all) } else { [low, high] };
            let mut counts = vec![0.0; bins];
            for x in all.iter().filter(|x| (from..=to).contains(*x)) {
                let place = (x - from) * bins as f64 / (to - from);
                counts[(place as usize).min(bins - 1)] += 1.0;
            }
            assert_same(&x.histc(bins, low..high).unwrap(), &Array::new(&[bins], counts));
        }
    }

    #[test]
    fn sums_without_nan_are_those_of_the_rest(
        dims in shapes(), style in styles(), dtype in floats(), axis in 0..5usize,
    ) {
        prop_assume!(!dims.is_empty());
        let axis = axis % dims.len();
        let (x, twin) = with_nan(&dims, style, dtype, true);
        let mut dropped = dims.clone();
        dropped.remove(axis);
        let sum = |x: &[f64]| numbers(x).iter().sum::<f64>();
        let rows = |f: &dyn Fn(&[f64]) -> f64| by_rows(&twin, axis, 1, |x| vec![f(x)]);
        let mean = |x: &[f64]| sum(x) / numbers(x).len() as f64;
        assert_close(&x.nansum_keep(&[axis]).unwrap(), &rows(&sum), 4);
        assert_close(&x.nansum(&[axis]).unwrap(), &rows(&sum).reshape(&dropped), 4);
        assert_close(&x.nanmean_keep(&[axis]).unwrap(), &rows(&mean), 8);
        assert_close(&x.nanmean(&[axis]).unwrap(), &rows(&mean).reshape(&dropped), 8);
    }
}

/// Number of elements before a value; all elements are before a NaN.
fn count_before(row: &[f64], value: f64, side: Side) -> f64 {
    let is_before = |x: &&f64| value.is_nan() || **x < value || side == Side::Right && **x == value;
    row.iter().filter(is_before).count() as f64
}

/// Checks values, inverse and counts against one walk over all rows.
fn check_unique(twin: &Array, found: Unique, axis: Option<usize>, is_consecutive: bool) {
    let (rows, shape) = match axis {
        None => (twin.values.iter().map(|&x| vec![x]).collect::<Vec<_>>(), twin.dims.clone()),
        Some(axis) => {
            let rows = (0..twin.dims[axis]).map(|at| twin.select(axis, at).values).collect();
            (rows, vec![twin.dims[axis]])
        }
    };
    let mut order: Vec<usize> = (0..rows.len()).collect();
    if !is_consecutive {
        let key = |x: f64| (x.is_nan(), if x.is_nan() { 0.0 } else { x });
        order.sort_by(|&a, &b| {
            let [a, b] = [a, b].map(|at| rows[at].iter().map(|&x| key(x)).collect::<Vec<_>>());
            a.partial_cmp(&b).unwrap()
        });
    }
    let (mut kept, mut inverse, mut counts) =
        (Vec::<Vec<f64>>::new(), vec![0.0; rows.len()], Vec::new());
    for at in order {
        if kept.last() != Some(&rows[at]) {
            kept.push(rows[at].clone());
            counts.push(0.0);
        }
        *counts.last_mut().unwrap() += 1.0;
        inverse[at] = (kept.len() - 1) as f64;
    }
    let count = kept.len();
    assert_same(&found.counts, &Array::new(&[count], counts));
    assert_same(&found.inverse, &Array::new(&shape, inverse));
    let values = match axis {
        None => Array::new(&[count], kept.concat()),
        Some(axis) => {
            let mut dims = twin.dims.clone();
            dims[axis] = count;
            let mut inner = dims.clone();
            inner.remove(axis);
            Array::from_fn(&dims, |at| {
                let mut place = at.to_vec();
                let row = place.remove(axis);
                let place = place.iter().zip(&inner).fold(0, |sum, (at, dim)| sum * dim + at);
                kept[row][place]
            })
        }
    };
    assert_close(&found.values, &values, 0);
}

#[test]
fn compositions_are_what_their_formulas_say() {
    let (x, twin) = sample(&[5, 7], Style::Transposed, DType::F64, 1);
    let (other, other_twin) = sample(&[7], Style::Contiguous, DType::F64, 2);
    let trace = (0..5).map(|i| twin.at(&[i, i])).sum();
    assert_close(&x.trace().unwrap(), &Array::new(&[], vec![trace]), 4);
    let twice = Array::from_fn(&[5, 5], |at| {
        let [a, b, c] = [0, 1, 2].map(|more| twin.at(&[at[0], at[1] + more]));
        c - 2.0 * b + a
    });
    assert_close(&x.diff(2, 1).unwrap(), &twice, 4);
    assert_eq!(x.diff(9, 0).unwrap().shape()[..], [0, 7]);
    assert_same(&x.diff(0, 0).unwrap(), &twin);
    let distance = twin.zip(&other_twin, &[5, 7], |a, b| (a - b).abs().powi(3)).values;
    let distance = distance.iter().sum::<f64>().cbrt();
    assert_close(&x.dist(&other, 3.0).unwrap(), &Array::new(&[], vec![distance]), 8);
    let norm = |row: usize| (0..7).map(|at| twin.at(&[row, at]).powi(2)).sum::<f64>().sqrt();
    let scaled = Array::from_fn(&[5, 7], |at| {
        let norm = norm(at[0]);
        twin.at(at) * if norm > 2.5 { 2.5 / (norm + 1e-7) } else { 1.0 }
    });
    assert_close(&x.renorm(2.0, 0, 2.5).unwrap(), &scaled, 8);

    let sums = |axis: usize| {
        let len = twin.dims[axis];
        (0..len)
            .map(|at| twin.select(axis, at).values.iter().map(|x| x.abs()).sum::<f64>())
            .collect::<Vec<_>>()
    };
    let largest = |x: Vec<f64>| x.into_iter().fold(0.0, f64::max);
    let smallest = |x: Vec<f64>| x.into_iter().fold(f64::INFINITY, f64::min);
    let frobenius = twin.values.iter().map(|x| x * x).sum::<f64>().sqrt();
    for (norm, expected) in [
        (MatrixNorm::Frobenius, frobenius),
        (MatrixNorm::LargestColumn, largest(sums(1))),
        (MatrixNorm::SmallestColumn, smallest(sums(1))),
        (MatrixNorm::LargestRow, largest(sums(0))),
        (MatrixNorm::SmallestRow, smallest(sums(0))),
    ] {
        let expected = Array::new(&[], vec![expected]);
        assert_close(&x.matrix_norm(norm, [0, 1]).unwrap(), &expected, 8);
        let turned = x.t().unwrap().matrix_norm_keep(norm, [-1, 0]).unwrap();
        assert_close(&turned, &expected.reshape(&[1, 1]), 8);
    }
    let (low, high) = x.aminmax(&[0]).unwrap();
    assert_same(&low, &download(&x.amin(&[0]).unwrap()));
    assert_same(&high, &download(&x.amax(&[0]).unwrap()));
}

#[test]
fn covariances_of_half_types_are_those_in_f32_rounded_once() {
    let (x, _) = sample(&[3, 6], Style::Contiguous, DType::BF16, 2);
    let wide = |x: &Tensor| x.to_dtype(DType::F32).unwrap();
    let rounded = |y: Tensor| download(&y.to_dtype(DType::BF16).unwrap());
    let options = Covariance::default();
    let c = x.cov(options).unwrap();
    assert_same(&c, &rounded(wide(&x).cov(options).unwrap()));
    let dx = c.cov_backward(&x, options).unwrap();
    assert_same(&dx, &rounded(wide(&c).cov_backward(&wide(&x), options).unwrap()));
}

/// 128.4375 is 128 in bf16, and the sum of seven such numbers is 896 instead of 900.
#[test]
fn distances_of_half_types_take_their_difference_in_f32() {
    let of = |value: f64| upload(shared(), &Array::new(&[7], vec![value; 7]), DType::BF16);
    let distance = of(128.0).dist(&of(-0.4375), 1.0).unwrap();
    assert_eq!(download(&distance).values, [900.0]);
}

#[test]
fn covariances_count_observations_by_their_weights() {
    let (x, twin) = sample(&[3, 6], Style::Narrowed, DType::F64, 1);
    let often = [1_i64, 0, 3, 2, 1, 1];
    let weight = [0.5, 1.0, 0.25, 2.0, 1.5, 1.0];
    let frequencies = Tensor::from_slice(shared(), [6], &often).unwrap();
    let weights = Tensor::from_slice(shared(), [6], &weight).unwrap();
    for (has_frequencies, has_weights) in
        [(false, false), (true, false), (false, true), (true, true)]
    {
        for correction in [0.0, 1.0] {
            let a = |at: usize| if has_weights { weight[at] } else { 1.0 };
            let w: Vec<f64> = (0..6)
                .map(|at| a(at) * if has_frequencies { often[at] as f64 } else { 1.0 })
                .collect();
            let sum: f64 = w.iter().sum();
            let squares: f64 = (0..6).map(|at| w[at] * a(at)).sum();
            let mean = |row: usize| (0..6).map(|at| w[at] * twin.at(&[row, at])).sum::<f64>() / sum;
            let divisor = sum - correction * squares / sum;
            let divisor = if has_weights { divisor } else { sum - correction };
            let expected = Array::from_fn(&[3, 3], |at| {
                let of = |row: usize, k: usize| twin.at(&[row, k]) - mean(row);
                (0..6).map(|k| w[k] * of(at[0], k) * of(at[1], k)).sum::<f64>() / divisor
            });
            let covariance = Covariance {
                correction,
                frequencies: has_frequencies.then_some(&frequencies),
                weights: has_weights.then_some(&weights),
            };
            assert_close(&x.cov(covariance).unwrap(), &expected, 16);
            let row = x.select(0, 0).unwrap().cov(covariance).unwrap();
            assert_close(&row, &Array::new(&[], vec![expected.at(&[0, 0])]), 16);
        }
    }
    let c = download(&x.cov(Covariance::default()).unwrap());
    let expected = Array::from_fn(&[3, 3], |at| {
        c.at(at) / (c.at(&[at[0], at[0]]) * c.at(&[at[1], at[1]])).sqrt()
    });
    assert_close(&x.corrcoef().unwrap(), &expected, 16);
}

#[test]
fn mistakes_are_errors() {
    let x = Tensor::zeros(shared(), [2, 3], DType::F32).unwrap();
    let whole = Tensor::zeros(shared(), [2, 0], DType::I32).unwrap();
    let message = |error: TensorError| error.to_string();
    assert!(message(x.kthvalue(0, 1).unwrap_err()).starts_with("kthvalue: index 0"));
    assert!(message(x.kthvalue(4, 1).unwrap_err()).starts_with("kthvalue: index 4"));
    assert!(message(whole.median(1).unwrap_err()).starts_with("median: index 0"));
    assert!(message(x.mode(2).unwrap_err()).starts_with("mode: index 2"));
    let rule = QuantileRule::default();
    for bad in [-0.5, 1.5, f64::NAN] {
        let error = x.quantile(&[0.5, bad], 1, rule).unwrap_err();
        assert!(message(error).starts_with("quantile: index 1"), "{bad}");
    }
    let is_dtype = |error: TensorError| matches!(error, TensorError::DType { .. });
    assert!(is_dtype(whole.quantile(&[0.5], 0, rule).unwrap_err()));
    assert!(is_dtype(whole.logcumsumexp(0).unwrap_err()));
    assert!(is_dtype(whole.cov(Covariance::default()).unwrap_err()));
    let floats = x.select(0, 0).unwrap();
    let half = floats.to_dtype(DType::BF16).unwrap();
    for (frequencies, weights) in [(Some(&floats), None), (None, Some(&half))] {
        let covariance = Covariance { correction: 1.0, frequencies, weights };
        assert!(is_dtype(x.cov(covariance).unwrap_err()));
    }
    assert!(is_dtype(whole.histc(3, 0.0..1.0).unwrap_err()));
    assert!(is_dtype(x.isin(&whole).unwrap_err()));
    assert!(is_dtype(x.select(0, 0).unwrap().bincount(None, 0).unwrap_err()));
    let is_shape = |error: TensorError| matches!(error, TensorError::Shape { .. });
    assert!(is_shape(x.unsqueeze(0).unwrap().trace().unwrap_err()));
    assert!(is_shape(x.unsqueeze(0).unwrap().cov(Covariance::default()).unwrap_err()));
    assert!(is_shape(x.bucketize(&x, Side::Left).unwrap_err()));
    assert!(is_shape(x.select(0, 0).unwrap().renorm(2.0, 0, 1.0).unwrap_err()));
    assert!(is_shape(x.matrix_norm(MatrixNorm::default(), [0, -2]).unwrap_err()));
    assert!(matches!(x.histc(0, 0.0..1.0).unwrap_err(), TensorError::Index { .. }));
    let negative = Tensor::from_slice(shared(), [2], &[-1_i64, 2]).unwrap();
    assert!(matches!(
        negative.bincount(None, 0).unwrap_err(),
        TensorError::Index { index: -1, .. }
    ));
}

#[test]
fn lengths_that_values_decide_are_assumed_on_a_simulated_device() {
    let device = sim(1);
    let x = upload(&device, &Array::new(&[4, 5], vec![0.0; 20]), DType::I64);
    let unavailable = |error: TensorError| matches!(error, TensorError::ValueUnavailable { .. });
    assert!(unavailable(x.unique(UniqueOptions::default()).unwrap_err()));
    assert!(unavailable(x.unique_consecutive(UniqueOptions::default()).unwrap_err()));
    let row = x.select(0, 0).unwrap();
    assert!(unavailable(row.bincount(None, 0).unwrap_err()));
    let options = UniqueOptions { along: Some(1.into()), assumed_count: Some(3) };
    let found = x.unique(options).unwrap();
    assert_eq!((&found.values.shape()[..], &found.inverse.shape()[..]), (&[4, 3][..], &[5][..]));
    assert_eq!(row.bincount_assuming(None, 0, 6).unwrap().shape()[..], [7]);
    let assumed: Vec<f64> = device.assumptions().iter().map(|assumed| assumed.value).collect();
    assert_eq!(assumed, [3.0, 6.0]);
    assert!(device.assumptions().iter().all(|assumed| assumed.site.file() == file!()));
}
