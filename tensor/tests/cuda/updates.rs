use lowtide_allocator::cuda::pretend::Turn;
use lowtide_tensor::{
    AdamUpdate, DType, Device, Float, KnownFormula, KnownNorms, NormFormula, RandomKey, Rounding,
    SgdUpdate, StateRange, Tensor, TensorResult as Result, TensorUpdate, UpdateFormula,
    reserve_updates, update_all_,
};

use crate::alike::{assert_alike, each_float, on};
use crate::elementwise::noise;
use crate::gpu::Gpu;
use crate::storage::cpu;

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

/// Types of parameters and of their gradients.
const TYPES: [[DType; 2]; 8] = [
    [DType::F64, DType::F64],
    [DType::F32, DType::F32],
    [DType::F32, DType::F16],
    [DType::F32, DType::BF16],
    [DType::F16, DType::F16],
    [DType::F16, DType::F32],
    [DType::BF16, DType::BF16],
    [DType::BF16, DType::F32],
];

/// Largest distance of values: 0 if the kernels run on the processor, which computes in the same
/// order. A device fuses products and sums, so values may differ by some roundings.
fn tolerance(gpu: &Turn, dtype: DType) -> f64 {
    let (_, of_device) =
        each_float([1e-6, 1e-14]).into_iter().find(|(of, _)| *of == dtype).unwrap();
    if gpu.pretend.get().is_some() { 0.0 } else { of_device }
}

/// Noise of a type, on the processor.
fn noise_of(name: &str, shape: &[usize], bounds: [f64; 2], dtype: DType) -> Tensor {
    noise(&cpu(), name, shape, bounds).to_dtype(dtype).unwrap()
}

/// Parameter, gradient and states of a tensor; the second state is never negative.
fn operands(name: &str, shape: &[usize], [dtype, gradient]: [DType; 2]) -> [Tensor; 4] {
    let of =
        |part: &str, low: f64, dtype| noise_of(&format!("{name} {part}"), shape, [low, 1.0], dtype);
    let wide = dtype.computed();
    [of("p", -1.0, dtype), of("g", -1.0, gradient), of("m", -1.0, wide), of("v", 0.0, wide)]
}

/// Updates all tensors, with 0, 1 or 2 states each. The order of `operands` is that of
/// [`operands`].
fn update_all(
    device: &Device,
    operands: &[Tensor],
    states: usize,
    rounding: impl Fn(usize) -> Rounding,
) -> Result<()> {
    let mut sets: Vec<Vec<Tensor>> = operands.chunks(4).map(<[_]>::to_vec).collect();
    macro_rules! update {
        ($formula:expr, $states:literal) => {{
            let updates = sets.iter_mut().enumerate().map(|(index, set)| {
                let [parameter, gradient, rest @ ..] = &mut set[..] else { unreachable!() };
                TensorUpdate {
                    parameter,
                    gradient,
                    states: &mut rest[..$states],
                    scalars: &[],
                    formula: $formula,
                    rounding: rounding(index),
                }
            });
            update_all_::<_, $states, 0>(device, &mut updates.collect::<Vec<_>>())
        }};
    }
    match states {
        0 => update!(DESCENT, 0),
        1 => update!(DESCENT, 1),
        _ => update!(MOMENTS, 2),
    }
}

#[test]
fn updates_of_many_tensors_are_those_of_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let shapes: [&[usize]; 7] = [&[33, 5], &[1], &[0, 2], &[600], &[1024], &[1025], &[2100]];
    gpu.in_every_order(|| {
        for types in TYPES {
            let named = shapes.iter().map(|shape| operands(&format!("{shape:?}"), shape, types));
            let tensors: Vec<Tensor> = named.flatten().collect();
            let inputs: Vec<&Tensor> = tensors.iter().collect();
            for states in 0..3 {
                let name = format!("{types:?} {states} states");
                let tolerance = tolerance(&gpu, types[0]);
                assert_alike(&gpu.device(), &name, &inputs, tolerance, |inputs| {
                    update_all(inputs[0].device(), inputs, states, |_| Rounding::Nearest)?;
                    Ok(Vec::new())
                });
            }
        }
    });
}

