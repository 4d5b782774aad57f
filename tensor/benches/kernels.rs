//! The cost of the kernels, compared with the loop that anyone would write first.
//!
//! Every result is compared with the result of the loop before either is timed.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use lowtide_tensor::{
    AttentionOptions, Causal, Conv2dGeometry, CpuOptions, Device, Pool2dGeometry, Tensor,
};

const ELEMENTS: usize = 1 << 20;
const SQUARE: usize = 256;
/// [B, I, H, W] and the output channels of a 3×3 convolution with padding 1.
const CONVOLUTIONS: [([usize; 4], usize); 2] = [([64, 1, 8, 8], 16), ([32, 16, 32, 32], 32)];
/// [B, C, H, W].
const IMAGES: [usize; 4] = [32, 32, 32, 32];
/// [N, C].
const LOGITS: [usize; 2] = [256, 1000];
/// Number and length of the rows that are normalised.
const ROWS: [usize; 2] = [4096, 1024];
const GEOMETRY: Conv2dGeometry =
    Conv2dGeometry { stride: [1; 2], padding: [1; 2], dilation: [1; 2], groups: 1 };

fn device() -> Device {
    Device::cpu(CpuOptions::default()).expect("address space")
}

/// Multiples of 1/8 from -15/8 to 15/8.
fn values(len: usize, seed: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 29 + seed * 7 + i / 11) % 31) as f32 / 8.0 - 1.875).collect()
}

fn upload(device: &Device, dims: &[usize], values: &[f32]) -> Tensor {
    Tensor::from_slice(device, dims, values).expect("memory")
}

fn tensor(device: &Device, dims: &[usize], seed: usize) -> (Tensor, Vec<f32>) {
    let values = values(dims.iter().product(), seed);
    (upload(device, dims, &values), values)
}

/// Fails unless both results agree to a relative 1e-4; they sum in different orders.
fn check(subject: &str, found: &Tensor, expected: &[f32]) {
    let found = found.to_vec::<f32>().expect("values");
    assert_eq!(found.len(), expected.len(), "{subject}");
    for (found, expected) in found.iter().zip(expected) {
        let error = (found - expected).abs();
        assert!(error <= 1e-4 * expected.abs().max(1.0), "{subject}: {found}, not {expected}");
    }
}

fn time<T, U>(
    criterion: &mut Criterion,
    subject: &str,
    throughput: Throughput,
    mut lowtide: impl FnMut() -> T,
    mut naive: impl FnMut() -> U,
) {
    let mut group = criterion.benchmark_group(format!("tensor/{subject}"));
    group.throughput(throughput);
    group.bench_function("lowtide", |bencher| bencher.iter(|| black_box(lowtide())));
    group.bench_function("baseline_naive", |bencher| bencher.iter(|| black_box(naive())));
    group.finish();
}

fn check_and_time(
    criterion: &mut Criterion,
    subject: &str,
    throughput: Throughput,
    mut lowtide: impl FnMut() -> Tensor,
    mut naive: impl FnMut() -> Vec<f32>,
) {
    check(subject, &lowtide(), &naive());
    time(criterion, subject, throughput, lowtide, naive);
}

/// Sizes inside and outside the caches.
const SIZES: [(&str, usize); 2] = [("2^20", 1 << 20), ("2^24", 1 << 24)];

fn elementwise(criterion: &mut Criterion) {
    let device = device();
    for (size, len) in SIZES {
        let (a, a_values) = tensor(&device, &[len], 1);
        let (b, b_values) = tensor(&device, &[len], 2);
        let throughput = Throughput::Elements(len as u64);
        let naive = || a_values.iter().zip(&b_values).map(|(a, b)| a + b).collect();
        let subject = format!("add_{size}");
        check_and_time(criterion, &subject, throughput.clone(), || a.add(&b).expect("add"), naive);

        let subject = format!("add_in_place_{size}");
        let (mut sum, mut sum_values) = (a.copied().expect("memory"), a_values.clone());
        let add_to = |sum: &mut Tensor| sum.add_(&b).expect("add");
        let add_to_naive =
            |sum: &mut [f32]| sum.iter_mut().zip(&b_values).for_each(|(a, b)| *a += b);
        add_to(&mut sum);
        add_to_naive(&mut sum_values);
        check(&subject, &sum, &sum_values);
        let add_to_naive = || add_to_naive(&mut sum_values);
        time(criterion, &subject, throughput, || add_to(&mut sum), add_to_naive);
    }
}

