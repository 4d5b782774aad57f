use lowtide_allocator::Repeat;
use lowtide_tensor::cuda::{CudaOptions, Precision, Products};
use lowtide_tensor::{Conv2dGeometry, ConvTranspose2dGeometry, DType, Device, Tensor, TensorError};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::alike::{assert_alike, each_float, on};
use crate::elementwise::noise;
use crate::gpu::Gpu;
use crate::storage::cpu;

/// A convolution, and the dimensions of its x and w.
type Conv = (Conv2dGeometry, Vec<usize>, Vec<usize>);

fn convs() -> impl Strategy<Value = Conv> {
    let pair = |range: std::ops::RangeInclusive<usize>| [range.clone(), range];
    let geometry = (pair(1..=3), pair(0..=2), pair(1..=2), 1..=3_usize);
    // Sometimes the result has more channels than a tile has rows.
    let outs = prop_oneof![6 => 1..=5_usize, 1 => 65..=67_usize];
    let sizes = (0..=3_usize, 0..=3_usize, outs, pair(1..=3), pair(0..=9));
    (geometry, sizes).prop_map(|((stride, padding, dilation, groups), sizes)| {
        let (batch, channels, outs, kernel, extra) = sizes;
        let geometry = Conv2dGeometry { stride, padding, dilation, groups };
        let size = |axis: usize| {
            let reach = dilation[axis] * (kernel[axis] - 1) + 1;
            (reach + extra[axis]).saturating_sub(2 * padding[axis]).max(1)
        };
        let x = vec![batch, channels * groups, size(0), size(1)];
        (geometry, x, vec![outs * groups, channels, kernel[0], kernel[1]])
    })
}

/// The result of a product of tensors on their device.
type Product<'a> = &'a dyn Fn(&[Tensor]) -> lowtide_tensor::TensorResult<Tensor>;

/// Checks that a product of f32 is the same on both devices, also for operands that are not
/// contiguous. Each device rounds each of the `terms` by half a unit in the last place of the sum
/// of their magnitudes. This sum is the product of the operands without their signs.
fn same(device: &Device, name: &str, product: Product<'_>, operands: &[Tensor], terms: usize) {
    let there = |turned: bool| -> Vec<Tensor> {
        let turn = |x: &Tensor| -> lowtide_tensor::TensorResult<Tensor> {
            let last = x.shape().len() - 1;
            on(device, &x.transpose(0, last)?).transpose(0, last)
        };
        let one = |x| if turned { turn(x).unwrap() } else { on(device, x) };
        operands.iter().map(one).collect()
    };
    let sizes: Vec<Tensor> = operands.iter().map(|x| x.abs().unwrap()).collect();
    let [expected, sizes] = [operands, &sizes].map(|operands| product(operands).unwrap());
    for turned in [false, true] {
        let found = product(&there(turned)).unwrap();
        assert_eq!(found.shape(), expected.shape(), "{name}");
        let [found, expected, sizes] =
            [&found, &expected, &sizes].map(|x| x.to_vec::<f32>().unwrap());
        for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let tolerance = (terms + 1) as f32 * f32::EPSILON * sizes[index];
            let is_near = (found - expected).abs() <= tolerance;
            assert!(is_near, "{name}[{index}]: {found}, not {expected} within {tolerance}");
        }
    }
}