#[test]
fn rounding_is_drawn_as_on_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let shapes: [&[usize]; 4] = [&[33, 5], &[5], &[1027], &[2, 600]];
    let key = |index: usize| Rounding::Stochastic(RandomKey::new(7).op(["a", "b"][index % 2]));
    gpu.in_every_order(|| {
        for types in [[DType::BF16; 2], [DType::BF16, DType::F32]] {
            let named = shapes.iter().map(|shape| operands(&format!("{shape:?}"), shape, types));
            let mut tensors: Vec<Tensor> = named.flatten().collect();
            let bad = [f32::NAN, f32::INFINITY, f32::MAX, -f32::MAX, 0.0];
            let bad = Tensor::from_slice(&cpu(), [5], &bad).unwrap();
            tensors[4 + 1] = bad.to_dtype(types[1]).unwrap();
            let inputs: Vec<&Tensor> = tensors.iter().collect();
            for states in 0..3 {
                let name = format!("{types:?} {states} states");
                let tolerance = tolerance(&gpu, DType::BF16);
                assert_alike(&gpu.device(), &name, &inputs, tolerance, |inputs| {
                    update_all(inputs[0].device(), inputs, states, key)?;
                    Ok(Vec::new())
                });
            }
        }
    });
}

#[test]
fn operands_may_lie_in_any_way() {
    let Some(gpu) = Gpu::take() else { return };
    gpu.in_every_order(|| {
        for types in TYPES {
            let [p, g, m, v] = operands("strided", &[7, 30, 11], types);
            let inputs = [&p, &g, &m, &v];
            let tolerance = tolerance(&gpu, types[0]);
            for rounding in [Rounding::Nearest, Rounding::Stochastic(RandomKey::new(3))] {
                if rounding != Rounding::Nearest && types[0] != DType::BF16 {
                    continue;
                }
                let name = format!("{types:?} {rounding:?}");
                assert_alike(&gpu.device(), &name, &inputs, tolerance, |inputs| {
                    let [p, g, m, v] = inputs else { unreachable!() };
                    let device = p.device();
                    // Each operand has other strides; the shape is [5, 30, 7].
                    let p = p.narrow(2, 4, 5)?.transpose(0, 2)?;
                    let row = g.narrow(2, 1, 5)?.transpose(0, 2)?.narrow(2, 3, 1)?;
                    let g = row.expand([5, 30, 7])?;
                    let m = m.narrow(2, 0, 5)?.transpose(0, 2)?;
                    let v = v.narrow(2, 6, 5)?.transpose(0, 2)?;
                    for states in 0..3 {
                        let set = [&p, &g, &m, &v].map(Tensor::clone);
                        update_all(device, &set, states, |_| rounding)?;
                    }
                    Ok(Vec::new())
                });
            }
        }
    });
}

#[test]
fn model_of_many_tensors_takes_few_launches() {
    let Some(gpu) = Gpu::pretend() else { return };
    let types = [DType::F32; 2];
    let of_one = |index: usize| operands(&index.to_string(), &[index % 13 + 1], types);
    // A launch is limited by its room for pointers or, without states, for lengths.
    for (states, count, launches) in [(0, 83, 2), (1, 82, 1), (1, 328, 4), (2, 82, 1), (2, 83, 2)] {
        let tensors: Vec<Tensor> = (0..count).flat_map(of_one).collect();
        let inputs: Vec<&Tensor> = tensors.iter().collect();
        assert_alike(&gpu.device(), "update", &inputs, 0.0, |inputs| {
            let before = gpu.pretend.calls("cuLaunchKernel");
            update_all(inputs[0].device(), inputs, states, |_| Rounding::Nearest)?;
            let found = gpu.pretend.calls("cuLaunchKernel") - before;
            let is_there = inputs[0].device().as_cuda().is_some();
            assert_eq!(found, if is_there { launches } else { 0 }, "{states} {count}");
            Ok(Vec::new())
        });
    }
}

