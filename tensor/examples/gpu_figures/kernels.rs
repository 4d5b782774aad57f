//! Measures every kernel of this crate at three sizes and in each of its types, beside its floor.
//! The floor is the longer of two times: of its arithmetic at the data sheet's rate, and of its
//! bytes at the rate of a copy.

use std::hint::black_box;
use std::time::Instant;

use lowtide_allocator::cuda::CudaDevice;
use lowtide_tensor::cuda::{CudaOptions, Products};
use lowtide_tensor::{
    AdamUpdate, AttentionOptions, BatchNorm, Causal, Conv2dGeometry, DType, Device, Dropout,
    Normalized, OpClass, Pool2dGeometry, RandomKey, Rates, Rounding, SgdUpdate, SimSpec,
    Statistics, Tensor, TensorError, TensorResult as Result, scale_and_check_finite, squared_norm,
};

use crate::{Outcome, Sizes, figure_beside, median, refused};

/// A run of an operation, with operands that exist already.
type Run = Box<dyn FnMut() -> Result<()>>;

/// A measured operation: its name, and the function that makes operands of about a given length.
struct Case {
    name: &'static str,
    make: fn(&Device, DType, usize) -> Result<Run>,
}

const CASES: &[Case] = &[
    Case { name: "fill", make: |d, t, n| in_place(row(d, t, n)?, |x| x.fill_(1.5)) },
    Case { name: "copy_turned", make: copy_turned },
    Case { name: "to_f16", make: |d, t, n| cast(d, t, DType::F16, n) },
    Case { name: "to_bf16", make: |d, t, n| cast(d, t, DType::BF16, n) },
    Case { name: "to_f32", make: |d, t, n| cast(d, t, DType::F32, n) },
    Case { name: "to_f64", make: |d, t, n| cast(d, t, DType::F64, n) },
    Case { name: "relu", make: |d, t, n| of(row(d, t, n)?, |x| x.relu()) },
    Case { name: "gelu", make: |d, t, n| of(row(d, t, n)?, |x| x.gelu()) },
    Case { name: "add", make: |d, t, n| of(row(d, t, n)?, |x| x.add(x)) },
    Case { name: "add_row", make: add_row },
    Case { name: "sum_all", make: |d, t, n| of(row(d, t, n)?, |x| x.sum_all()) },
    Case { name: "sum_rows", make: |d, t, n| of(square(d, t, n)?, |x| x.sum(&[1])) },
    Case { name: "sum_columns", make: |d, t, n| of(square(d, t, n)?, |x| x.sum(&[0])) },
    Case { name: "argmax", make: |d, t, n| of(row(d, t, n)?, |x| x.argmax()) },
    Case { name: "normal", make: |d, t, n| in_place(row(d, t, n)?, |x| x.normal_(KEY, 0.0, 1.0)) },
    Case {
        name: "squared_norm",
        make: |d, t, n| of(row(d, t, n)?, |x| squared_norm(x.device(), [x])),
    },
    Case { name: "scale_and_check", make: scale_and_check },
    Case { name: "sgd", make: sgd },
    Case { name: "adam", make: adam },
    Case {
        name: "max_pool2d",
        make: |d, t, n| of(images(d, t, n)?, |x| Ok(x.max_pool2d(POOL)?.0)),
    },
    Case { name: "max_pool2d_backward", make: max_pool2d_backward },
    Case { name: "cross_entropy", make: cross_entropy },
    Case { name: "cross_entropy_backward", make: cross_entropy_backward },
    Case {
        name: "conv2d",
        make: |d, t, n| convolution(d, t, n, |x, w, _| x.conv2d(w, None, SAME)),
    },
    Case {
        name: "conv2d_backward_input",
        make: |d, t, n| {
            convolution(d, t, n, |x, w, y| y.conv2d_backward_input(w, *x.shape(), SAME))
        },
    },
    Case {
        name: "conv2d_backward_weight",
        make: |d, t, n| {
            convolution(d, t, n, |x, w, y| y.conv2d_backward_weight(x, *w.shape(), SAME))
        },
    },
    Case { name: "softmax", make: |d, t, n| of(rows(d, t, n)?, |x| x.softmax(1)) },
    Case {
        name: "softmax_backward",
        make: |d, t, n| of(rows(d, t, n)?.softmax(1)?, |y| y.softmax_backward(y, 1)),
    },
    Case {
        name: "layer_norm",
        make: |d, t, n| layer_norm(d, t, n, |x, w| Ok(x.layer_norm(1, Some(w), Some(w), 1e-5)?.y)),
    },
    Case { name: "layer_norm_backward", make: layer_norm_backward },
    Case {
        name: "rms_norm",
        make: |d, t, n| layer_norm(d, t, n, |x, w| Ok(x.rms_norm(1, Some(w), 1e-5)?.y)),
    },
    Case {
        name: "batch_norm",
        make: |d, t, n| of(images(d, t, n)?, |x| Ok(x.batch_norm(None, None, 1e-5)?.y)),
    },
    Case { name: "batch_norm_backward", make: batch_norm_backward },
    Case { name: "dropout", make: |d, t, n| of(row(d, t, n)?, |x| x.dropout(DROPOUT)) },
    Case { name: "attention", make: |d, t, n| attention(d, t, n, false) },
    Case { name: "attention_and_backward", make: |d, t, n| attention(d, t, n, true) },
    Case { name: "matmul_own", make: |d, t, n| of(square(d, t, n)?, |x| x.matmul(x)) },
];