/// Forward, both backwards, and the transposed convolution from y to something like x.
fn check(device: &Device, (geometry, x_dims, w_dims): &Conv) {
    let geometry = *geometry;
    let cpu = cpu();
    let make = |name: &str, dims: &[usize]| noise(&cpu, name, dims, [-2.0, 2.0]);
    let (x, w, b) = (make("x", x_dims), make("w", w_dims), make("b", &w_dims[..1]));
    let y = x.conv2d(&w, None, geometry).unwrap();
    let dy = make("dy", y.shape());
    let taps: usize = w_dims[1..].iter().product();
    let out_taps = w_dims[0] / geometry.groups * w_dims[2] * w_dims[3];
    let pixels = y.element_count() / w_dims[0];
    let plain = |of: &[Tensor]| of[0].conv2d(&of[1], None, geometry);
    same(device, "conv2d", &plain, &[x.clone(), w.clone()], taps);
    let biased = |of: &[Tensor]| of[0].conv2d(&of[1], Some(&of[2]), geometry);
    same(device, "conv2d with bias", &biased, &[x.clone(), w.clone(), b], taps + 1);
    let of_input = |of: &[Tensor]| of[0].conv2d_backward_input(&of[1], *x.shape(), geometry);
    same(device, "of the input", &of_input, &[dy.clone(), w.clone()], out_taps);
    let of_weight = |of: &[Tensor]| of[0].conv2d_backward_weight(&of[1], *w.shape(), geometry);
    same(device, "of the weight", &of_weight, &[dy.clone(), x.clone()], pixels);
    let Conv2dGeometry { stride, padding, dilation, groups } = geometry;
    let output_padding = [0, 0];
    let geometry = ConvTranspose2dGeometry { stride, padding, output_padding, dilation, groups };
    let transposed = |of: &[Tensor]| of[0].conv_transpose2d(&of[1], Some(&of[2]), geometry);
    let operands = [dy, w, make("b", &x_dims[1..2])];
    // Without channels, or if the padding leaves nothing, there is no such result.
    if transposed(&operands).is_ok() {
        same(device, "transposed", &transposed, &operands, out_taps + 1);
    }
}

#[test]
fn convolutions_and_their_gradients_are_those_of_the_processor_over_generated_shapes() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    gpu.in_every_order(|| {
        let config = Config { cases: 10, failure_persistence: None, ..Config::default() };
        let checked = TestRunner::new(config).run(&convs(), |conv| {
            check(&device, &conv);
            Ok(())
        });
        checked.unwrap();
    });
}

#[test]
fn convolution_of_several_tiles_each_way_is_that_of_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let geometry = Conv2dGeometry { padding: [1, 1], ..Default::default() };
    gpu.in_every_order(|| check(&device, &(geometry, vec![2, 9, 9, 7], vec![70, 9, 3, 3])));
}

/// Checks a convolution of noise, its gradients and the transposed convolution, in one type. The
/// other dimensions of w follow from x.
fn check_in_type(
    device: &Device,
    (dtype, tolerance): (DType, f64),
    geometry: Conv2dGeometry,
    x_dims: [usize; 4],
    [outs, kernel_height, kernel_width]: [usize; 3],
) {
    let cpu = cpu();
    // Numbers of bf16 are exact as factors in tf32, too.
    let of_values = if device.is_in_tf32() { DType::BF16 } else { dtype };
    let make = |name: &str, dims: &[usize]| {
        let values = noise(&cpu, name, dims, [-1.0, 1.0]).to_dtype(of_values).unwrap();
        values.to_dtype(dtype).unwrap()
    };
    let Conv2dGeometry { stride, padding, dilation, groups } = geometry;
    let x = make("x", &x_dims);
    let w = make("w", &[outs, x_dims[1] / groups, kernel_height, kernel_width]);
    let (b, in_bias) = (make("b", &[outs]), make("in_bias", &[x_dims[1]]));
    let dy = make("dy", x.conv2d(&w, None, geometry).unwrap().shape());
    let output_padding = [0, 0];
    let transposed = ConvTranspose2dGeometry { stride, padding, output_padding, dilation, groups };
    let can_be_transposed = dy.conv_transpose2d(&w, None, transposed).is_ok();
    let name = format!("conv2d {dtype} of {x_dims:?}");
    // Sums over all pixels are larger than 1, and tolerances are relative.
    let operands = [&x, &w, &b, &in_bias, &dy];
    assert_alike(device, &name, &operands, tolerance, |operands| {
        let [x, w, b, in_bias, dy] = operands else { unreachable!() };
        let mut results = vec![
            x.conv2d(w, Some(b), geometry)?,
            x.conv2d(w, None, geometry)?,
            dy.conv2d_backward_input(w, *x.shape(), geometry)?,
            dy.conv2d_backward_weight(x, *w.shape(), geometry)?,
        ];
        if can_be_transposed {
            results.push(dy.conv_transpose2d(w, Some(in_bias), transposed)?);
        }
        Ok(results)
    });
}

