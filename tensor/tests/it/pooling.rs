//! Means and adaptive windows against the definition.

use std::num::NonZeroUsize;
use std::ops::Range;

use lowtide_tensor::{
    AvgPool, DType, Divisor, Pool1dGeometry, Pool2dGeometry, Shape, SizeRounding, Tensor,
    TensorError,
};
use proptest::prelude::*;

use crate::common::{
    all_floats, assert_close, assert_rounded, download, sample, shared, styles, upload,
};
use crate::naive::{Array, index_of};

/// The inputs of each output along an axis, and their divisor. A fixed divisor is the square of a
/// number.
type Windows = Vec<(Range<usize>, usize)>;

/// The loops of PyTorch's avg_pool2d, in signed integers.
fn stepped(len: usize, kernel: usize, stride: usize, padding: usize, options: AvgPool) -> Windows {
    let [len, kernel, stride, padding] = [len, kernel, stride, padding].map(|n| n as i64);
    let mut windows = Vec::new();
    for start in (0..).map(|i| i * stride - padding) {
        let fits = start + kernel <= len + padding;
        let is_partial = options.rounding == SizeRounding::Up
            && start < len
            && windows.len() as i64 <= (len + 2 * padding - kernel + stride - 1) / stride;
        if !fits && !is_partial {
            return windows;
        }
        let inside = start.max(0)..(start + kernel).min(len);
        let count = match options.divisor {
            Divisor::Window => (start + kernel).min(len + padding) - start,
            Divisor::Inside => inside.end - inside.start,
            Divisor::Exactly(number) => number.get().isqrt() as i64,
        };
        windows.push((inside.start as usize..inside.end as usize, count as usize));
    }
    unreachable!("some window does not fit");
}

fn adaptive(len: usize, out_len: usize) -> Windows {
    let start = |i: usize| (i * len) / out_len;
    let end = |i: usize| ((i + 1) * len).div_ceil(out_len);
    (0..out_len).map(|i| (start(i)..end(i), end(i) - start(i))).collect()
}

fn out_dims(x: &Array, [rows, cols]: [&Windows; 2]) -> [usize; 4] {
    [x.dims[0], x.dims[1], rows.len(), cols.len()]
}

fn means(x: &Array, [rows, cols]: [&Windows; 2]) -> Array {
    Array::from_fn(&out_dims(x, [rows, cols]), |at| {
        let ((rows, row_count), (cols, col_count)) = (&rows[at[2]], &cols[at[3]]);
        let places = rows.clone().flat_map(|row| cols.clone().map(move |col| (row, col)));
        let sum: f64 = places.map(|(row, col)| x.at(&[at[0], at[1], row, col])).sum();
        sum / (row_count * col_count) as f64
    })
}

fn means_backward(dy: &Array, x: &Array, [rows, cols]: [&Windows; 2]) -> Array {
    Array::from_fn(&x.dims, |at| {
        let mut sum = 0.0;
        for (p, (rows, row_count)) in rows.iter().enumerate() {
            for (q, (cols, col_count)) in cols.iter().enumerate() {
                if rows.contains(&at[2]) && cols.contains(&at[3]) {
                    sum += dy.at(&[at[0], at[1], p, q]) / (row_count * col_count) as f64;
                }
            }
        }
        sum
    })
}

const FIXED: Divisor = Divisor::Exactly(NonZeroUsize::new(9).unwrap());

fn options() -> impl Strategy<Value = AvgPool> {
    let divisor = prop::sample::select(vec![Divisor::Window, Divisor::Inside, FIXED]);
    let rounding = prop::sample::select(vec![SizeRounding::Down, SizeRounding::Up]);
    (divisor, rounding).prop_map(|(divisor, rounding)| AvgPool { divisor, rounding })
}