fn functions(criterion: &mut Criterion) {
    let device = device();
    let (x, x_values) = tensor(&device, &[ELEMENTS], 1);
    let throughput = Throughput::Elements(ELEMENTS as u64);
    let gelu = |x: f32| 0.5 * x * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2));
    type Function = fn(&Tensor) -> lowtide_tensor::TensorResult<Tensor>;
    type Naive = fn(f32) -> f32;
    let cases: [(&str, Function, Naive); 6] = [
        ("exp", Tensor::exp, f32::exp),
        ("log1p", Tensor::log1p, f32::ln_1p),
        ("tanh", Tensor::tanh, f32::tanh),
        ("sin", Tensor::sin, f32::sin),
        ("pow_1.25", |x| x.pow_scalar(1.25), |x| x.powf(1.25)),
        ("gelu", Tensor::gelu, gelu),
    ];
    for (name, function, naive) in cases {
        // Positive numbers, so that no result is NaN, which equals nothing.
        let (x, x_values) = (x.abs().expect("abs"), x_values.iter().map(|x| x.abs()));
        let x_values: Vec<f32> = x_values.collect();
        let naive = || x_values.iter().map(|&x| naive(x)).collect();
        let subject = format!("{name}_2^20");
        let ours = || function(&x).expect("function");
        check_and_time(criterion, &subject, throughput.clone(), ours, naive);
    }
}

fn matmul(criterion: &mut Criterion) {
    let device = device();
    let (a, a_values) = tensor(&device, &[SQUARE, SQUARE], 1);
    let (b, b_values) = tensor(&device, &[SQUARE, SQUARE], 2);
    let naive = || {
        let mut y = vec![0.0; SQUARE * SQUARE];
        for (y, a) in y.chunks_exact_mut(SQUARE).zip(a_values.chunks_exact(SQUARE)) {
            for (a, b) in a.iter().zip(b_values.chunks_exact(SQUARE)) {
                y.iter_mut().zip(b).for_each(|(y, b)| *y += a * b);
            }
        }
        y
    };
    let products = Throughput::Elements((SQUARE * SQUARE * SQUARE) as u64);
    check_and_time(criterion, "matmul_256", products, || a.matmul(&b).expect("matmul"), naive);
}

/// [B, H, T, D] of causal attention, for a small model of characters and for GPT-2.
const ATTENTIONS: [[usize; 4]; 2] = [[8, 4, 128, 64], [4, 12, 1024, 64]];