#[test]
fn convolutions_in_every_type_and_in_parts_are_those_of_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    // In the second case, two blocks share the pixels of a tile of the gradient. In a case of one
    // tap the library multiplies pixels.
    let strided = Conv2dGeometry { stride: [2, 1], padding: [1, 0], ..Default::default() };
    let padded = Conv2dGeometry { padding: [1, 1], ..Default::default() };
    for (geometry, x, [outs, tap]) in [
        (strided, [2, 2, 7, 6], [3, 3]),
        (padded, [2, 2, 32, 33], [3, 3]),
        (padded, [1, 66, 5, 6], [131, 3]),
        (Conv2dGeometry::default(), [2, 5, 4, 6], [7, 1]),
    ] {
        for of_type in each_float([2e-5, 1e-13]) {
            check_in_type(&device, of_type, geometry, x, [outs, tap, tap]);
        }
    }
}

/// Devices and types whose convolutions run on tensor cores, from copies with channels last: half
/// types, and f32 as tf32, each on a device that supports it.
fn for_tensor_cores(gpu: &Gpu) -> impl Iterator<Item = (Device, (DType, f64))> {
    let (plain, in_tf32) = (gpu.device(), in_tf32(gpu));
    // Tensor cores truncate digits that a sum cannot hold; the processor rounds.
    each_float([2e-4, 1e-13]).into_iter().filter_map(move |of_type| match of_type.0 {
        DType::F64 => None,
        DType::F32 => Some((in_tf32.clone(), of_type)),
        _ => Some((plain.clone(), of_type)),
    })
}

fn in_tf32(gpu: &Gpu) -> Device {
    let products = Products::Library(Precision::Tf32);
    let device = gpu.device_with(CudaOptions { products, ..CudaOptions::default() });
    assert!(device.is_in_tf32() && device.simulate().is_in_tf32());
    device
}

#[test]
fn convolutions_for_tensor_cores_are_those_of_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let none = Conv2dGeometry::default();
    let padded = Conv2dGeometry { padding: [1, 1], ..none };
    // Groups of channels that are not whole packs, and phases that no tap reaches.
    let grouped = Conv2dGeometry { stride: [2, 2], dilation: [2, 2], groups: 2, ..padded };
    // Phases with different numbers of taps, which are apart.
    let apart = Conv2dGeometry { stride: [3, 2], padding: [2, 1], dilation: [1, 3], groups: 1 };
    let few = Conv2dGeometry { groups: 3, ..padded };
    let cases = [
        (grouped, [2, 18, 9, 11], [22, 3, 3]),
        (apart, [1, 5, 13, 10], [4, 4, 3]),
        // Planes of whole packs, several tiles in each direction, and parts of the pixels.
        (padded, [2, 16, 16, 12], [70, 3, 3]),
        // Groups of few channels take another path.
        (few, [2, 6, 5, 6], [9, 3, 3]),
        // A kernel of one tap, with rows of pixels that the library would read one by one.
        (none, [2, 9, 5, 5], [7, 1, 1]),
        // No images, and no channels.
        (padded, [0, 8, 4, 4], [8, 3, 3]),
        (none, [2, 0, 4, 4], [3, 2, 2]),
    ];
    gpu.in_every_order(|| {
        for (device, of_type) in for_tensor_cores(&gpu) {
            cases.iter().for_each(|&(geometry, x, w)| {
                check_in_type(&device, of_type, geometry, x, w);
            });
        }
    });
}

#[test]
fn convolutions_in_tf32_round_their_factors() {
    let Some(gpu) = Gpu::take() else { return };
    let geometry = Conv2dGeometry::default();
    // Half of the last digit of tf32 is rounded away from 0; less than half is lost.
    let digit = 2.0_f32.powi(-10);
    for (value, factor) in [
        (1.0 + 0.49 * digit, 1.0),
        (1.0 + 0.5 * digit, 1.0 + digit),
        (-1.0 - 0.5 * digit, -1.0 - digit),
        (f32::INFINITY, f32::INFINITY),
        (f32::MAX, f32::INFINITY),
    ] {
        let device = in_tf32(&gpu);
        let x = Tensor::full(&device, [1, 1, 2, 2], DType::F32, f64::from(value)).unwrap();
        let w = Tensor::full(&device, [1, 1, 2, 1], DType::F32, 0.5).unwrap();
        let y = x.conv2d(&w, None, geometry).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(y, [factor, factor], "{value}");
    }
    let device = in_tf32(&gpu);
    let x = Tensor::full(&device, [1, 1, 1, 1], DType::F32, f64::NAN).unwrap();
    let y = x.conv2d(&x, None, geometry).unwrap().to_vec::<f32>().unwrap();
    assert!(y[0].is_nan());
}