#[test]
fn tensors_of_other_constants_have_launches_of_their_own() {
    let Some(gpu) = Gpu::take() else { return };
    let tensors: Vec<Tensor> = (0..6)
        .flat_map(|index| operands(&index.to_string(), &[50 + index], [DType::F32; 2]))
        .collect();
    let inputs: Vec<&Tensor> = tensors.iter().collect();
    let tolerance = tolerance(&gpu, DType::F32);
    assert_alike(&gpu.device(), "update", &inputs, tolerance, |inputs| {
        let device = inputs[0].device();
        let mut sets: Vec<Vec<Tensor>> = inputs.chunks(4).map(<[_]>::to_vec).collect();
        let updates = sets.iter_mut().enumerate().map(|(index, set)| {
            let [parameter, gradient, rest @ ..] = &mut set[..] else { unreachable!() };
            let along_g = [0.25, 0.5, f64::NAN][index % 3];
            TensorUpdate {
                parameter,
                gradient,
                states: &mut rest[..1],
                scalars: &[],
                formula: SgdUpdate { along_g, ..DESCENT },
                rounding: Rounding::Nearest,
            }
        });
        update_all_::<_, 1, 0>(device, &mut updates.collect::<Vec<_>>())?;
        Ok(Vec::new())
    });
}

/// Gradients of many magnitudes, some of them not finite.
fn gradients_of_many_sizes(name: &str, len: usize, dtype: DType) -> Tensor {
    let power = noise(&cpu(), &format!("{name} power"), &[len], [-9.0, 0.0]);
    let mut power: Vec<f32> = power.to_vec().unwrap();
    for (index, power) in power.iter_mut().enumerate() {
        let sign = if index % 3 == 0 { -1.0 } else { 1.0 };
        *power = match index % 200 {
            7 if len > 300 => f32::NAN,
            9 if len > 800 => f32::INFINITY,
            11 => 0.0,
            _ => sign * 10f32.powf(*power),
        };
    }
    Tensor::from_slice(&cpu(), [len], &power).unwrap().to_dtype(dtype).unwrap()
}

#[test]
fn states_of_8_bits_are_those_of_the_processor_to_the_bit() {
    let Some(gpu) = Gpu::take() else { return };
    let lens = [1, 255, 256, 257, 700, 1000];
    gpu.in_every_order(|| {
        for types in TYPES {
            let mut tensors = Vec::new();
            for len in lens {
                let name = format!("{len}");
                tensors.push(noise_of(&name, &[len], [-1.0, 1.0], types[0]));
                tensors.push(gradients_of_many_sizes(&name, len, types[1]));
                for _ in 0..2 {
                    tensors.push(Tensor::quantized_state(&cpu(), len).unwrap());
                }
            }
            let inputs: Vec<&Tensor> = tensors.iter().collect();
            let nearest = |_: usize| Rounding::Nearest;
            let drawn = |_: usize| Rounding::Stochastic(RandomKey::new(1));
            for states in 1..3 {
                let name = format!("{types:?} {states} states");
                assert_alike(&gpu.device(), &name, &inputs, 0.0, |inputs| {
                    for step in 0..3 {
                        let device = inputs[0].device();
                        match types[0] == DType::BF16 && step == 1 {
                            true => update_all(device, inputs, states, drawn)?,
                            false => update_all(device, inputs, states, nearest)?,
                        }
                    }
                    Ok(Vec::new())
                });
            }
        }
    });
}

/// Norms with a formula that devices know.
#[derive(Clone, Copy)]
struct Both;

impl NormFormula<0, 2> for Both {
    const NAME: &'static str = "both";
    const FLOPS: f64 = 0.0;

