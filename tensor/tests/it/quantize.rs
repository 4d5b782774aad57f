//! Weights in few bits against bitsandbytes and gguf, and their products against products of the
//! decoded matrix.

use lowtide_allocator::{Action, Category};
use lowtide_tensor::{
    DType, Device, OpClass, QuantFormat, Quantized, Tensor, TensorError, TensorResult as Result,
};
use proptest::prelude::*;

use crate::common::{cpu, shared, upload};
use crate::golden::fixture;
use crate::naive::Array;

const FORMATS: [QuantFormat; 5] = [
    QuantFormat::Int8Rows,
    QuantFormat::Nf4 { double: false },
    QuantFormat::Nf4 { double: true },
    QuantFormat::Q8_0,
    QuantFormat::Q4_0,
];

const CASES: [(&str, QuantFormat); 5] = [
    ("int8", QuantFormat::Int8Rows),
    ("nf4", QuantFormat::Nf4 { double: false }),
    ("nf4_double", QuantFormat::Nf4 { double: true }),
    ("q8_0", QuantFormat::Q8_0),
    ("q4_0", QuantFormat::Q4_0),
];

fn bytes(x: &Tensor) -> Vec<u8> {
    x.to_bytes().unwrap()
}

/// The first two rows and the last.
fn some_rows(w: &Quantized, dtype: DType) -> Tensor {
    let last = w.shape()[0] - 1;
    let parts = [(0, 2), (last, 1)].map(|(first, count)| w.decode_rows(first, count, dtype));
    let [first, last] = parts.map(Result::unwrap);
    Tensor::cat(&[&first, &last], 0).unwrap()
}

#[test]
fn codes_and_values_are_those_of_the_libraries() {
    let fixture = fixture("quantize");
    let weight = &fixture["weight"];
    for (case, format) in CASES {
        let w = Quantized::encode(weight, format).unwrap();
        let specs = format.parts(*weight.shape()).unwrap();
        for (part, spec) in w.parts().iter().zip(&specs) {
            let expected = &fixture[&format!("{case}.{}", spec.name)];
            let name = format!("{case} {}", spec.name);
            if spec.name == "offset" || spec.name == "nested_scales" {
                // The mean of f32 is summed in another order.
                let [found, expected] = [part, expected].map(|x| x.to_vec::<f32>().unwrap());
                for (found, expected) in found.iter().zip(&expected) {
                    assert!((found / expected - 1.0).abs() < 1e-6, "{name} {found} {expected}");
                }
                continue;
            }
            assert!(bytes(part) == bytes(expected), "{name}");
        }
        // Parts that the reference library stored decode to the bits of that library.
        let stored = specs.iter().map(|spec| fixture[&format!("{case}.{}", spec.name)].clone());
        let stored = Quantized::from_parts(format, *weight.shape(), stored.collect()).unwrap();
        for (name, dtype) in [("float32", DType::F32), ("bfloat16", DType::BF16)] {
            if let Some(expected) = fixture.get(&format!("{case}.{name}")) {
                assert!(bytes(&some_rows(&stored, dtype)) == bytes(expected), "{case} {name}");
            }
        }
        assert_eq!(format.size_bytes(*weight.shape()).unwrap(), stored.size_bytes());
    }
    let odd = Quantized::encode(&fixture["odd.weight"], CASES[2].1).unwrap();
    assert_eq!(bytes(&odd.parts()[0]), bytes(&fixture["odd.codes"]));
    let [found, expected] =
        [&odd.decode(DType::F32).unwrap(), &fixture["odd.float32"]].map(|x| x.to_vec::<f32>());
    for (found, expected) in found.unwrap().iter().zip(expected.unwrap()) {
        assert!((found - expected).abs() <= 1e-6 * expected.abs(), "{found} {expected}");
    }
}

/// A weight with numbers of all magnitudes.
fn weight(device: &Device, dims: &[usize], dtype: DType) -> Tensor {
    upload(device, &Array::pattern(dims, 5).map(|x| x / 3.0), dtype)
}

fn largest(x: &Tensor) -> f32 {
    x.to_vec::<f32>().unwrap().into_iter().fold(0.0, |most, x| most.max(x.abs()))
}

proptest! {
    #[test]
    fn rows_and_the_whole_decode_alike(
        rows in 1..5usize, blocks in 1..4usize, odd in 0..3usize, first in 0..5usize,
    ) {
        for format in FORMATS {
            let is_free = !matches!(format, QuantFormat::Q8_0 | QuantFormat::Q4_0);
            let columns = 32 * blocks + if is_free { odd } else { 0 };
            let w = weight(shared(), &[rows, columns], DType::F32);
            let q = Quantized::encode(&w, format).unwrap();
            let whole = q.decode(DType::F64).unwrap();
            let first = first.min(rows);
            let part = q.decode_rows(first, rows - first, DType::F64).unwrap();
            prop_assert_eq!(bytes(&part), bytes(&whole.narrow(0, first, rows - first).unwrap()));
            // The error is at most half of the widest step, relative to the largest number.
            let most = largest(&w);
            let error = largest(&whole.to_dtype(DType::F32).unwrap().sub(&w).unwrap());
            prop_assert!(error <= 0.16 * most, "{:?} {} {}", format, error, most);
        }
    }
}

