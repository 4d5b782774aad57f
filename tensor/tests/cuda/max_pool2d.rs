use lowtide_allocator::Repeat;
use lowtide_tensor::{
    DType, Device, MaxPool, Pool2dGeometry, SizeRounding, Tensor, TensorError,
    TensorResult as Result,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::alike::on;
use crate::elementwise::noise;
use crate::gpu::Gpu;
use crate::storage::cpu;

/// A pooling, and the dimensions of its x.
type Pool = (Pool2dGeometry, MaxPool, Vec<usize>);

fn pools() -> impl Strategy<Value = Pool> {
    let pair = |range: std::ops::RangeInclusive<usize>| [range.clone(), range];
    let windows = (pair(1..=4), pair(1..=4), pair(1..=3), any::<[bool; 2]>());
    let rounding = prop::sample::select(vec![SizeRounding::Down, SizeRounding::Up]);
    let sizes = (0..=3_usize, 0..=3_usize, pair(0..=9));
    (windows, rounding, sizes).prop_map(|(windows, rounding, (batch, channels, extra))| {
        let (kernel, stride, dilation, is_padded) = windows;
        let reach = [0, 1].map(|axis| (kernel[axis] - 1) * dilation[axis] + 1);
        let padding = [0, 1].map(|axis| if is_padded[axis] { reach[axis] / 2 } else { 0 });
        let size = |axis: usize| (reach[axis] + extra[axis] - padding[axis]).max(dilation[axis]);
        let geometry = Pool2dGeometry { kernel, stride, padding };
        (geometry, MaxPool { dilation, rounding }, vec![batch, channels, size(0), size(1)])
    })
}

/// Whole numbers with many ties, infinities and NaN.
fn values(dims: &[usize], seed: usize) -> Tensor {
    let values = [0.0, 1.0, -2.0, f32::NEG_INFINITY, f32::NAN, 3.0, 3.0, -0.0];
    let len = dims.iter().product();
    let value = |i: usize| values[(i * i + 3 * i + i / 7 + seed) % values.len()];
    Tensor::from_slice(&cpu(), dims, &(0..len).map(value).collect::<Vec<_>>()).unwrap()
}

/// The bytes of y, of the winners and of dx; `turned` operands are not contiguous.
fn run(
    device: &Device,
    pool: &Pool,
    dtype: DType,
    seed: usize,
    turned: bool,
) -> Result<[Vec<u8>; 3]> {
    let (geometry, options, dims) = pool;
    let here = |x: &Tensor| match turned {
        true => on(device, &x.transpose(1, 3)?).transpose(1, 3),
        false => Ok(on(device, x)),
    };
    let x = here(&values(dims, seed).to_dtype(dtype)?)?;
    let (y, winners) = x.max_pool2d_with(*geometry, *options)?;
    // Whole numbers, whose sums are exact in every type and order.
    let dy = noise(&cpu(), "dy", y.shape(), [-8.0, 8.0]).floor()?;
    let dy = here(&dy.to_dtype(dtype)?)?;
    let winners_here = here(&winners)?;
    let dx = dy.max_pool2d_with_backward(&winners_here, *x.shape(), *geometry, *options)?;
    Ok([y.to_bytes()?, winners.to_bytes()?, dx.to_bytes()?])
}

#[test]
fn maxima_and_their_gradients_are_those_of_the_processor_to_the_bit() {
    let Some(gpu) = Gpu::take() else { return };
    let (device, cpu) = (gpu.device(), cpu());
    gpu.in_every_order(|| {
        let config = Config { cases: 40, failure_persistence: None, ..Config::default() };
        let types = prop::sample::select(vec![DType::F32, DType::F64, DType::F16, DType::BF16]);
        let cases = (pools(), types, 0..8_usize, any::<bool>());
        let checked = TestRunner::new(config).run(&cases, |(pool, dtype, seed, turned)| {
            let [found, expected] =
                [&device, &cpu].map(|device| run(device, &pool, dtype, seed, turned).unwrap());
            prop_assert_eq!(found, expected);
            Ok(())
        });
        checked.unwrap();
    });
}

#[test]
fn windows_side_by_side_are_those_of_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let (device, cpu) = (gpu.device(), cpu());
    for (kernel, size) in [(2, 8), (2, 7), (3, 9), (16, 16)] {
        let pool = (Pool2dGeometry::square(kernel), MaxPool::default(), vec![2, 3, size, size]);
        let run = |device| run(device, &pool, DType::F32, 1, false).unwrap();
        let [found, expected] = [&device, &cpu].map(run);
        assert_eq!(found, expected, "{kernel} of {size}");
    }
}

#[test]
fn pooling_that_no_kernel_does_or_the_driver_refuses_is_a_typed_error() {
    let Some(gpu) = Gpu::pretend() else { return };
    let device = gpu.device();
    let geometry = Pool2dGeometry::square(2);
    let of_i64 = Tensor::zeros(&device, [1, 1, 4, 4], DType::I64).unwrap();
    let x = noise(&device, "x", &[1, 1, 4, 4], [-1.0, 1.0]);
    let (y, winners) = x.max_pool2d(geometry).unwrap();
    let before = device.allocator().live_blocks();
    let error = of_i64.max_pool2d(geometry).unwrap_err();
    assert_eq!(error.to_string(), "max_pool2d: has no kernel for cuda");
    let works: [&dyn Fn() -> Result<()>; 2] = [&|| x.max_pool2d(geometry).map(drop), &|| {
        y.max_pool2d_backward(&winners, *x.shape(), geometry).map(drop)
    }];
    for work in works {
        // `CUDA_ERROR_UNKNOWN`.
        gpu.pretend.fail("cuLaunchKernel", 999, 1, Repeat::Once);
        let error = work().unwrap_err();
        assert!(matches!(error, TensorError::Launch(_)), "{error}");
        work().unwrap();
    }
    assert_eq!(device.allocator().live_blocks(), before);
}
