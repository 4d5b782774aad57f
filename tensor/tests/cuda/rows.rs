use lowtide_tensor::{DType, Dropout, PadMode, RandomKey, RotaryPairs, Tensor};

use crate::alike::{assert_alike, each_float, on};
use crate::elementwise::noise;
use crate::gpu::Gpu;
use crate::storage::cpu;

#[test]
fn softmax_and_its_gradients_are_those_of_the_processor_in_every_type() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    gpu.in_every_order(|| {
        for (dtype, tolerance) in each_float([4e-6, 1e-14]) {
            for (shape, axis) in [
                (vec![3, 300], 1),
                (vec![4, 7, 5], 1),
                (vec![6, 2], 0),
                (vec![0, 3], 1),
                // Lines that share a warp, a line of a whole block, and a line that exceeds the
                // registers.
                (vec![37, 64], 1),
                (vec![2, 1104], 1),
                (vec![1, 9001], 1),
            ] {
                let [x, dy] = ["x", "dy"]
                    .map(|name| noise(&cpu(), name, &shape, [-6.0, 6.0]).to_dtype(dtype).unwrap());
                let name = format!("{dtype} {shape:?}");
                let sums = 1.0 + shape[axis] as f64 / 500.0;
                assert_alike(&device, &name, &[&x, &dy], tolerance * sums, |operands| {
                    let [x, dy] = operands else { unreachable!("as given") };
                    let (y, log) = (x.softmax(axis)?, x.log_softmax(axis)?);
                    let dx = dy.softmax_backward(&y, axis)?;
                    let of_log = dy.log_softmax_backward(&log, axis)?;
                    let mut in_place = x.copied()?;
                    in_place.softmax_(axis)?;
                    let mut over_dy = dy.copied()?;
                    over_dy.softmax_backward_(&y, axis)?;
                    Ok(vec![y, log, dx, of_log, in_place, over_dy])
                });
            }
        }
    });
}

/// If one y is nearly 1, its dy and the sum of products cancel. dy is so large that dx is near 1.
#[test]
fn gradients_of_rows_that_one_element_fills_are_those_of_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    gpu.in_every_order(|| {
        for (dtype, tolerance) in each_float([4e-6, 1e-14]) {
            let of = |row: [f32; 4]| {
                Tensor::from_slice(&cpu(), [1, 4], &row).unwrap().to_dtype(dtype).unwrap()
            };
            let (x, dy) = (of([10.0, 0.0, -3.0, -0.5]), of([5.51e4, 3.13e4, -1.07e4, 2.23e4]));
            assert_alike(&device, &format!("{dtype}"), &[&x, &dy], tolerance, |operands| {
                let [x, dy] = operands else { unreachable!("as given") };
                Ok(vec![dy.softmax_backward(&x.softmax(1)?, 1)?])
            });
        }
    });
}

#[test]
fn rows_that_are_not_finite_give_what_the_processor_gives() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let (low, high, nan) = (f32::NEG_INFINITY, f32::INFINITY, f32::NAN);
    let rows = [[low; 3], [high, 0.0, 1.0], [0.0, nan, 1.0], [low, 0.5, 1.0], [high; 3]];
    let x = Tensor::from_slice(&cpu(), [5, 3], rows.as_flattened()).unwrap();
    assert_alike(&device, "corners", &[&x], 4e-6, |operands| {
        let x = &operands[0];
        Ok(vec![x.softmax(1)?, x.log_softmax(1)?, x.softmax(0)?])
    });
}

#[test]
fn what_dropout_takes_out_is_what_it_takes_out_on_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    gpu.in_every_order(|| {
        for (dtype, tolerance) in each_float([2e-7, 1e-15]) {
            for (probability, first) in [(0.3, 0), (0.5, 7), (0.0, 2), (1.0, 1)] {
                let x = noise(&cpu(), "x", &[5, 67], [-2.0, 2.0]).to_dtype(dtype).unwrap();
                let dropout = Dropout { probability, key: RandomKey::new(3), first };
                let name = format!("{dtype} {probability} {first}");
                assert_alike(&device, &name, &[&x], tolerance, |operands| {
                    let x = &operands[0];
                    let turned = x.transpose(0, 1)?.dropout(dropout)?;
                    let in_place = x.copied()?;
                    in_place.narrow(1, 3, 11)?.dropout_(dropout)?;
                    Ok(vec![x.dropout(dropout)?, turned, in_place])
                });
            }
        }
    });
}