    fn known(&self) -> Option<KnownNorms> {
        Some(KnownNorms::ParameterAndGradient)
    }

    fn element<T: Float>(&self, p: T, g: T, _: [T; 0]) -> [T; 2] {
        [p, g]
    }
}

/// LAMB's formula, with a decay beside the direction.
#[derive(Clone, Copy)]
struct Direction;

impl Direction {
    const CONSTANTS: [f64; 9] = [0.75, 0.25, 0.875, 0.125, 1.5, 2.0, 1e-3, 0.5, 0.0];
}

impl NormFormula<2, 2> for Direction {
    const NAME: &'static str = "direction";
    const FLOPS: f64 = 15.0;

    fn state_ranges(&self) -> [StateRange; 2] {
        [StateRange::Signed, StateRange::Positive]
    }

    fn known(&self) -> Option<KnownNorms> {
        Some(KnownNorms::Lamb(Self::CONSTANTS))
    }

    fn element<T: Float>(&self, p: T, g: T, [m, v]: [T; 2]) -> [T; 2] {
        let [keep1, take1, keep2, take2, scale, root_scale, eps, decay, _] =
            Self::CONSTANTS.map(T::from_f64);
        let m = keep1 * m + take1 * g;
        let v = keep2 * v + take2 * g * g;
        [p, scale * m / (v.sqrt() * root_scale + eps) + decay * p]
    }
}

#[test]
fn norms_are_those_of_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    gpu.in_every_order(|| {
        for types in TYPES {
            let wide = if types[0] == DType::F64 { 1e-13 } else { 1e-6 };
            for shape in [&[0, 3][..], &[1], &[33, 5], &[40, 30]] {
                let [p, g, m, v] = operands("norms", shape, types);
                let name = format!("{types:?} {shape:?}");
                assert_alike(&gpu.device(), &name, &[&p, &g, &m, &v], wide, |inputs| {
                    let [p, g, m, v] = inputs else { unreachable!() };
                    let states = [m.clone(), v.clone()];
                    let whole =
                        [p.update_norms(g, &[], Both)?, p.update_norms(g, &states, Direction)?];
                    let last = shape.len() - 1;
                    let turned = |x: &Tensor| x.transpose(0, last)?.narrow(last, 0, x.shape()[0]);
                    let [p, g, m, v] = [turned(p)?, turned(g)?, turned(m)?, turned(v)?];
                    let other = p.update_norms(&g.contiguous()?, &[m, v], Direction)?;
                    Ok([&whole[..], &[other]].concat())
                });
            }
        }
    });
}

#[test]
fn norms_of_long_tensors_and_of_states_in_8_bits_are_those_of_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let [p, g, ..] = operands("long", &[300_001], [DType::F32; 2]);
    assert_alike(&gpu.device(), "long", &[&p, &g], 1e-6, |inputs| {
        Ok(vec![inputs[0].update_norms(&inputs[1], &[], Both)?])
    });
    for types in TYPES {
        let wide = if types[0] == DType::F64 { 1e-13 } else { 1e-6 };
        for len in [1, 256, 1000] {
            let here = cpu();
            let [p, g, ..] = operands("narrow", &[len], types);
            let [mut p, g] = [p, g].map(|x| on(&here, &x));
            let state = || Tensor::quantized_state(&here, len).unwrap();
            let mut states = [state(), state()];
            p.update_(&g, &mut states, [], MOMENTS, Rounding::Nearest).unwrap();
            let [m, v] = &states;
            let name = format!("{types:?} {len}");
            assert_alike(&gpu.device(), &name, &[&p, &g, m, v], wide, |inputs| {
                let [p, g, m, v] = inputs else { unreachable!() };
                Ok(vec![p.update_norms(g, &[m.clone(), v.clone()], Direction)?])
            });
        }
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

impl NormFormula<0, 1> for Own {
    const NAME: &'static str = "own_norms";
    const FLOPS: f64 = 0.0;

    fn element<T: Float>(&self, p: T, _: T, _: [T; 0]) -> [T; 1] {
        [p]
    }
}

#[test]
fn formula_that_no_device_knows_has_no_kernel_and_changes_nothing() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let mut p = Tensor::ones(&device, [3], DType::F32).unwrap();
    let g = Tensor::ones(&device, [3], DType::F32).unwrap();
    let error = p.update_(&g, &mut [], [], Own, Rounding::Nearest).unwrap_err();
    assert_eq!(error.to_string(), "own: has no kernel for cuda");
    let error = p.update_norms(&g, &[], Own).unwrap_err();
    assert_eq!(error.to_string(), "own_norms: has no kernel for cuda");
    assert_eq!(p.to_vec::<f32>().unwrap(), [1.0; 3]);
}