fn attention(criterion: &mut Criterion) {
    let device = device();
    let options = AttentionOptions { causal: Causal::UpperLeft, ..Default::default() };
    for size in ATTENTIONS {
        let [batch, heads, len, dim] = size;
        let [(q, q_values), (k, k_values), (v, v_values)] =
            [1, 2, 3].map(|seed| tensor(&device, &size, seed));
        let pairs = Throughput::Elements((batch * heads * len * (len + 1) / 2) as u64);
        let name = |part: &str| format!("attention_{part}_{batch}x{heads}x{len}x{dim}");
        let forward = || q.attention(&k, &v, None, &options).expect("attention");
        let naive = || {
            let mut y = vec![0.0; q_values.len()];
            for (row, y) in y.chunks_exact_mut(dim).enumerate() {
                let head = row / len * len * dim;
                let q = &q_values[row * dim..][..dim];
                let key = |j: usize| &k_values[head + j * dim..][..dim];
                let score = |j| q.iter().zip(key(j)).map(|(q, k)| q * k).sum::<f32>();
                let scores: Vec<f32> =
                    (0..=row % len).map(|j| score(j) / (dim as f32).sqrt()).collect();
                let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let total: f32 = scores.iter().map(|score| (score - max).exp()).sum();
                for (j, score) in scores.iter().enumerate() {
                    let weight = (score - max).exp() / total;
                    let v = &v_values[head + j * dim..][..dim];
                    y.iter_mut().zip(v).for_each(|(y, v)| *y += weight * v);
                }
            }
            y
        };
        let subject = name("forward");
        check_and_time(criterion, &subject, pairs.clone(), || forward().y, naive);
        let found = forward();
        let mut group = criterion.benchmark_group(format!("tensor/{}", name("backward")));
        group.throughput(pairs);
        group.bench_function("lowtide", |bencher| {
            bencher.iter(|| {
                let dy = &found.y;
                dy.attention_backward([&q, &k, &v], None, &found, &options).expect("attention")
            });
        });
        group.finish();
    }
}

/// Calls `visit(y, x, w)` with the places of the factors of every product of a 3×3 convolution
/// with padding 1.
fn convolution_products(
    [batch, ins, height, width]: [usize; 4],
    outs: usize,
    mut visit: impl FnMut(usize, usize, usize),
) {
    for n in 0..batch {
        for o in 0..outs {
            for (p, q) in (0..height * width).map(|at| (at / width, at % width)) {
                let y = ((n * outs + o) * height + p) * width + q;
                for c in 0..ins {
                    for (kh, kw) in (0..9).map(|tap| (tap / 3, tap % 3)) {
                        let (row, col) = ((p + kh).wrapping_sub(1), (q + kw).wrapping_sub(1));
                        if row < height && col < width {
                            let x = ((n * ins + c) * height + row) * width + col;
                            visit(y, x, (o * ins + c) * 9 + kh * 3 + kw);
                        }
                    }
                }
            }
        }
    }
}

fn conv2d(criterion: &mut Criterion) {
    let device = device();
    for (size, outs) in CONVOLUTIONS {
        let [batch, ins, height, width] = size;
        let (x, x_values) = tensor(&device, &size, 1);
        let (w, w_values) = tensor(&device, &[outs, ins, 3, 3], 2);
        let (dy, dy_values) = tensor(&device, &[batch, outs, height, width], 3);
        let products = Throughput::Elements((dy_values.len() * ins * 9) as u64);
        let name = |part: &str| format!("conv2d_{part}_{batch}x{ins}x{height}x{width}_to_{outs}");

        let forward = || x.conv2d(&w, None, GEOMETRY).expect("conv2d");
        check_and_time(criterion, &name("forward"), products.clone(), forward, || {
            let mut y_naive = vec![0.0; dy_values.len()];
            convolution_products(size, outs, |y, x, w| y_naive[y] += x_values[x] * w_values[w]);
            y_naive
        });
        let input = || dy.conv2d_backward_input(&w, *x.shape(), GEOMETRY).expect("conv2d");
        check_and_time(criterion, &name("backward_input"), products.clone(), input, || {
            let mut dx = vec![0.0; x_values.len()];
            convolution_products(size, outs, |y, x, w| dx[x] += dy_values[y] * w_values[w]);
            dx
        });
        let weight = || dy.conv2d_backward_weight(&x, *w.shape(), GEOMETRY).expect("conv2d");
        check_and_time(criterion, &name("backward_weight"), products, weight, || {
            // The sum is in f64: 32,768 terms added up in f32 would not agree to 1e-4.
            let mut dw = vec![0.0f64; w_values.len()];
            convolution_products(size, outs, |y, x, w| {
                dw[w] += f64::from(dy_values[y] * x_values[x]);
            });
            dw.into_iter().map(|dw| dw as f32).collect()
        });
    }
}

