use lowtide_tensor::{DType, RunningCheck, Tensor, scale_and_check_finite, squared_norm};

use crate::alike::{assert_alike, each_float, on};
use crate::elementwise::noise;
use crate::gpu::Gpu;
use crate::storage::cpu;

#[test]
fn gradients_are_scaled_checked_and_measured_as_on_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let bad = [1.0, f32::NAN, 2.0, f32::INFINITY, f32::MAX, -3.0];
    let bad = Tensor::from_slice(&cpu(), [6], &bad).unwrap();
    let x = noise(&cpu(), "x", &[70, 31], [-2.0, 2.0]);
    let none = noise(&cpu(), "none", &[0, 3], [-2.0, 2.0]);
    gpu.in_every_order(|| {
        for (dtype, tolerance) in each_float([1e-6, 1e-14]) {
            let [x, none, bad] = [&x, &none, &bad].map(|x| x.to_dtype(dtype).unwrap());
            // The largest value, whose double is not finite.
            let largest = match dtype {
                DType::F16 => 65504.0,
                DType::F64 => f64::MAX,
                _ => 3e38,
            };
            let most = Tensor::full(&cpu(), [2], dtype, largest).unwrap();
            for scale in [1.0, 2.0, 0.25, 1.0 / 3.0] {
                let inputs = [&x, &none, &bad, &most];
                let name = format!("scale {scale} {dtype}");
                assert_alike(&gpu.device(), &name, &inputs, tolerance, |inputs| {
                    let [x, none, bad, most] = inputs else { unreachable!() };
                    let (device, norm) = (x.device(), squared_norm(x.device(), [x, none])?);
                    let part = x.narrow(1, 3, 9)?.transpose(0, 1)?;
                    let norm_of_part = squared_norm(device, [&part])?;
                    let mut good = [part, none.clone()];
                    let flag = scale_and_check_finite(device, &mut good, scale)?;
                    let mut all = [x.clone(), most.clone()];
                    let of_overflow = scale_and_check_finite(device, &mut all, scale)?;
                    let found = scale_and_check_finite(device, [&mut bad.narrow(0, 1, 2)?], scale)?;
                    Ok(vec![norm, norm_of_part, flag, of_overflow, found])
                });
            }
        }
    });
}

#[test]
fn overflow_is_that_of_the_stored_type() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    for (dtype, is_finite) in [(DType::F16, false), (DType::BF16, true), (DType::F64, true)] {
        let mut x = Tensor::full(&device, [3], dtype, 40_000.0).unwrap();
        let flag = scale_and_check_finite(&device, [&mut x], 2.0).unwrap();
        assert_eq!(flag.item::<f32>().unwrap() == 0.0, is_finite, "{dtype}");
    }
}

#[test]
fn norm_of_a_long_gradient_has_more_parts_than_a_grid() {
    let Some(gpu) = Gpu::take() else { return };
    let x = noise(&cpu(), "x", &[300_001], [-2.0, 2.0]);
    assert_alike(&gpu.device(), "norm", &[&x], 1e-9, |inputs| {
        Ok(vec![squared_norm(inputs[0].device(), inputs)?])
    });
}

/// Tensors of two types, some transposed, and too many for one launch. One tensor is longer than a
/// tile, and its squares have the largest number of partial sums.
fn many(device: &lowtide_tensor::Device) -> Vec<Tensor> {
    let one = |index: usize| {
        let dtype = if index % 60 == 59 { DType::F16 } else { DType::F32 };
        let len = if index == 7 { 100_001 } else { index * 37 % 700 };
        let x = noise(&cpu(), &index.to_string(), &[3, len], [-2.0, 2.0]);
        let x = on(device, &x.to_dtype(dtype).unwrap());
        if index % 100 == 99 { x.transpose(0, 1).unwrap() } else { x }
    };
    (0..520).map(one).collect()
}

#[test]
fn tensors_of_one_launch_have_the_bits_of_one_after_the_other() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    gpu.in_every_order(|| {
        let (mut all, mut each) = (many(&device), many(&device));
        let mut check = RunningCheck::new(&device, each.len()).unwrap();
        for (index, x) in each.iter_mut().enumerate() {
            check.add(index, x, 0.3).unwrap();
        }
        let flag = scale_and_check_finite(&device, all.iter_mut(), 0.3).unwrap();
        assert_eq!(flag.item_assuming(9.0_f32).unwrap(), 0.0);
        for (x, y) in all.iter().zip(&each) {
            assert_eq!(x.to_bytes().unwrap(), y.to_bytes().unwrap());
        }
        let norm = squared_norm(&device, &all).unwrap().item_assuming(0.0_f64).unwrap();
        let (is_finite, expected) = check.read().unwrap();
        assert_eq!((is_finite, norm.to_bits()), (true, expected.to_bits()));
        let last = all.last_mut().unwrap();
        last.mul_scalar_(f64::INFINITY).unwrap();
        let flag = scale_and_check_finite(&device, all.iter_mut(), 1.0).unwrap();
        assert_eq!(flag.item_assuming(9.0_f32).unwrap(), 1.0);
    });
}

#[test]
fn tensors_that_share_memory_are_scaled_each_in_its_turn() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let x = Tensor::full(&device, [8], DType::F32, 1.0).unwrap();
    let mut all = [x.narrow(0, 0, 5).unwrap(), x.narrow(0, 3, 5).unwrap()];
    let flag = scale_and_check_finite(&device, &mut all, 2.0).unwrap();
    assert_eq!(flag.item_assuming(9.0_f32).unwrap(), 0.0);
    assert_eq!(x.to_vec::<f32>().unwrap(), [2.0, 2.0, 2.0, 4.0, 4.0, 2.0, 2.0, 2.0]);
}