#[test]
fn pairs_are_turned_as_on_the_processor_in_every_type() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    gpu.in_every_order(|| {
        for (dtype, tolerance) in each_float([4e-7, 1e-15]) {
            let of = |name: &str, shape: &[usize]| {
                noise(&cpu(), name, shape, [-1.0, 1.0]).to_dtype(dtype).unwrap()
            };
            let inputs = [of("x", &[2, 5, 3, 10]), of("cos", &[5, 4]), of("sin", &[5, 4])];
            let inputs = inputs.each_ref();
            for pairs in [RotaryPairs::Interleaved, RotaryPairs::HalfSplit] {
                let name = format!("{dtype} {pairs:?}");
                assert_alike(&device, &name, &inputs, tolerance, |operands| {
                    let [x, cos, sin] = operands else { unreachable!("as given") };
                    // Heads interleaved in memory, and one after the other.
                    let mut turned = x.copied()?.permute(&[0, 2, 1, 3])?;
                    turned.rotary_(cos, sin, pairs)?;
                    let mut plain = x.permute(&[0, 2, 1, 3])?.contiguous()?;
                    plain.rotary_backward_(cos, sin, pairs)?;
                    Ok(vec![turned, plain])
                });
            }
        }
    });
}

#[test]
fn parts_are_put_together_as_on_the_processor_in_every_type() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let types = [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I64, DType::U8];
    gpu.in_every_order(|| {
        for dtype in types {
            let of = |name: &str, shape: &[usize]| {
                noise(&cpu(), name, shape, [0.0, 9.0]).to_dtype(dtype).unwrap()
            };
            let inputs = [of("a", &[3, 2, 5]), of("b", &[3, 0, 5]), of("c", &[5, 7, 3])];
            let inputs = inputs.each_ref();
            assert_alike(&device, &dtype.to_string(), &inputs, 0.0, |operands| {
                let [a, b, c] = operands else { unreachable!("as given") };
                let c = c.permute(&[2, 1, 0])?;
                Ok(vec![
                    Tensor::cat(&[a, b, &c], 1)?,
                    Tensor::cat(&[a, a], 0)?,
                    Tensor::cat(&[a, a], 2)?,
                    Tensor::stack(&[a, a], 1)?,
                ])
            });
        }
    });
    let x = noise(&device, "x", &[2], [0.0, 1.0]);
    assert_eq!(Tensor::cat(&[&x, &on(&device, &x)], 0).unwrap().shape()[0], 4);
}

#[test]
fn moves_along_dimensions_are_those_of_the_processor_in_every_type() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let modes = [PadMode::Constant(3.0), PadMode::Reflect, PadMode::Replicate, PadMode::Circular];
    gpu.in_every_order(|| {
        for dtype in [DType::F32, DType::F64, DType::BF16, DType::I64, DType::U8] {
            let x = noise(&cpu(), "x", &[3, 5, 4], [0.0, 9.0]).to_dtype(dtype).unwrap();
            assert_alike(&device, &dtype.to_string(), &[&x], 0.0, |operands| {
                let x = operands[0].permute(&[1, 0, 2])?;
                let moved = [
                    x.flip(&[0, 2])?,
                    x.roll(1, -2)?,
                    x.roll(0, 7)?,
                    x.repeat(&[2, 1, 3])?,
                    x.repeat_interleave(1, 2)?,
                ];
                let padded = modes.map(|mode| x.pad(&[[2, 1], [0, 2], [1, 0]], mode));
                let padded = padded.into_iter().collect::<Result<Vec<_>, _>>()?;
                Ok(moved.into_iter().chain(padded).collect())
            });
        }
    });
}

#[test]
fn sequences_are_those_of_the_processor_in_every_type() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let integers = [DType::I64, DType::I32, DType::U8, DType::Bool].map(|dtype| (dtype, 0.0));
    for (dtype, tolerance) in each_float([2e-7, 1e-15]).into_iter().chain(integers) {
        let some = noise(&cpu(), "x", &[1], [0.0, 1.0]);
        assert_alike(&device, &dtype.to_string(), &[&some], tolerance, |operands| {
            let device = operands[0].device();
            let range = Tensor::arange(device, -1.5..9.0, 0.7, dtype)?;
            let between = Tensor::linspace(device, [2.0, -3.0], 301, dtype)?;
            let one = Tensor::linspace(device, [2.0, -3.0], 1, dtype)?;
            // Ranges to the ends of the integers, and beyond.
            let far = Tensor::linspace(device, [-1e19, 1e19], 301, dtype)?;
            Ok(vec![range, between, one, far, Tensor::eye(device, 5, 7, dtype)?])
        });
    }
}