#[test]
fn update_that_was_reserved_loads_nothing() {
    let Some(gpu) = Gpu::pretend() else { return };
    let device = gpu.device();
    let loads =
        || ["cuModuleLoadDataEx", "cuModuleGetFunction"].map(|name| gpu.pretend.calls(name));
    for dtype in [DType::F32, DType::BF16] {
        let mut p = Tensor::ones(&device, [3, 5], dtype).unwrap();
        let g = p.copied().unwrap();
        let wide = || Tensor::ones(&device, [3, 5], DType::F32).unwrap();
        let [mut m, v] = [wide(), wide()];
        let mut narrow = [Tensor::quantized_state(&device, 15).unwrap()];
        let before = loads();
        reserve_updates(&device, dtype).unwrap();
        let reserved = loads();
        // The modules of f32 were loaded with the device.
        let modules = u64::from(dtype != DType::F32);
        assert_eq!(reserved[0] - before[0], modules, "{before:?} {reserved:?}");
        assert!(reserved[1] > before[1], "{before:?} {reserved:?}");
        p.update_(&g, std::array::from_mut(&mut m), [], DESCENT, Rounding::Nearest).unwrap();
        p.update_(&g, &mut narrow, [], DESCENT, Rounding::Nearest).unwrap();
        let turned = g.transpose(0, 1).unwrap().contiguous().unwrap().transpose(0, 1).unwrap();
        let before = loads();
        p.update_(&turned, &mut [m, v], [], MOMENTS, Rounding::Nearest).unwrap();
        assert_eq!(loads(), before);
        assert_eq!(loads()[0], reserved[0]);
    }
}

/// A formula that devices know, or `None`.
#[derive(Clone, Copy)]
struct Perhaps(Option<KnownFormula>);

impl UpdateFormula<0, 0> for Perhaps {
    const NAME: &'static str = "perhaps";
    const FLOPS: f64 = 4.0;

    fn known(&self) -> Option<KnownFormula> {
        self.0
    }

    fn element<T: Float>(&self, _: [T; 0], p: T, g: T, _: [T; 0]) -> (T, [T; 0]) {
        (p - g, [])
    }
}

#[test]
fn update_that_the_device_can_do_in_part_changes_nothing() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let known = Perhaps(Some(KnownFormula::Sgd(DESCENT)));
    let ones = |dtype| Tensor::ones(&device, [3], dtype).unwrap();
    // The last formula has two states.
    for (dtype, formula) in [
        (DType::F32, Perhaps(None)),
        (DType::F16, Perhaps(None)),
        (DType::F32, Perhaps(Some(KnownFormula::Adam(MOMENTS)))),
    ] {
        let [mut first, mut second] = [ones(DType::F32), ones(dtype)];
        let [g, h] = [ones(DType::F32), ones(dtype)];
        let (scalars, rounding) = (&[][..], Rounding::Nearest);
        let mut updates = [
            TensorUpdate {
                parameter: &mut first,
                gradient: &g,
                states: &mut [],
                scalars,
                formula: known,
                rounding,
            },
            TensorUpdate {
                parameter: &mut second,
                gradient: &h,
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