const KEY: RandomKey = RandomKey::new(7);
const POOL: Pool2dGeometry = Pool2dGeometry { kernel: [2, 2], stride: [2, 2], padding: [0, 0] };
const SAME: Conv2dGeometry =
    Conv2dGeometry { stride: [1, 1], padding: [1, 1], dilation: [1, 1], groups: 1 };

const DROPOUT: Dropout = Dropout { probability: 0.1, key: KEY, first: 0 };

/// Channels of images, classes of logits, and features of a head of attention.
const CHANNELS: usize = 64;

/// Features of a row that is normalised, as in the smallest GPT-2.
const WIDTH: usize = 768;

/// Measures all cases, the smallest sizes first. `copy_rate` is the rate of a copy in bytes per
/// second. Each byte counts when it is read and when it is written.
pub(crate) fn measure(device: &CudaDevice, sizes: &Sizes, copy_rate: f64) -> Outcome<()> {
    let options = CudaOptions { products: Products::Own, ..CudaOptions::default() };
    let real = Device::cuda_on(device, options)?;
    let like = SimSpec::like_cuda(1 << 50);
    let flops_per_second = like.rates.of(OpClass::Product).flops_per_second;
    let spec = SimSpec { rates: Rates::nominal(flops_per_second, copy_rate), ..like };
    let mut without = Vec::new();
    for Case { name, make } in CASES {
        for dtype in DType::ALL {
            for len in sizes.kernels {
                let name = format!("{name}_{dtype}_{len}");
                match floor_seconds(spec, *make, dtype, len) {
                    Ok(floor_seconds) => match seconds(device, &real, *make, dtype, len) {
                        Ok(seconds) => figure_beside(&name, seconds, floor_seconds),
                        Err(error) => refused(&name, &error.to_string()),
                    },
                    Err(TensorError::NoKernel { .. } | TensorError::DType { .. }) => {
                        without.push(name);
                        break;
                    }
                    Err(error) => refused(&name, &error.to_string()),
                }
            }
        }
    }
    crate::said("kernels_without", &format!("{} pairs of operation and type", without.len()));
    Ok(())
}

/// Seconds of one run at the best rates, by the cost that its kernels state.
fn floor_seconds(
    spec: SimSpec,
    make: fn(&Device, DType, usize) -> Result<Run>,
    dtype: DType,
    len: usize,
) -> Result<f64> {
    let device = Device::sim(spec)?;
    let mut run = make(&device, dtype, len)?;
    let before = device.simulated_seconds();
    run()?;
    Ok(device.simulated_seconds() - before)
}