#[test]
fn products_are_those_of_the_decoded_matrix_for_any_threads() {
    let threads = [cpu(1), cpu(2), cpu(3)];
    // Several panels in both directions, and a single panel.
    for [rows, columns, batch] in [[600, 1024, 5], [1100, 544, 3], [7, 96, 4], [32, 32, 0]] {
        for dtype in [DType::F32, DType::BF16, DType::F64] {
            for format in FORMATS {
                let mut all = Vec::new();
                for device in &threads {
                    let w = weight(device, &[rows, columns], DType::F32);
                    let w = Quantized::encode(&w, format).unwrap();
                    let x = upload(device, &Array::pattern(&[batch, 1, columns], 2), dtype);
                    let dy = upload(device, &Array::pattern(&[batch, 1, rows], 3), dtype);
                    let bias = upload(device, &Array::pattern(&[rows], 4), dtype);
                    let decoded = w.decode(dtype).unwrap();
                    let y = x.linear_quantized(&w, Some(&bias)).unwrap();
                    let dx = dy.linear_quantized_backward(&w).unwrap();
                    assert_eq!((y.shape()[..].len(), y.shape()[2]), (3, rows));
                    let name = format!("{format:?} {dtype} {rows} {columns}");
                    let expected = x.linear(&decoded, Some(&bias)).unwrap();
                    assert!(bytes(&y) == bytes(&expected), "{name}: y");
                    assert!(bytes(&dx) == bytes(&dy.matmul(&decoded).unwrap()), "{name}: dx");
                    all.push([bytes(&y), bytes(&dx)]);
                }
                assert!(all[0] == all[1] && all[0] == all[2], "{format:?} {dtype}");
            }
        }
    }
}

/// x, a weight in 8 bits and a bias.
fn int8_operands(device: &Device, [m, k, n]: [usize; 3], dtype: DType) -> [Tensor; 3] {
    let numbers =
        |dims: &[usize], seed| upload(device, &Array::pattern(dims, seed).map(|x| x / 3.0), dtype);
    [numbers(&[m, k], 2), numbers(&[n, k], 5), numbers(&[n], 4)]
}

#[test]
fn int8_products_are_near_those_of_the_decoded_matrix_and_the_same_for_any_threads() {
    let threads = [cpu(1), cpu(2), cpu(3)];
    // Few rows and many rows of x; one and several slivers of w.
    for size in [[1, 1024, 600], [5, 544, 300], [140, 96, 70], [9, 1, 1], [3, 130, 100]] {
        for dtype in [DType::F32, DType::BF16, DType::F16, DType::F64] {
            let found = threads.each_ref().map(|device| {
                let [x, w, bias] = int8_operands(device, size, dtype);
                let w = Quantized::encode(&w, QuantFormat::Int8Rows).unwrap();
                let y = x.linear_int8(&w, Some(&bias)).unwrap();
                assert_eq!((y.dtype(), &y.shape()[..]), (dtype, &[size[0], size[2]][..]));
                let wide = |x: &Tensor| x.to_dtype(DType::F64).unwrap();
                let exact = wide(&x).linear_quantized(&w, Some(&wide(&bias))).unwrap();
                // The bound is half of a code for each element of x, and the rounding of y.
                let step = largest(&wide(&x).to_dtype(DType::F32).unwrap()) / 254.0;
                let w = w.decode(DType::F32).unwrap();
                let bound = step * largest(&w) * size[1] as f32
                    + 0.01 * largest(&y.to_dtype(DType::F32).unwrap());
                let error = wide(&y).sub(&exact).unwrap().to_dtype(DType::F32).unwrap();
                assert!(largest(&error) <= bound, "{size:?} {dtype}: {}", largest(&error));
                bytes(&y)
            });
            assert!(found[0] == found[1] && found[0] == found[2], "{size:?} {dtype}");
        }
    }
}

