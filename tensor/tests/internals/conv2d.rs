//! The convolution kernels against the definition, over generated shapes.

use std::cell::RefCell;

use lowtide_tensor::testing::cpu::{cpu, on_every_instruction_set};
use lowtide_tensor::testing::{ConvProduct, ConvSizes, Convolved};
use lowtide_tensor::{Float, bf16, f16};
use proptest::prelude::*;

/// Calls `visit(x index, w index, y index)` for every product in the definition.
fn each_product(shape: &ConvSizes, mut visit: impl FnMut(usize, usize, usize)) {
    let (oh, ow) = (shape.out_height(), shape.out_width());
    let (in_channels, channels) =
        (shape.in_channels / shape.groups, shape.out_channels / shape.groups);
    for y_index in 0..shape.y_len() {
        let (q, p) = (y_index % ow, y_index / ow % oh);
        let (o, n) =
            (y_index / ow / oh % shape.out_channels, y_index / ow / oh / shape.out_channels);
        for c in 0..in_channels {
            for (kh, kw) in
                (0..shape.kernel[0]).flat_map(|h| (0..shape.kernel[1]).map(move |w| (h, w)))
            {
                let row = p * shape.stride[0] + kh * shape.dilation[0];
                let column = q * shape.stride[1] + kw * shape.dilation[1];
                let (Some(row), Some(column)) =
                    (row.checked_sub(shape.padding[0]), column.checked_sub(shape.padding[1]))
                else {
                    continue;
                };
                if row < shape.in_height && column < shape.in_width {
                    let channel = n * shape.in_channels + o / channels * in_channels + c;
                    let x_index = (channel * shape.in_height + row) * shape.in_width + column;
                    let w_index =
                        ((o * in_channels + c) * shape.kernel[0] + kh) * shape.kernel[1] + kw;
                    visit(x_index, w_index, y_index);
                }
            }
        }
    }
}

/// Small integers: every sum is exact in f32, so kernels and definition must agree to the bit.
fn values<T: Float>(len: usize, seed: usize) -> Vec<T> {
    (0..len).map(|i| T::from_f64(((i * 7 + seed * 13 + i / 5) % 9) as f64 - 4.0)).collect()
}

fn check_against_definition<T: Convolved + Float>(shape: &ConvSizes, threads: usize) {
    check_in::<T, T>(shape, threads);
}

/// Operands and results of E, sums of T.
fn check_in<E: Convolved, T: Float>(shape: &ConvSizes, threads: usize) {
    let cpu = cpu(threads);
    let elements = |values: &[T]| values.iter().map(|value| value.cast()).collect::<Vec<E>>();
    let results = |len: usize| vec![E::from_f64(f64::NAN); len];
    let (x, w) = (values::<T>(shape.x_len(), 1), values::<T>(shape.w_len(), 2));
    let dy = values::<T>(shape.y_len(), 4);
    let (mut y_expected, mut dx_expected) = (vec![T::ZERO; dy.len()], vec![T::ZERO; x.len()]);
    let mut dw_expected = vec![T::ZERO; w.len()];
    each_product(shape, |i, j, k| {
        y_expected[k] += x[i] * w[j];
        dx_expected[i] += w[j] * dy[k];
        dw_expected[j] += x[i] * dy[k];
    });
    let [x, w, dy] = [&x, &w, &dy].map(|values| elements(values));
    for has_bias in [false, true] {
        let b = values::<T>(if has_bias { shape.out_channels } else { 0 }, 3);
        let expected = elements(&with_biases(&y_expected, &b, shape.batch));
        let b = has_bias.then(|| elements(&b));
        let mut y = results(shape.y_len());
        let factors = [&x[..], &w[..]];
        E::convolve(&cpu, shape, ConvProduct::Forward, factors, b.as_deref(), &mut y);
        assert_eq!(y, expected, "y of {shape:?}");

        let b = values::<T>(if has_bias { shape.in_channels } else { 0 }, 3);
        let expected = elements(&with_biases(&dx_expected, &b, shape.batch));
        let b = has_bias.then(|| elements(&b));
        let mut dx = results(shape.x_len());
        let factors = [&dy[..], &w[..]];
        E::convolve(&cpu, shape, ConvProduct::BackwardInput, factors, b.as_deref(), &mut dx);
        assert_eq!(dx, expected, "dx of {shape:?}");
    }
    let mut dw = results(shape.w_len());
    E::convolve(&cpu, shape, ConvProduct::BackwardWeight, [&dy, &x], None, &mut dw);
    assert_eq!(dw, elements(&dw_expected), "dw of {shape:?}");
}