/// The median of some runs. A run has enough launches to make the wait for them short in
/// comparison.
fn seconds(
    device: &CudaDevice,
    on: &Device,
    make: fn(&Device, DType, usize) -> Result<Run>,
    dtype: DType,
    len: usize,
) -> Outcome<f64> {
    let mut run = make(on, dtype, len)?;
    run()?;
    device.synchronize()?;
    let started = Instant::now();
    run()?;
    device.synchronize()?;
    let once = started.elapsed().as_secs_f64();
    let count = (2e-3 / once.max(1e-6)).clamp(1.0, 200.0) as usize;
    median(|| {
        device.synchronize()?;
        let started = Instant::now();
        for _ in 0..count {
            run()?;
        }
        device.synchronize()?;
        Ok(started.elapsed().as_secs_f64() / count as f64)
    })
}

/// Random numbers, if the device can draw them in this type: zeros can be faster than data.
pub(crate) fn noise(device: &Device, dtype: DType, dims: &[usize]) -> Result<Tensor> {
    let mut x = Tensor::zeros(device, dims, DType::F32)?;
    x.normal_(KEY, 0.0, 1.0)?;
    match x.to_dtype(dtype) {
        Err(TensorError::NoKernel { .. }) => {
            let mut x = Tensor::zeros(device, dims, dtype)?;
            x.fill_(1.0)?;
            Ok(x)
        }
        cast => cast,
    }
}

fn row(device: &Device, dtype: DType, len: usize) -> Result<Tensor> {
    noise(device, dtype, &[len])
}

/// A square of about `len` elements.
fn square(device: &Device, dtype: DType, len: usize) -> Result<Tensor> {
    noise(device, dtype, &[len.isqrt(); 2])
}

/// Images of 16x16 and 64 channels.
fn images(device: &Device, dtype: DType, len: usize) -> Result<Tensor> {
    noise(device, dtype, &[(len / (CHANNELS * 256)).max(1), CHANNELS, 16, 16])
}

fn of(x: Tensor, op: impl Fn(&Tensor) -> Result<Tensor> + 'static) -> Result<Run> {
    Ok(Box::new(move || {
        black_box(op(&x)?);
        Ok(())
    }))
}

fn in_place(mut x: Tensor, op: impl Fn(&mut Tensor) -> Result<()> + 'static) -> Result<Run> {
    Ok(Box::new(move || op(&mut x)))
}

fn cast(device: &Device, from: DType, to: DType, len: usize) -> Result<Run> {
    if from == to {
        return Err(TensorError::DType { op: "cast", left: from, right: to });
    }
    of(row(device, from, len)?, move |x| x.to_dtype(to))
}

fn copy_turned(device: &Device, dtype: DType, len: usize) -> Result<Run> {
    of(square(device, dtype, len)?.transpose(0, 1)?, Tensor::contiguous)
}

fn add_row(device: &Device, dtype: DType, len: usize) -> Result<Run> {
    let x = square(device, dtype, len)?;
    let row = x.select(0, 0)?.contiguous()?;
    of(x, move |x| x.add(&row))
}

fn scale_and_check(device: &Device, dtype: DType, len: usize) -> Result<Run> {
    in_place(row(device, dtype, len)?, |x| {
        let device = x.device().clone();
        scale_and_check_finite(&device, [x], 0.5).map(drop)
    })
}

fn sgd(device: &Device, dtype: DType, len: usize) -> Result<Run> {
    let of = || row(device, dtype, len);
    let (mut p, g, mut states) = (of()?, of()?, [of()?]);
    let formula = SgdUpdate { weight_decay: 0.1, keep: 0.5, take: 0.5, along_g: 0.1, along_m: 0.1 };
    Ok(Box::new(move || p.update_(&g, &mut states, [], formula, Rounding::Nearest)))
}

fn adam(device: &Device, dtype: DType, len: usize) -> Result<Run> {
    let of = || row(device, dtype, len);
    let state = || Tensor::zeros(device, [len], dtype);
    let (mut p, g, mut states) = (of()?, of()?, [state()?, state()?]);
    let formula = AdamUpdate {
        betas: [0.9, 0.99],
        coupled: 0.0,
        keep: 0.5,
        rate: 0.1,
        root_scale: 1.0,
        eps: 1e-3,
    };
    Ok(Box::new(move || p.update_(&g, &mut states, [], formula, Rounding::Nearest)))
}