proptest! {
    #[test]
    fn avg_pool2d_and_its_gradient_follow_the_definition(
        (batch, channels, extra) in (0..=3usize, 0..=3usize, [0..=9usize, 0..=19usize]),
        (kernel, stride) in ([1..=4usize, 1..=12usize], [1..=4usize, 1..=4usize]),
        padded in any::<[bool; 2]>(),
        options in options(),
        styles in [styles(), styles()],
        dtype in all_floats(),
    ) {
        let padding = [0, 1].map(|axis| if padded[axis] { kernel[axis] / 2 } else { 0 });
        let size = |axis: usize| (kernel[axis] + extra[axis] - padding[axis]).max(1);
        let window = Pool2dGeometry { kernel, stride, padding };
        let (x, x_twin) = sample(&[batch, channels, size(0), size(1)], styles[0], dtype, 1);
        let [rows, cols] = [0, 1].map(|axis| {
            stepped(size(axis), kernel[axis], stride[axis], padding[axis], options)
        });
        let y = x.avg_pool2d(window, options).unwrap();
        assert_close(&y, &means(&x_twin, [&rows, &cols]), 4);
        let (dy, dy_twin) = sample(y.shape(), styles[1], dtype, 2);
        let dx = dy.avg_pool2d_backward(*x.shape(), window, options).unwrap();
        assert_close(&dx, &means_backward(&dy_twin, &x_twin, [&rows, &cols]), 16);
    }

    #[test]
    fn adaptive_pools_and_their_gradients_follow_the_definition(
        dims in (0..=3usize, 0..=3usize, 1..=9usize, 1..=20usize),
        out_size in [1..=12usize, 1..=12usize],
        styles in [styles(), styles()],
        dtype in all_floats(),
    ) {
        let dims = [dims.0, dims.1, dims.2, dims.3];
        let (x, x_twin) = sample(&dims, styles[0], dtype, 1);
        let (rows, cols) = (adaptive(dims[2], out_size[0]), adaptive(dims[3], out_size[1]));
        let y = x.adaptive_avg_pool2d(out_size).unwrap();
        assert_close(&y, &means(&x_twin, [&rows, &cols]), 4);
        let (dy, dy_twin) = sample(y.shape(), styles[1], dtype, 2);
        let dx = dy.adaptive_avg_pool2d_backward(*x.shape()).unwrap();
        assert_close(&dx, &means_backward(&dy_twin, &x_twin, [&rows, &cols]), 16);

        let (y, winners) = x.adaptive_max_pool2d(out_size).unwrap();
        let mut dx = x_twin.map(|_| 0.0);
        let mut places = Array::from_fn(y.shape(), |_| 0.0);
        let largest = Array::from_fn(y.shape(), |at| {
            let (rows, cols) = (rows[at[2]].0.clone(), cols[at[3]].0.clone());
            let places = rows.flat_map(|row| cols.clone().map(move |col| (row, col)));
            places.map(|(r, c)| x_twin.at(&[at[0], at[1], r, c])).fold(f64::MIN, f64::max)
        });
        for (at, max) in largest.values.iter().enumerate() {
            let [n, c, p, q] = index_of(&largest.dims, at)[..] else { unreachable!() };
            let mut places_of = rows[p].0.clone().flat_map(|row| {
                cols[q].0.clone().map(move |col| [row, col])
            });
            let [row, col] = places_of.find(|&[row, col]| x_twin.at(&[n, c, row, col]) == *max)
                .expect("the largest is somewhere");
            places.values[at] = (row * dims[3] + col) as f64;
            dx.values[((n * dims[1] + c) * dims[2] + row) * dims[3] + col] += dy_twin.values[at];
        }
        assert_rounded(&y, &largest);
        assert_rounded(&winners, &places);
        assert_rounded(&dy.adaptive_max_pool2d_backward(&winners, *x.shape()).unwrap(), &dx);
    }

    #[test]
    fn pools_of_sequences_are_pools_of_images_one_row_high(
        (batch, channels, len) in (0..=2usize, 0..=3usize, 4..=12usize),
        (kernel, stride, padded) in (1..=4usize, 1..=3usize, any::<bool>()),
        options in options(),
        style in styles(),
        dtype in all_floats(),
    ) {
        let padding = if padded { kernel / 2 } else { 0 };
        let line = Pool1dGeometry { kernel, stride, padding };
        let flat =
            Pool2dGeometry { kernel: [1, kernel], stride: [1, stride], padding: [0, padding] };
        let (x, _) = sample(&[batch, channels, len], style, dtype, 1);
        let x4 = x.unsqueeze(2).unwrap();
        let same = |found: &Tensor, image: &Tensor| {
            assert_eq!(download(found), download(&image.squeeze(2).unwrap()));
        };
        let (y, y4) = (x.avg_pool1d(line, options).unwrap(), x4.avg_pool2d(flat, options).unwrap());
        same(&y, &y4);
        same(
            &y.avg_pool1d_backward(*x.shape(), line, options).unwrap(),
            &y4.avg_pool2d_backward(*x4.shape(), flat, options).unwrap(),
        );
        let ((y, at), (y4, at4)) = (x.max_pool1d(line).unwrap(), x4.max_pool2d(flat).unwrap());
        same(&y, &y4);
        same(&at, &at4);
        same(
            &y.max_pool1d_backward(&at, *x.shape(), line).unwrap(),
            &y4.max_pool2d_backward(&at4, *x4.shape(), flat).unwrap(),
        );
    }
}