#[test]
fn convolutions_for_tensor_cores_in_tall_tiles_are_those_of_the_processor() {
    const NAME: &str = "convolutions for tensor cores in tall tiles are those of the processor";
    let Some(gpu) = Gpu::take() else { return };
    if gpu.pretend.get().is_some() {
        return println!("skipped: {NAME}: they are for more work than a pretend device can do");
    }
    let (none, strided) = (Conv2dGeometry::default(), [2, 2]);
    let strided = Conv2dGeometry { stride: strided, ..none };
    // The pixels keep a large device busy: pixels of the result, phases of the gradient, and all
    // parts of the gradient of w.
    for (device, of_type) in for_tensor_cores(&gpu) {
        check_in_type(&device, of_type, strided, [1, 3, 367, 367], [70, 1, 1]);
        check_in_type(&device, of_type, none, [1, 70, 184, 184], [3, 1, 1]);
        check_in_type(&device, of_type, none, [1, 64, 64, 64], [300, 5, 5]);
    }
}

#[test]
fn convolution_that_no_kernel_does_says_so() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let zeros = |dims: [usize; 4]| Tensor::zeros(&device, dims, DType::F32).unwrap();
    // More groups than a row of the grid has blocks.
    let [x, w] = [[1, 65_536, 1, 1], [65_536, 1, 1, 1]].map(zeros);
    let geometry = Conv2dGeometry { groups: 65_536, ..Conv2dGeometry::default() };
    let before = device.allocator().live_blocks();
    let error = x.conv2d(&w, None, geometry).unwrap_err();
    assert_eq!(error.to_string(), "conv2d: has no kernel for cuda");
    assert_eq!(device.allocator().live_blocks(), before);
    // More phases of a stride than a number can count.
    let far = Conv2dGeometry { stride: [1 << 40; 2], ..Conv2dGeometry::default() };
    let [dy, w] = [(); 2].map(|()| Tensor::zeros(&device, [1; 4], DType::BF16).unwrap());
    let before = device.allocator().live_blocks();
    let error = dy.conv2d_backward_input(&w, [1, 1, 2, 2].into(), far).unwrap_err();
    assert_eq!(error.to_string(), "conv2d_backward_input: has no kernel for cuda");
    assert_eq!(device.allocator().live_blocks(), before);
}

#[test]
fn convolution_that_the_driver_refuses_is_a_typed_error_and_leaves_nothing() {
    let Some(gpu) = Gpu::pretend() else { return };
    let device = gpu.device();
    let [x, w] = [[1, 2, 5, 5], [3, 2, 3, 3]].map(|dims| noise(&device, "x", &dims, [-1.0, 1.0]));
    let geometry = Conv2dGeometry::default();
    let y = x.conv2d(&w, None, geometry).unwrap();
    let before = device.allocator().live_blocks();
    let products: [&dyn Fn() -> lowtide_tensor::TensorResult<Tensor>; 3] = [
        &|| x.conv2d(&w, None, geometry),
        &|| y.conv2d_backward_input(&w, *x.shape(), geometry),
        &|| y.conv2d_backward_weight(&x, *w.shape(), geometry),
    ];
    for product in products {
        // `CUDA_ERROR_UNKNOWN`.
        gpu.pretend.fail("cuLaunchKernel", 999, 1, Repeat::Once);
        let error = product().unwrap_err();
        assert!(matches!(error, TensorError::Launch(_)), "{error}");
        assert_eq!(device.allocator().live_blocks(), before);
        product().unwrap();
    }
}