fn max_pool2d(criterion: &mut Criterion) {
    let device = device();
    let [_, _, height, width] = IMAGES;
    let (x, x_values) = tensor(&device, &IMAGES, 1);
    let elements = Throughput::Elements(x_values.len() as u64);
    let pool = || x.max_pool2d(Pool2dGeometry::square(2)).expect("max_pool2d").0;
    check_and_time(criterion, "max_pool2d_32x32x32x32", elements, pool, || {
        let place = |at: usize| {
            let (plane, p, q) = (
                at / (width / 2) / (height / 2),
                at / (width / 2) % (height / 2),
                at % (width / 2),
            );
            (plane * height + 2 * p) * width + 2 * q
        };
        let largest = |at: usize| {
            let taps = [0, 1, width, width + 1].map(|tap| x_values[place(at) + tap]);
            taps.into_iter().fold(f32::NEG_INFINITY, f32::max)
        };
        (0..x_values.len() / 4).map(largest).collect()
    });
}

fn cross_entropy(criterion: &mut Criterion) {
    let device = device();
    let [rows, classes] = LOGITS;
    let (x, x_values) = tensor(&device, &LOGITS, 1);
    let labels: Vec<i64> = (0..rows).map(|n| (n * 37 % classes) as i64).collect();
    let target = Tensor::from_slice(&device, [rows], &labels).expect("memory");
    let loss = || x.cross_entropy(&target, -100).expect("cross_entropy").sum;
    let elements = Throughput::Elements(x_values.len() as u64);
    check_and_time(criterion, "cross_entropy_256x1000", elements, loss, || {
        let rows = x_values.chunks_exact(classes).zip(&labels);
        let loss = |(x, &label): (&[f32], &i64)| {
            let sum: f32 = x.iter().map(|x| x.exp()).sum();
            f64::from(sum.ln() - x[label as usize])
        };
        vec![rows.map(loss).sum::<f64>() as f32]
    });
}

fn softmax(criterion: &mut Criterion) {
    let device = device();
    let [rows, len] = ROWS;
    let (x, x_values) = tensor(&device, &ROWS, 1);
    let elements = Throughput::Elements((rows * len) as u64);
    let subject = format!("softmax_{rows}x{len}");
    let ours = || x.softmax(1).expect("softmax");
    check_and_time(criterion, &subject, elements, ours, || {
        let mut y = Vec::with_capacity(rows * len);
        for x in x_values.chunks_exact(len) {
            let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f32 = x.iter().map(|x| (x - max).exp()).sum();
            y.extend(x.iter().map(|x| (x - max).exp() / sum));
        }
        y
    });
}

fn layer_norm(criterion: &mut Criterion) {
    let device = device();
    let [rows, len] = ROWS;
    let (x, x_values) = tensor(&device, &ROWS, 1);
    let ((w, w_values), (b, b_values)) = (tensor(&device, &[len], 2), tensor(&device, &[len], 3));
    let elements = Throughput::Elements((rows * len) as u64);
    let subject = format!("layer_norm_{rows}x{len}");
    let ours = || x.layer_norm(1, Some(&w), Some(&b), 1e-5).expect("layer_norm").y;
    check_and_time(criterion, &subject, elements, ours, || {
        let mut y = Vec::with_capacity(rows * len);
        for x in x_values.chunks_exact(len) {
            let mean = x.iter().sum::<f32>() / len as f32;
            let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / len as f32;
            let rstd = 1.0 / (variance + 1e-5).sqrt();
            let parameters = w_values.iter().zip(&b_values);
            y.extend(x.iter().zip(parameters).map(|(x, (w, b))| (x - mean) * rstd * w + b));
        }
        y
    });
}

criterion_group!(
    kernels,
    elementwise,
    functions,
    matmul,
    attention,
    conv2d,
    max_pool2d,
    cross_entropy,
    softmax,
    layer_norm
);
criterion_main!(kernels);