#[test]
fn adaptive_maximum_is_the_first_of_equals_and_nan_above_all() {
    let values = [2.0, 2.0, f64::NAN, f64::NAN, 9.0, f64::NEG_INFINITY];
    for dtype in [DType::F32, DType::F16] {
        let x = upload(shared(), &Array::new(&[1, 1, 1, 6], values.to_vec()), dtype);
        let (y, at) = x.adaptive_max_pool2d([1, 3]).unwrap();
        assert_eq!(at.to_vec::<i32>().unwrap(), [0, 2, 4]);
        let y = download(&y).values;
        assert!(y[0] == 2.0 && y[1].is_nan() && y[2] == 9.0, "{y:?}");
    }
}

#[test]
fn winners_that_lie_nowhere_get_nothing() {
    let dy = Tensor::ones(shared(), [1, 1, 2, 2], DType::F32).unwrap();
    let shape = Shape::new(&[1, 1, 5, 5]);
    let nowhere = Tensor::full(shared(), [1, 1, 2, 2], DType::I32, -1.0).unwrap();
    let dx = dy.adaptive_max_pool2d_backward(&nowhere, shape).unwrap();
    assert_eq!(dx.to_vec::<f32>().unwrap(), [0.0; 25]);
    let nowhere = Tensor::full(shared(), [1, 1, 2, 2], DType::U8, 200.0).unwrap();
    for stride in [2, 3] {
        let window = Pool2dGeometry { stride: [stride; 2], ..Pool2dGeometry::square(2) };
        let dx = dy.max_pool2d_backward(&nowhere, shape, window).unwrap();
        assert_eq!(dx.to_vec::<f32>().unwrap(), [0.0; 25]);
    }
}

#[test]
fn windows_that_do_not_fit_are_refused() {
    let zeros = |dims: &[usize]| Tensor::zeros(shared(), dims, DType::F32).unwrap();
    let x = zeros(&[1, 2, 3, 3]);
    let square = Pool2dGeometry::square(2);
    for window in [
        Pool2dGeometry::square(4),
        Pool2dGeometry { padding: [2, 0], ..square },
        Pool2dGeometry { padding: [usize::MAX, 0], ..square },
        Pool2dGeometry { kernel: [usize::MAX; 2], padding: [usize::MAX / 2; 2], ..square },
        Pool2dGeometry { stride: [0, 1], ..square },
        Pool2dGeometry { kernel: [0, 2], ..square },
    ] {
        let error = x.avg_pool2d(window, AvgPool::default()).unwrap_err().to_string();
        assert!(error.starts_with("avg_pool2d: shapes"), "{window:?}: {error}");
    }
    for out_size in [[0, 1], [usize::MAX, 2], [1 << 40, 1 << 30]] {
        let error = x.adaptive_avg_pool2d(out_size).unwrap_err().to_string();
        assert!(error.starts_with("adaptive_avg_pool2d: shapes"), "{error}");
        let error = x.adaptive_max_pool2d(out_size).unwrap_err().to_string();
        assert!(error.starts_with("adaptive_max_pool2d: shapes"), "{error}");
    }
    assert!(zeros(&[1, 2, 0, 3]).adaptive_avg_pool2d([1, 1]).is_err());
    let whole = Tensor::zeros(shared(), [1, 2, 3, 3], DType::I64).unwrap();
    let error = whole.avg_pool2d(square, AvgPool::default()).unwrap_err().to_string();
    assert!(error.starts_with("avg_pool2d: element types"), "{error}");
}

#[test]
fn maxima_of_integers_are_those_of_the_same_floats() {
    let geometry = Pool2dGeometry { kernel: [3, 2], stride: [2, 1], padding: [1, 1] };
    let values = Array::from_fn(&[2, 3, 7, 6], |at| {
        ((at[0] * 5 + at[1] * 3 + at[2] * at[2] + at[3] * 7) % 19) as f64
    });
    let (expected, places) = upload(shared(), &values, DType::F64).max_pool2d(geometry).unwrap();
    for dtype in [DType::I64, DType::I32, DType::U8] {
        let (y, winners) = upload(shared(), &values, dtype).max_pool2d(geometry).unwrap();
        assert_eq!(y.dtype(), dtype);
        assert_eq!(download(&y), download(&expected), "{dtype}");
        assert_eq!(download(&winners), download(&places), "{dtype}");
    }
    let truths = upload(shared(), &values, DType::Bool);
    assert!(matches!(truths.max_pool2d(geometry), Err(TensorError::DType { .. })));
}
