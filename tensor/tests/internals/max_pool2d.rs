use lowtide_tensor::testing::cpu::cpu;
use lowtide_tensor::testing::{PoolSizes, Pooled};
use lowtide_tensor::{Float, MaxPool, Pool2dGeometry, SizeRounding};
use proptest::prelude::*;

/// The definition, with the flat index of each maximum.
fn naive<T: Float>(shape: &PoolSizes, x: &[T]) -> Vec<(T, usize)> {
    let [oh, ow] = shape.out_size();
    let [height, width] = shape.in_size();
    let Pool2dGeometry { kernel, stride, padding } = shape.window();
    (0..shape.y_len())
        .map(|at| {
            let (plane, p, q) = (at / ow / oh, at / ow % oh, at % ow);
            let mut best: Option<(T, usize)> = None;
            for row in 0..height {
                for col in 0..width {
                    let inside = |at: usize, axis: usize, out: usize| {
                        let start = out * stride[axis];
                        let position = |k: usize| start + k * shape.dilation()[axis];
                        let at = at + padding[axis];
                        (0..kernel[axis]).any(|k| position(k) == at)
                    };
                    let index = (plane * height + row) * width + col;
                    let better = best.is_none_or(|(max, _)| {
                        let nan = x[index].to_f64().is_nan();
                        x[index] > max || (nan && !max.to_f64().is_nan())
                    });
                    if inside(row, 0, p) && inside(col, 1, q) && better {
                        best = Some((x[index], index));
                    }
                }
            }
            best.expect("a window outside x")
        })
        .collect()
}

fn check_against_definition<T: Pooled>(shape: &PoolSizes, seed: usize) {
    let cpu = cpu(2);
    let values = [0.0, 1.0, -2.0, f64::NEG_INFINITY, f64::NAN, 3.0, 3.0];
    let x: Vec<T> = (0..shape.x_len())
        .map(|i| T::from_f64(values[(i * i + 3 * i + i / 7 + seed) % values.len()]))
        .collect();
    let dy: Vec<T> = (0..shape.y_len()).map(|i| T::from_f64((i % 5) as f64 - 1.0)).collect();
    let mut y = vec![T::from_f64(7.0); dy.len()];
    let mut positions = vec![255; dy.len()];
    let mut dx = vec![T::from_f64(7.0); x.len()];
    T::pool(&cpu, shape, &x, &mut y, &mut positions);
    T::pool_backward(&cpu, shape, &dy, &positions, &mut dx);
    let mut dx_expected = vec![T::ZERO; x.len()];
    for (at, (max, index)) in naive(shape, &x).into_iter().enumerate() {
        assert_eq!(y[at].to_f64().to_bits(), max.to_f64().to_bits(), "{shape:?} y[{at}]");
        dx_expected[index] += dy[at];
    }
    assert_eq!(dx, dx_expected, "{shape:?}");
}

fn shapes() -> impl Strategy<Value = PoolSizes> {
    let kernel = [1..=4usize, 1..=4usize];
    let stride = [1..=3usize, 1..=3usize];
    let dilation = [1..=3usize, 1..=2usize];
    let size = [1..=12usize, 1..=12usize];
    let rounding = prop::sample::select(vec![SizeRounding::Down, SizeRounding::Up]);
    (0..=5usize, size, kernel, stride, dilation, any::<[bool; 2]>(), rounding).prop_filter_map(
        "windows that fit",
        |(planes, in_size, kernel, stride, dilation, padded, rounding)| {
            let reach = |i: usize| (kernel[i] - 1) * dilation[i] + 1;
            let padding = [0, 1].map(|i| if padded[i] { reach(i) / 2 } else { 0 });
            let window = Pool2dGeometry { kernel, stride, padding };
            PoolSizes::new(planes, in_size, window, MaxPool { dilation, rounding })
        },
    )
}

proptest! {
    #[test]
    fn maxima_and_gradients_agree_with_the_definition(shape in shapes(), seed in 0..50usize) {
        check_against_definition::<f32>(&shape, seed);
        check_against_definition::<f64>(&shape, seed);
    }
}

/// More columns than are held at once, and windows so far apart that few are held.
#[test]
fn wide_rows_agree_with_the_definition() {
    for (width, kernel, stride, padding) in
        [(700, 3, 1, 1), (700, 3, 2, 1), (1100, 3, 2, 1), (700, 5, 3, 2), (900, 3, 40, 0)]
    {
        let window =
            Pool2dGeometry { kernel: [2, kernel], stride: [1, stride], padding: [1, padding] };
        let shape = PoolSizes::new(2, [3, width], window, MaxPool::default());
        check_against_definition::<f32>(&shape.expect("it fits"), 3);
    }
}

#[test]
fn halving_agrees_with_the_definition() {
    for side in [2, 3, 8, 17] {
        for seed in 0..10 {
            let window = Pool2dGeometry::square(2);
            for rounding in [SizeRounding::Down, SizeRounding::Up] {
                let options = MaxPool { rounding, ..Default::default() };
                let shape = PoolSizes::new(70, [side, side + 1], window, options);
                check_against_definition::<f32>(&shape.expect("it fits"), seed);
            }
        }
    }
}
