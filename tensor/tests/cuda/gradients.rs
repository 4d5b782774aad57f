use lowtide_tensor::{
    Float, KnownFormula, Rounding, Tensor, TensorUpdate, UpdateFormula, scale_and_check_finite,
    squared_norm, update_all_,
};

use crate::alike::assert_alike;
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
        for scale in [1.0, 2.0, 0.25] {
            let inputs = [&x, &none, &bad];
            assert_alike(&gpu.device(), "scale", &inputs, 1e-6, |inputs| {
                let [x, none, bad] = inputs else { unreachable!() };
                let (device, norm) = (x.device(), squared_norm(x.device(), [x, none])?);
                let part = x.narrow(1, 3, 9)?.transpose(0, 1)?;
                let norm_of_part = squared_norm(device, [&part])?;
                let mut good = [part, none.clone()];
                let flag = scale_and_check_finite(device, &mut good, scale)?;
                let mut all = [x.clone(), bad.narrow(0, 4, 2)?];
                let of_overflow = scale_and_check_finite(device, &mut all, scale)?;
                let found = scale_and_check_finite(device, [&mut bad.narrow(0, 1, 2)?], scale)?;
                Ok(vec![norm, norm_of_part, flag, of_overflow, found])
            });
        }
    });
}

#[test]
fn norm_of_a_long_gradient_has_more_parts_than_a_grid() {
    let Some(gpu) = Gpu::take() else { return };
    let x = noise(&cpu(), "x", &[300_001], [-2.0, 2.0]);
    assert_alike(&gpu.device(), "norm", &[&x], 1e-9, |inputs| {
        Ok(vec![squared_norm(inputs[0].device(), inputs)?])
    });
}

/// Stochastic gradient descent with momentum.
#[derive(Clone, Copy)]
struct Descent;

impl UpdateFormula<1, 0> for Descent {
    const NAME: &'static str = "descent";
    const FLOPS: f64 = 9.0;

    fn known(&self) -> Option<KnownFormula> {
        let (weight_decay, keep, take) = (0.125, 0.5, 0.75);
        Some(KnownFormula::Sgd { weight_decay, keep, take, along_g: 0.25, along_m: 0.0625 })
    }

    fn element<T: Float>(&self, _: [T; 0], p: T, g: T, [m]: [T; 1]) -> (T, [T; 1]) {
        let [decay, keep, take, along_g, along_m] =
            [0.125, 0.5, 0.75, 0.25, 0.0625].map(T::from_f64);
        let g = g + decay * p;
        let m = keep * m + take * g;
        (p - (along_g * g + along_m * m), [m])
    }
}

impl UpdateFormula<0, 0> for Descent {
    const NAME: &'static str = "plain descent";
    const FLOPS: f64 = 4.0;

    fn known(&self) -> Option<KnownFormula> {
        let (weight_decay, keep, take) = (0.125, 0.0, 1.0);
        Some(KnownFormula::Sgd { weight_decay, keep, take, along_g: 0.25, along_m: 0.0 })
    }

    fn element<T: Float>(&self, _: [T; 0], p: T, g: T, _: [T; 0]) -> (T, [T; 0]) {
        let [decay, rate] = [0.125, 0.25].map(T::from_f64);
        (p - rate * (g + decay * p), [])
    }
}

/// Adam with both kinds of decay.
#[derive(Clone, Copy)]
struct Moments;

impl UpdateFormula<2, 0> for Moments {
    const NAME: &'static str = "moments";
    const FLOPS: f64 = 15.0;

    fn known(&self) -> Option<KnownFormula> {
        let (betas, coupled, keep) = ([0.75, 0.875], 0.125, 0.5);
        Some(KnownFormula::Adam { betas, coupled, keep, rate: 0.25, root_scale: 2.0, eps: 1e-3 })
    }

    fn element<T: Float>(&self, _: [T; 0], p: T, g: T, [m, v]: [T; 2]) -> (T, [T; 2]) {
        let of = T::from_f64;
        let g = g + of(0.125) * p;
        let m = of(0.75) * m + of(0.25) * g;
        let v = of(0.875) * v + of(0.125) * g * g;
        (of(0.5) * p - of(0.25) * m / (v.sqrt() * of(2.0) + of(1e-3)), [m, v])
    }
}

/// A formula that no device knows.
#[derive(Clone, Copy)]
struct Own;

impl UpdateFormula<0, 0> for Own {
    const NAME: &'static str = "own";
    const FLOPS: f64 = 1.0;

    fn element<T: Float>(&self, _: [T; 0], p: T, g: T, _: [T; 0]) -> (T, [T; 0]) {
        (p - g, [])
    }
}

#[test]
fn updates_of_many_tensors_are_those_of_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let shapes: [&[usize]; 4] = [&[33, 5], &[1], &[0, 2], &[600]];
    let tensors: Vec<Tensor> = (0..16)
        .map(|at| {
            // Second moments are not negative.
            let low = if at % 4 == 3 { 0.0 } else { -1.0 };
            noise(&cpu(), &format!("{at}"), shapes[at / 4], [low, 1.0])
        })
        .collect();
    let inputs: Vec<&Tensor> = tensors.iter().collect();
    gpu.in_every_order(|| {
        let run = |states: usize| {
            assert_alike(&gpu.device(), "update", &inputs, 1e-6, |inputs| {
                let device = inputs[0].device();
                let mut sets: Vec<Vec<Tensor>> = inputs.chunks(4).map(<[_]>::to_vec).collect();
                macro_rules! update {
                    ($formula:expr, $states:literal) => {{
                        let updates = sets.iter_mut().map(|set| {
                            let [parameter, gradient, rest @ ..] = &mut set[..] else {
                                unreachable!()
                            };
                            TensorUpdate {
                                parameter,
                                gradient,
                                states: &mut rest[..$states],
                                scalars: &[],
                                formula: $formula,
                                rounding: Rounding::Nearest,
                            }
                        });
                        update_all_::<_, $states, 0>(device, &mut updates.collect::<Vec<_>>())?
                    }};
                }
                match states {
                    0 => update!(Descent, 0),
                    1 => update!(Descent, 1),
                    _ => update!(Moments, 2),
                }
                Ok(Vec::new())
            });
        };
        (0..3).for_each(run);
    });
}

#[test]
fn formula_that_no_device_knows_has_no_kernel_and_changes_nothing() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let mut p = Tensor::ones(&device, [3], lowtide_tensor::DType::F32).unwrap();
    let g = Tensor::ones(&device, [3], lowtide_tensor::DType::F32).unwrap();
    let error = p.update_(&g, &mut [], [], Own, Rounding::Nearest).unwrap_err();
    assert_eq!(error.to_string(), "own: has no kernel for cuda");
    assert_eq!(p.to_vec::<f32>().unwrap(), [1.0; 3]);
}