#[test]
fn int8_products_do_not_depend_on_how_x_lies_or_on_other_rows() {
    let device = shared();
    for dtype in [DType::F32, DType::BF16] {
        let [x, w, bias] = int8_operands(device, [24, 100, 50], dtype);
        let w = Quantized::encode(&w, QuantFormat::Int8Rows).unwrap();
        let y = x.linear_int8(&w, Some(&bias)).unwrap();
        let turned = x.transpose(0, 1).unwrap().copied().unwrap().transpose(0, 1).unwrap();
        let wide = Tensor::cat(&[&x, &x], 1).unwrap().narrow(1, 0, 100).unwrap();
        let cube = x.reshape([2, 3, 4, 100]).unwrap();
        for x in [turned, wide, cube] {
            assert!(
                bytes(&x.linear_int8(&w, Some(&bias)).unwrap()) == bytes(&y),
                "{:?}",
                x.shape()
            );
        }
        for (first, count) in [(0, 1), (3, 4), (7, 17)] {
            let part = x.narrow(0, first, count).unwrap().linear_int8(&w, Some(&bias)).unwrap();
            assert!(bytes(&part) == bytes(&y.narrow(0, first, count).unwrap()), "{first}");
        }
        let row = x.narrow(0, 2, 1).unwrap().expand([3, 100]).unwrap();
        let rows = row.linear_int8(&w, None).unwrap();
        let one = row.narrow(0, 0, 1).unwrap().linear_int8(&w, None).unwrap();
        assert!(bytes(&rows) == bytes(&one).repeat(3));
    }
}

#[test]
fn special_rows_of_int8_products_spoil_only_themselves() {
    let [x, w, bias] = int8_operands(shared(), [9, 20, 7], DType::F32);
    let w = Quantized::encode(&w, QuantFormat::Int8Rows).unwrap();
    let mut values = x.to_vec::<f32>().unwrap();
    values[20..40].fill(0.0);
    values[45] = f32::NAN;
    values[79] = f32::NEG_INFINITY;
    let special = Tensor::from_slice(shared(), [9, 20], &values).unwrap();
    let [found, expected] =
        [&special, &x].map(|x| x.linear_int8(&w, Some(&bias)).unwrap().to_vec::<f32>().unwrap());
    assert_eq!(found[7..14], bias.to_vec::<f32>().unwrap());
    assert!(found[14..28].iter().all(|y| y.is_nan()), "{found:?}");
    assert_eq!((&found[..7], &found[28..]), (&expected[..7], &expected[28..]));
    for [m, k, n] in [[0, 20, 7], [3, 0, 7], [3, 20, 0], [0, 0, 0]] {
        let [x, w, bias] = int8_operands(shared(), [m, k, n], DType::F32);
        let w = Quantized::encode(&w, QuantFormat::Int8Rows).unwrap();
        let y = x.linear_int8(&w, Some(&bias)).unwrap();
        assert_eq!(y.shape()[..], [m, n]);
        if k == 0 {
            assert!(bytes(&y) == bytes(&bias).repeat(m));
        }
    }
}

#[test]
fn what_int8_products_do_not_take_is_an_error() {
    let device = shared();
    let [x, w, bias] = int8_operands(device, [2, 64, 4], DType::F32);
    for format in &FORMATS[1..] {
        let w = Quantized::encode(&w, *format).unwrap();
        let found = x.linear_int8(&w, None);
        assert!(matches!(found, Err(TensorError::Format { found, .. }) if found == *format));
    }
    let int8 = |w: &Tensor| Quantized::encode(w, QuantFormat::Int8Rows).unwrap();
    let w = int8(&w);
    let narrow = x.narrow(1, 0, 63).unwrap();
    assert!(matches!(narrow.linear_int8(&w, None), Err(TensorError::Shape { .. })));
    let wide = bias.to_dtype(DType::F64).unwrap();
    assert!(matches!(x.linear_int8(&w, Some(&wide)), Err(TensorError::DType { .. })));
    let short = bias.narrow(0, 0, 3).unwrap();
    assert!(matches!(x.linear_int8(&w, Some(&short)), Err(TensorError::Shape { .. })));
    let integers = Tensor::zeros(device, [2, 64], DType::I64).unwrap();
    assert!(matches!(integers.linear_int8(&w, None), Err(TensorError::DType { .. })));
    let there = Tensor::zeros(&cpu(1), [2, 64], DType::F32).unwrap();
    assert!(matches!(there.linear_int8(&w, None), Err(TensorError::Device { .. })));
    // A sum of more products might not fit 32 bits.
    for (inputs, fits) in [(132_104, true), (132_105, false)] {
        let [x, w, _] = int8_operands(device, [1, inputs, 1], DType::F32);
        assert_eq!(x.linear_int8(&int8(&w), None).is_ok(), fits, "{inputs}");
    }
}

fn moves(device: &Device, run: impl FnOnce()) -> Vec<(Action, Category, usize, usize)> {
    let last = device.allocator().history().records().last().map(|record| record.sequence);
    run();
    let history = device.allocator().history();
    let records = history.records();
    let since = records.iter().filter(|record| Some(record.sequence) > last);
    since.map(|r| (r.action, r.category, r.offset, r.requested_bytes)).collect()
}