/// The images with a bias added to each channel, if there are any.
fn with_biases<T: Float>(images: &[T], b: &[T], batch: usize) -> Vec<T> {
    let plane_len = images.len() / (batch * b.len()).max(1);
    let bias = |at: usize| if b.is_empty() { T::ZERO } else { b[at / plane_len % b.len()] };
    images.iter().enumerate().map(|(at, &sum)| sum + bias(at)).collect()
}

fn pair(range: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = [usize; 2]> {
    [range.clone(), range]
}

fn shapes() -> impl Strategy<Value = ConvSizes> {
    let channels = (0..=3usize, 0..=20usize, 1..=3usize);
    let window = (pair(1..=4), pair(1..=3), pair(0..=3), pair(1..=3));
    (0..=5usize, channels, pair(0..=14), window).prop_map(
        |(batch, (ins, outs, groups), size, (kernel, stride, padding, dilation))| ConvSizes {
            batch,
            in_channels: ins * groups,
            in_height: size[0],
            in_width: size[1],
            out_channels: outs * groups,
            kernel,
            stride,
            padding,
            dilation,
            groups,
        },
    )
}

/// Convolutions whose channels are groups: of fewer planes than lanes, and of several bundles.
fn depthwise_shapes() -> impl Strategy<Value = ConvSizes> {
    let window = (pair(1..=7), pair(1..=3), pair(0..=4), pair(1..=3));
    (1..=5usize, 2..=40usize, pair(1..=30), window).prop_map(
        |(batch, channels, size, (kernel, stride, padding, dilation))| ConvSizes {
            kernel,
            stride,
            padding,
            dilation,
            in_height: size[0],
            in_width: size[1],
            ..depthwise(batch, channels, 1, 1)
        },
    )
}

fn depthwise(batch: usize, channels: usize, side: usize, kernel: usize) -> ConvSizes {
    ConvSizes { groups: channels, ..square(batch, [channels; 2], side, kernel) }
}

fn square(batch: usize, channels: [usize; 2], side: usize, kernel: usize) -> ConvSizes {
    ConvSizes {
        batch,
        in_channels: channels[0],
        in_height: side,
        in_width: side,
        out_channels: channels[1],
        kernel: [kernel; 2],
        stride: [1; 2],
        padding: [kernel / 2; 2],
        dilation: [1; 2],
        groups: 1,
    }
}

/// Shapes whose rows of outputs are whole vectors, in some of the three products.
fn shapes_of_whole_vectors() -> impl Strategy<Value = ConvSizes> {
    let channels = (1..=4usize, 1..=12usize, 1..=3usize);
    let window = (pair(1..=4), pair(0..=5), pair(1..=3));
    let size = (1..=9usize, prop::sample::select(vec![32, 48, 64]));
    (1..=3usize, channels, size, window).prop_map(
        |(batch, (ins, outs, groups), (height, out_width), (kernel, padding, dilation))| {
            let reach = (kernel[1] - 1) * dilation[1];
            ConvSizes {
                batch,
                in_channels: ins * groups,
                in_height: height,
                in_width: (out_width + reach - 2 * padding[1]).max(1),
                out_channels: outs * groups,
                kernel,
                stride: [1; 2],
                padding,
                dilation,
                groups,
            }
        },
    )
}

/// Shapes that read each number of x at most once.
fn shapes_of_patches() -> impl Strategy<Value = ConvSizes> {
    let window = pair(1..=5).prop_flat_map(|[h, w]| (Just([h, w]), [h..=6usize, w..=6usize]));
    (1..=4usize, [0..=5usize, 1..=20usize], pair(7..=40), window).prop_map(
        |(batch, channels, size, (kernel, stride))| ConvSizes {
            in_height: size[0],
            in_width: size[1],
            kernel,
            stride,
            padding: [0; 2],
            ..square(batch, channels, 1, 1)
        },
    )
}

proptest! {
    #[test]
    fn patches_agree_with_the_definition(shape in shapes_of_patches()) {
        check_against_definition::<f32>(&shape, 2);
        check_in::<bf16, f32>(&shape, 2);
        check_in::<f16, f32>(&shape, 2);
        on_every_instruction_set(|| check_in::<bf16, f32>(&shape, 1));
        check_against_definition::<f64>(&shape, 1);
    }

    #[test]
    fn kernels_agree_with_the_definition(shape in shapes()) {
        check_against_definition::<f32>(&shape, 2);
        check_in::<bf16, f32>(&shape, 2);
        check_in::<f16, f32>(&shape, 2);
        on_every_instruction_set(|| check_in::<bf16, f32>(&shape, 1));
        check_against_definition::<f64>(&shape, 1);
    }

    #[test]
    fn rows_of_whole_vectors_agree_with_the_definition(shape in shapes_of_whole_vectors()) {
        check_against_definition::<f32>(&shape, 2);
        on_every_instruction_set(|| {
            check_against_definition::<f32>(&shape, 1);
            check_in::<bf16, f32>(&shape, 1);
        });
        check_against_definition::<f64>(&shape, 1);
    }

    #[test]
    fn depthwise_kernels_agree_with_the_definition(shape in depthwise_shapes()) {
        check_against_definition::<f32>(&shape, 3);
        check_in::<bf16, f32>(&shape, 2);
        on_every_instruction_set(|| {
            check_against_definition::<f32>(&shape, 1);
            check_against_definition::<f64>(&shape, 1);
            check_in::<bf16, f32>(&shape, 1);
        });
    }
}

#[test]
fn layers_of_usual_networks_agree_with_the_definition() {
    for shape in [
        square(17, [1, 16], 8, 3),
        square(2, [3, 20], 19, 3),
        square(5, [3, 16], 16, 3),
        square(3, [16, 32], 8, 3),
        square(2, [3, 8], 33, 5),
        square(1, [32, 64], 7, 1),
        square(19, [24, 60], 9, 1),
        square(17, [8, 40], 8, 1),
        depthwise(2, 16, 9, 3),
        depthwise(3, 40, 7, 3),
        depthwise(2, 24, 14, 5),
        ConvSizes { stride: [2; 2], ..depthwise(2, 24, 56, 5) },
        ConvSizes { stride: [2; 2], ..square(2, [8, 24], 16, 3) },
        ConvSizes { stride: [2; 2], padding: [0; 2], ..square(2, [8, 24], 16, 2) },
        ConvSizes { stride: [2; 2], ..square(2, [8, 24], 17, 1) },
        ConvSizes { stride: [4, 3], dilation: [2, 3], ..square(2, [8, 24], 40, 5) },
        ConvSizes { stride: [16; 2], padding: [0; 2], ..square(1, [3, 24], 160, 16) },
        ConvSizes { stride: [4; 2], padding: [0; 2], ..square(2, [3, 24], 90, 4) },
        ConvSizes { stride: [2; 2], ..square(2, [5, 24], 38, 3) },
        square(17, [40, 24], 2, 3),
        square(5, [16, 24], 4, 3),
        ConvSizes { stride: [2; 2], ..square(3, [16, 24], 14, 3) },
        ConvSizes { stride: [2; 2], ..square(1, [40, 24], 32, 3) },
        ConvSizes { stride: [2; 2], ..square(5, [16, 30], 8, 3) },
    ] {
        check_against_definition::<f32>(&shape, 3);
        check_against_definition::<f64>(&shape, 3);
        on_every_instruction_set(|| {
            check_against_definition::<f32>(&shape, 1);
            check_against_definition::<f64>(&shape, 1);
            check_in::<bf16, f32>(&shape, 1);
        });
    }
}

#[test]
fn work_larger_than_a_tile_agrees_with_the_definition() {
    // Rows, then channels, then taps of all channels, then those of one do not fit at once.
    for shape in [
        square(1, [24, 2], 64, 3),
        square(1, [600, 2], 21, 3),
        square(2, [300, 4], 32, 3),
        square(2, [40, 3], 4, 9),
        // Several runs of pixels, and more images than a tile of them holds.
        square(1, [3, 8], 64, 3),
        square(9, [70, 2], 12, 3),
        square(1, [2, 3], 4, 33),
        // Patches of a few rows, of pieces of a row, and of several images.
        ConvSizes { stride: [2; 2], ..square(2, [80, 3], 70, 1) },
        ConvSizes { in_width: 60_001, kernel: [1, 2], stride: [1, 3], ..square(2, [8, 3], 1, 1) },
        ConvSizes { stride: [2; 2], ..square(9, [300, 3], 16, 1) },
        // A row in pieces, the last of which is smaller; of phases too, and of pairs of which some
        // are beyond the row.
        ConvSizes { in_height: 1, kernel: [1, 2], padding: [0; 2], ..square(2, [64, 6], 700, 1) },
        ConvSizes {
            in_height: 1,
            kernel: [1, 3],
            padding: [0, 300],
            dilation: [1, 200],
            ..square(1, [75, 3], 900, 1)
        },
        ConvSizes {
            in_height: 1,
            kernel: [1, 4],
            padding: [0, 1],
            stride: [1, 2],
            ..square(1, [80, 70], 1400, 1)
        },
        // Strips of several rows, of one, and with rows between them that no tap meets.
        depthwise(3, 20, 40, 7),
        depthwise(2, 10, 64, 7),
        ConvSizes { stride: [3, 2], dilation: [2, 3], ..depthwise(1, 18, 131, 3) },
        depthwise(1, 18, 130, 3),
        ConvSizes { stride: [2; 2], ..depthwise(1, 18, 130, 3) },
        ConvSizes { stride: [7, 5], ..depthwise(1, 18, 130, 1) },
        // Kernels of more taps than are summed at once, and wider than planes.
        depthwise(1, 33, 12, 31),
        // More bundles than tasks.
        depthwise(9, 70, 4, 3),
        depthwise(2, 290, 3, 3),
        // Columns of several blocks of images, and of one image each.
        square(31, [150, 3], 7, 3),
        square(3, [1200, 2], 7, 3),
        // Columns of larger planes, for the gradient of w.
        square(5, [16, 8], 8, 3),
        ConvSizes { stride: [2; 2], padding: [1; 2], ..square(3, [12, 20], 32, 4) },
    ] {
        check_against_definition::<f32>(&shape, 2);
        on_every_instruction_set(|| {
            check_against_definition::<f32>(&shape, 1);
            check_in::<bf16, f32>(&shape, 1);
        });
    }
}

/// Numbers beside a row in memory are not multiplied, not even by zeros.
#[test]
fn infinite_channel_leaves_the_gradients_of_others_finite() {
    let shapes = [
        square(2, [3, 5], 9, 3),
        square(2, [40, 16], 5, 3),
        depthwise(2, 20, 9, 3),
        depthwise(2, 20, 14, 3),
        depthwise(2, 20, 70, 3),
    ];
    for shape in shapes {
        let ConvSizes { in_channels: channels, in_height, in_width, .. } = shape;
        let plane_len = in_height * in_width;
        let mut x = values::<f32>(shape.x_len(), 1);
        for image in x.chunks_exact_mut(channels * plane_len) {
            image[plane_len..][..plane_len].fill(f32::INFINITY);
        }
        let dy = values::<f32>(shape.y_len(), 4);
        let mut dw = vec![0.0; shape.w_len()];
        let product = ConvProduct::BackwardWeight;
        f32::convolve(&cpu(1), &shape, product, [&dy, &x], None, &mut dw);
        for (k, dw) in dw.iter().enumerate() {
            assert_eq!(dw.is_finite(), k / 9 % channels != 1, "{k} of {shape:?}");
        }
    }
}

#[test]
fn thread_count_does_not_change_a_bit() {
    for shape in [
        square(19, [5, 24], 9, 3),
        square(19, [15, 24], 7, 3),
        square(3, [15, 24], 32, 3),
        depthwise(7, 40, 9, 3),
        ConvSizes { stride: [2, 3], ..depthwise(2, 20, 50, 5) },
    ] {
        let results = [1, 2, 5].map(|threads| products_of_noise::<f32>(&shape, threads));
        assert_eq!(results[0], results[1]);
        assert_eq!(results[0], results[2]);
    }
}

/// y, dx and dw of numbers whose sums depend on the order.
fn products_of_noise<T: Convolved + Float>(shape: &ConvSizes, threads: usize) -> [Vec<T>; 3] {
    let noise = |len: usize, seed: u32| -> Vec<T> {
        let bits = (0..len as u32).map(|i| (i ^ seed).wrapping_mul(2_654_435_761));
        bits.map(|bits| T::from_f64(f64::from(bits).sqrt())).collect()
    };
    let (x, w, dy) = (noise(shape.x_len(), 1), noise(shape.w_len(), 2), noise(shape.y_len(), 3));
    let cpu = cpu(threads);
    let mut products = [dy.len(), x.len(), w.len()].map(|len| vec![T::ZERO; len]);
    let [y, dx, dw] = &mut products;
    T::convolve(&cpu, shape, ConvProduct::Forward, [&x, &w], None, y);
    T::convolve(&cpu, shape, ConvProduct::BackwardInput, [&dy, &w], None, dx);
    T::convolve(&cpu, shape, ConvProduct::BackwardWeight, [&dy, &x], None, dw);
    products
}

/// AVX2 and AVX-512 add the same products in the same order.
#[cfg(target_arch = "x86_64")]
#[test]
fn fused_instruction_sets_give_the_same_bits() {
    for shape in [
        square(3, [3, 21], 19, 3),
        square(3, [15, 24], 7, 3),
        square(2, [12, 3], 17, 5),
        square(2, [12, 10], 32, 3),
        depthwise(3, 40, 7, 3),
        ConvSizes { stride: [2, 3], ..depthwise(2, 20, 50, 5) },
    ] {
        let seen = RefCell::new(Vec::new());
        on_every_instruction_set(|| {
            let products =
                (products_of_noise::<f32>(&shape, 1), products_of_noise::<f64>(&shape, 1));
            seen.borrow_mut().push(products);
        });
        let seen = seen.into_inner();
        assert!(seen[1] == seen[2], "{shape:?}");
    }
}
