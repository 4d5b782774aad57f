use lowtide_tensor::{
    AdamUpdate, DType, Float, KnownFormula, Rounding, SgdUpdate, Tensor, TensorUpdate,
    UpdateFormula, reserve_updates, scale_and_check_finite, squared_norm, update_all_,
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

const DESCENT: SgdUpdate =
    SgdUpdate { weight_decay: 0.125, keep: 0.5, take: 0.75, along_g: 0.25, along_m: 0.0625 };

/// Adam with both kinds of decay.
const MOMENTS: AdamUpdate = AdamUpdate {
    betas: [0.75, 0.875],
    coupled: 0.125,
    keep: 0.5,
    rate: 0.25,
    root_scale: 2.0,
    eps: 1e-3,
};

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
                    0 => update!(DESCENT, 0),
                    1 => update!(DESCENT, 1),
                    _ => update!(MOMENTS, 2),
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
    let mut p = Tensor::ones(&device, [3], DType::F32).unwrap();
    let g = Tensor::ones(&device, [3], DType::F32).unwrap();
    let error = p.update_(&g, &mut [], [], Own, Rounding::Nearest).unwrap_err();
    assert_eq!(error.to_string(), "own: has no kernel for cuda");
    assert_eq!(p.to_vec::<f32>().unwrap(), [1.0; 3]);
}

#[test]
fn update_that_was_reserved_loads_nothing() {
    let Some(gpu) = Gpu::pretend() else { return };
    let device = gpu.device();
    let mut p = Tensor::ones(&device, [3], DType::F32).unwrap();
    let g = p.copied().unwrap();
    let [mut m, v] = [p.copied().unwrap(), p.copied().unwrap()];
    let loads =
        || ["cuModuleLoadDataEx", "cuModuleGetFunction"].map(|name| gpu.pretend.calls(name));
    let before = loads();
    reserve_updates(&device).unwrap();
    let reserved = loads();
    // The modules were loaded with the device.
    assert!(reserved[0] == before[0] && reserved[1] > before[1], "{before:?} {reserved:?}");
    p.update_(&g, std::array::from_mut(&mut m), [], DESCENT, Rounding::Nearest).unwrap();
    p.update_(&g, &mut [m, v], [], MOMENTS, Rounding::Nearest).unwrap();
    assert_eq!(loads(), reserved);
}

/// A formula that devices know, or do not.
#[derive(Clone, Copy)]
struct Perhaps(Option<SgdUpdate>);

impl UpdateFormula<0, 0> for Perhaps {
    const NAME: &'static str = "perhaps";
    const FLOPS: f64 = 4.0;

    fn known(&self) -> Option<KnownFormula> {
        self.0.map(KnownFormula::Sgd)
    }

    fn element<T: Float>(&self, _: [T; 0], p: T, g: T, _: [T; 0]) -> (T, [T; 0]) {
        (p - g, [])
    }
}

#[test]
fn update_that_the_device_can_do_in_part_changes_nothing() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let known = Perhaps(Some(DESCENT));
    let ones = |dtype| Tensor::ones(&device, [3], dtype).unwrap();
    let turned = Tensor::ones(&device, [3, 2], DType::F32).unwrap().select(1, 0).unwrap();
    for (second, formula) in
        [(ones(DType::F16), known), (ones(DType::F32), Perhaps(None)), (turned, known)]
    {
        let mut first = ones(DType::F32);
        let (mut second, gradients) = (second.clone(), [ones(DType::F32), ones(second.dtype())]);
        let [g, h] = &gradients;
        let (gradient, scalars, rounding) = (g, &[][..], Rounding::Nearest);
        let mut updates = [
            TensorUpdate {
                parameter: &mut first,
                gradient,
                states: &mut [],
                scalars,
                formula: known,
                rounding,
            },
            TensorUpdate {
                parameter: &mut second,
                gradient: h,
                states: &mut [],
                scalars,
                formula,
                rounding,
            },
        ];
        let error = update_all_::<_, 0, 0>(&device, &mut updates).unwrap_err();
        assert_eq!(error.to_string(), "perhaps: has no kernel for cuda");
        assert_eq!(first.to_vec::<f32>().unwrap(), [1.0; 3]);
    }
}

#[test]
fn gradients_of_which_some_cannot_be_scaled_stay_as_they_are() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let [mut plain, mut half] =
        [DType::F32, DType::F16].map(|dtype| Tensor::ones(&device, [3], dtype).unwrap());
    let error = scale_and_check_finite(&device, [&mut plain, &mut half], 2.0).unwrap_err();
    assert_eq!(error.to_string(), "scale_and_check_finite: has no kernel for cuda");
    assert_eq!(plain.to_vec::<f32>().unwrap(), [1.0; 3]);
}