#[test]
fn a_simulated_device_takes_the_same_memory_and_a_panel_at_most() {
    let device = cpu(2);
    let sim = device.simulate();
    for format in FORMATS {
        let run = |device: &Device| {
            moves(device, || {
                let w = Tensor::zeros(device, [2048, 1024], DType::F32).unwrap();
                let w = Quantized::encode(&w, format).unwrap();
                let x = Tensor::zeros(device, [3, 1024], DType::F32).unwrap();
                let y = x.linear_quantized(&w, None).unwrap();
                y.linear_quantized_backward(&w).unwrap();
            })
        };
        let found = run(&device);
        assert_eq!(run(&sim), found, "{format:?}");
        let scratch = found.iter().filter(|(_, category, ..)| *category == Category::Workspace);
        let most = scratch.map(|(.., bytes)| *bytes).max().unwrap();
        assert_eq!(most, 4 << 19, "{format:?}");
    }
    // There are four panels of rows and four of columns for each format. Panels that only repeat
    // are counted.
    let products = sim.simulated_work(OpClass::Product);
    assert_eq!(products.launch_count, 8 * FORMATS.len() as u64);
    assert_eq!(products.flops, (2 * 2 * 3 * 2048 * 1024 * FORMATS.len()) as f64);
}

#[test]
fn what_does_not_fit_is_an_error() {
    let device = shared();
    let w = weight(device, &[4, 40], DType::F32);
    for format in [QuantFormat::Q8_0, QuantFormat::Q4_0] {
        assert!(matches!(Quantized::encode(&w, format), Err(TensorError::Shape { .. })));
    }
    let integers = Tensor::zeros(device, [4, 64], DType::I64).unwrap();
    let found = Quantized::encode(&integers, QuantFormat::Int8Rows);
    assert!(matches!(found, Err(TensorError::DType { .. })));
    let q = Quantized::encode(&w, QuantFormat::Nf4 { double: true }).unwrap();
    let x = weight(device, &[2, 41], DType::F32);
    assert!(matches!(x.linear_quantized(&q, None), Err(TensorError::Shape { .. })));
    assert!(matches!(x.linear_quantized_backward(&q), Err(TensorError::Shape { .. })));
    assert!(matches!(q.decode_rows(3, 2, DType::F32), Err(TensorError::Index { .. })));
    assert!(matches!(q.decode(DType::I32), Err(TensorError::DType { .. })));
    let bias = weight(device, &[4], DType::F64);
    let x = weight(device, &[2, 40], DType::F32);
    assert!(matches!(x.linear_quantized(&q, Some(&bias)), Err(TensorError::DType { .. })));
    let mut parts = q.parts().to_vec();
    parts.swap(0, 1);
    let found = Quantized::from_parts(q.format(), *q.shape(), parts);
    assert!(matches!(found, Err(TensorError::Shape { .. })));
    let found = Quantized::from_parts(q.format(), *q.shape(), q.parts()[..4].to_vec());
    assert!(matches!(found, Err(TensorError::Shape { .. })));
    // A vector is refused: it is not a matrix.
    let found = Quantized::encode(&weight(device, &[64], DType::F32), QuantFormat::Int8Rows);
    assert!(matches!(found, Err(TensorError::Shape { .. })));
}

#[test]
fn matrices_without_elements_are_quantised_too() {
    for format in FORMATS {
        for shape in [[3, 0], [0, 64]] {
            let w = Tensor::zeros(shared(), shape, DType::F32).unwrap();
            let q = Quantized::encode(&w, format).unwrap();
            assert_eq!(q.decode(DType::F32).unwrap().shape()[..], shape, "{format:?}");
        }
    }
}

#[test]
fn zeros_stay_zeros_and_nan_spoils_its_block_at_most() {
    for format in FORMATS {
        let zeros = Tensor::zeros(shared(), [2, 64], DType::F32).unwrap();
        let q = Quantized::encode(&zeros, format).unwrap();
        let found = q.decode(DType::F32).unwrap().to_vec::<f32>().unwrap();
        assert!(found.iter().all(|&x| x == 0.0), "{format:?}");
        let mut values = vec![1.0_f32; 128];
        values[3] = f32::NAN;
        let w = Tensor::from_slice(shared(), [2, 64], &values).unwrap();
        let q = Quantized::encode(&w, format).unwrap();
        let found = q.decode(DType::F32).unwrap().to_vec::<f32>().unwrap();
        let near = |x: &f32| (x - 1.0).abs() < 0.1;
        assert!(found[64..].iter().all(near), "{format:?}");
    }
}
