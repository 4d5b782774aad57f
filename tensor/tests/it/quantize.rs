//! Weights in few bits beside bitsandbytes and gguf, and their products beside those of the decoded
//! matrix.

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
                // A mean of f32, summed in another order.
                let [found, expected] = [part, expected].map(|x| x.to_vec::<f32>().unwrap());
                for (found, expected) in found.iter().zip(&expected) {
                    assert!((found / expected - 1.0).abs() < 1e-6, "{name} {found} {expected}");
                }
                continue;
            }
            assert!(bytes(part) == bytes(expected), "{name}");
        }
        // What the library stored is read to its bits.
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

/// Numbers of all sizes.
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
            // Half of the widest step, of the largest number.
            let most = largest(&w);
            let error = largest(&whole.to_dtype(DType::F32).unwrap().sub(&w).unwrap());
            prop_assert!(error <= 0.16 * most, "{:?} {} {}", format, error, most);
        }
    }
}

#[test]
fn products_are_those_of_the_decoded_matrix_for_any_threads() {
    let threads = [cpu(1), cpu(2), cpu(3)];
    // Several panels both ways, and one.
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
    // Four panels of rows and four of columns, for each format: those that only repeat are counted.
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
    // Neither a matrix.
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