fn max_pool2d_backward(device: &Device, dtype: DType, len: usize) -> Result<Run> {
    let x = images(device, dtype, len)?;
    let (y, winners) = x.max_pool2d(POOL)?;
    let shape = *x.shape();
    of(y, move |dy| dy.max_pool2d_backward(&winners, shape, POOL))
}

/// Rows as in the smallest GPT-2.
fn rows(device: &Device, dtype: DType, len: usize) -> Result<Tensor> {
    noise(device, dtype, &[(len / WIDTH).max(1), WIDTH])
}

fn layer_norm(
    device: &Device,
    dtype: DType,
    len: usize,
    op: fn(&Tensor, &Tensor) -> Result<Tensor>,
) -> Result<Run> {
    let (x, weight) = (rows(device, dtype, len)?, noise(device, dtype, &[WIDTH])?);
    of(x, move |x| op(x, &weight))
}

fn layer_norm_backward(device: &Device, dtype: DType, len: usize) -> Result<Run> {
    let (x, weight) = (rows(device, dtype, len)?, noise(device, dtype, &[WIDTH])?);
    let Normalized { mean, rstd, .. } = x.layer_norm(1, Some(&weight), Some(&weight), 1e-5)?;
    let mean = mean.expect("a layer norm centres");
    of(x, move |x| Ok(x.layer_norm_backward(x, &mean, &rstd, Some(&weight))?.dx))
}

fn batch_norm_backward(device: &Device, dtype: DType, len: usize) -> Result<Run> {
    let x = images(device, dtype, len)?;
    let BatchNorm { mean, variance, .. } = x.batch_norm(None, None, 1e-5)?;
    of(x, move |x| {
        Ok(x.batch_norm_backward(x, &mean, &variance, None, Statistics::Batch, 1e-5)?.dx)
    })
}

/// Causal attention of twelve heads over 1024 positions, or over fewer if `len` is too short.
fn attention(device: &Device, dtype: DType, len: usize, is_backward: bool) -> Result<Run> {
    const HEADS: usize = WIDTH / CHANNELS;
    let positions = (len / WIDTH).clamp(1, 1024);
    let q =
        noise(device, dtype, &[(len / (WIDTH * positions)).max(1), HEADS, positions, CHANNELS])?;
    let options = AttentionOptions { causal: Causal::UpperLeft, ..AttentionOptions::default() };
    Ok(Box::new(move || {
        let found = q.attention(&q, &q, None, &options)?;
        if is_backward {
            black_box(found.y.attention_backward([&q; 3], None, &found, &options)?);
        }
        Ok(())
    }))
}

/// Logits of 64 classes, and labels.
fn logits(device: &Device, dtype: DType, len: usize) -> Result<(Tensor, Tensor)> {
    let rows = (len / CHANNELS).max(1);
    let x = noise(device, dtype, &[rows, CHANNELS])?;
    Ok((x, Tensor::zeros(device, [rows], DType::I64)?))
}

fn cross_entropy(device: &Device, dtype: DType, len: usize) -> Result<Run> {
    let (x, labels) = logits(device, dtype, len)?;
    of(x, move |x| Ok(x.cross_entropy(&labels, -100)?.sum))
}

fn cross_entropy_backward(device: &Device, dtype: DType, len: usize) -> Result<Run> {
    let (x, labels) = logits(device, dtype, len)?;
    let loss = x.cross_entropy(&labels, -100)?;
    of(x, move |x| loss.sum.cross_entropy_backward(x, &labels, &loss.log_sum_exp, -100))
}

/// A product of `[images, 64, 16, 16]` and 64 filters of 3x3.
fn convolution(
    device: &Device,
    dtype: DType,
    len: usize,
    op: fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>,
) -> Result<Run> {
    let x = images(device, dtype, len)?;
    let w = noise(device, dtype, &[CHANNELS, CHANNELS, 3, 3])?;
    let y = x.copied()?;
    of(x, move |x| op(x, &w, &y))
}
