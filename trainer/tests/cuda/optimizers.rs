//! Every optimizer on the device compared with the processor, in all types that the optimizer
//! supports.

use lowtide_autograd::Gradients;
use lowtide_nn::optim::{
    AdadeltaOptions, AdafactorOptions, AdagradOptions, Adam, AdamOptions, AdamaxOptions, Amsgrad,
    AmsgradOptions, Averaged, LambOptions, LionOptions, Momentum, MuonOptions, NadamOptions,
    Optimizer, PerParameter, RULES, RadamOptions, RmsPropOptions, RpropOptions, Sgd, SgdOptions,
    Spread, Stateful, UpdateRule,
};
use lowtide_nn::{Nodes, Parameter, Visitor};
use lowtide_tensor::{CpuOptions, DType, Device, RandomKey, Tensor};

use crate::gpu::Gpu;

/// Largest difference of the results of device and processor.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Apart {
    /// No difference: each element has its own formula, in the same order of operations.
    Nothing,
    /// This relative difference in f32: sums or products have another order.
    UpTo(f64),
}

type Case = (&'static str, Apart, Box<dyn Stateful>);

/// A variant of the optimizers: plain, with the rounding that is only for bf16, or with 8-bit
/// states.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Plain,
    Stochastic,
    EightBit,
}

fn made<R: UpdateRule>(rule: R, kind: Kind) -> Box<dyn Stateful>
where
    PerParameter<R>: Stateful,
{
    let optimizer = PerParameter::new(rule).expect("in range");
    Box::new(match kind {
        Kind::Plain => optimizer,
        Kind::Stochastic => optimizer.with_stochastic_rounding(RandomKey::new(11)),
        Kind::EightBit => optimizer.with_8bit_states(),
    })
}

/// All optimizers, with the options that take separate paths in a kernel.
fn optimizers(kind: Kind) -> Vec<Case> {
    let plain = SgdOptions { weight_decay: 0.1, ..SgdOptions::new(0.1) };
    let momentum = SgdOptions { momentum: 0.9, dampening: 0.2, ..plain };
    let nesterov = SgdOptions { dampening: 0.0, momentum_kind: Momentum::Nesterov, ..momentum };
    let rms_prop = RmsPropOptions { weight_decay: 0.1, ..Default::default() };
    let variance = RmsPropOptions { spread: Spread::Variance, ..rms_prop };
    let with_momentum = RmsPropOptions { momentum: 0.9, ..rms_prop };
    let with_all = RmsPropOptions { momentum: 0.9, ..variance };
    let adagrad = AdagradOptions { initial_sum: 0.1, weight_decay: 0.1, ..Default::default() };
    let adadelta = AdadeltaOptions { weight_decay: 0.1, ..Default::default() };
    let adamax = AdamaxOptions { weight_decay: 0.1, ..Default::default() };
    let adafactor = AdafactorOptions { weight_decay: 0.1, ..Default::default() };
    let lion = LionOptions { weight_decay: 0.1, ..Default::default() };
    // Betas so small that RAdam's mean square is known after a few updates.
    let quick = AdamOptions { betas: [0.9, 0.95], ..AdamOptions::adamw() };
    let classical = MuonOptions { momentum_kind: Momentum::Classical, ..Default::default() };
    let averaged = Averaged::new(made(AdamOptions::default(), kind), 0.9).expect("a share");
    let nothing = Apart::Nothing;
    vec![
        ("sgd", nothing, made(plain, kind)),
        ("sgd with momentum", nothing, made(momentum, kind)),
        ("sgd with nesterov", nothing, made(nesterov, kind)),
        ("adam", nothing, made(AdamOptions::default(), kind)),
        ("adamw", nothing, made(AdamOptions::adamw(), kind)),
        ("amsgrad", nothing, made(AmsgradOptions(quick), kind)),
        ("nadam", nothing, made(NadamOptions::default(), kind)),
        ("radam", nothing, made(RadamOptions(quick), kind)),
        ("adamax", nothing, made(adamax, kind)),
        ("adagrad", nothing, made(adagrad, kind)),
        ("adadelta", nothing, made(adadelta, kind)),
        ("rms_prop", nothing, made(rms_prop, kind)),
        ("rms_prop with momentum", nothing, made(with_momentum, kind)),
        ("rms_prop with variance", nothing, made(variance, kind)),
        ("rms_prop with both", nothing, made(with_all, kind)),
        ("rprop", nothing, made(RpropOptions::default(), kind)),
        ("lion", nothing, made(lion, kind)),
        ("adam, averaged", nothing, Box::new(averaged)),
        ("lamb", Apart::UpTo(1e-6), made(LambOptions::default(), kind)),
        ("adafactor", Apart::UpTo(1e-5), made(adafactor, kind)),
        ("muon", Apart::UpTo(1e-4), made(MuonOptions::default(), kind)),
        ("classical muon", Apart::UpTo(1e-4), made(classical, kind)),
    ]
}

/// Parameters with names.
struct Model(Vec<(String, Parameter)>);

impl Nodes for Model {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        self.0.iter_mut().for_each(|(name, parameter)| visitor.field(name.as_str(), parameter));
    }
}

/// Numbers around 0, the same on every device.
fn numbers(device: &Device, name: &str, shape: &[usize], dtype: DType) -> Tensor {
    let here = Device::cpu(CpuOptions { threads: Some(1), ..Default::default() }).expect("memory");
    let mut x = Tensor::empty(&here, shape, DType::F32).expect("memory");
    x.normal_(RandomKey::new(5).op(name), 0.0, 0.5).expect("floats");
    let bytes = x.to_dtype(dtype).expect("floats").to_bytes().expect("memory");
    Tensor::from_bytes(device, shape, dtype, &bytes).expect("memory")
}

/// Shapes of parameters. Some are large enough for 8-bit states.
const SHAPES: [&[usize]; 6] = [&[33, 5], &[1], &[17], &[5, 40], &[3, 4, 2], &[4_100]];

/// The parameters and the optimizer's state after some updates.
fn updated(
    device: &Device,
    optimizer: &mut dyn Stateful,
    [dtype, gradient]: [DType; 2],
) -> Vec<Tensor> {
    let parameter = |(index, shape): (usize, &&[usize])| {
        let name = format!("p{index}");
        let value = numbers(device, &name, shape, dtype);
        (name, Parameter::new(value))
    };
    let mut model = Model(SHAPES.iter().enumerate().map(parameter).collect());
    for step in 0..4 {
        let mut gradients = Gradients::default();
        for (name, parameter) in &model.0 {
            // This parameter has no gradient in the first step.
            if name == "p2" && step == 0 {
                continue;
            }
            let name = format!("{name} {step}");
            let value = numbers(device, &name, parameter.value().shape(), gradient);
            gradients.insert(parameter.id(), value);
        }
        optimizer.prepare(&mut model, gradients).expect("kernels").commit().expect("kernels");
    }
    let mut found: Vec<Tensor> = model.0.iter().map(|(_, p)| p.value().clone()).collect();
    optimizer.visit_state(&mut |state| found.push(state.clone()));
    found
}

fn wide(x: &Tensor) -> Vec<f64> {
    let here = Device::cpu(CpuOptions { threads: Some(1), ..Default::default() }).expect("memory");
    let bytes = x.to_bytes().expect("memory");
    let x = Tensor::from_bytes(&here, *x.shape(), x.dtype(), &bytes).expect("memory");
    x.to_dtype(DType::F64).expect("floats").to_vec().expect("memory")
}

fn assert_alike(name: &str, found: &Tensor, expected: &Tensor, apart: Apart) {
    let [a, b] = [found, expected].map(|x| x.to_bytes().expect("memory"));
    assert_eq!((found.shape(), found.dtype()), (expected.shape(), expected.dtype()), "{name}");
    if a == b {
        return;
    }
    let Apart::UpTo(of_f32) = apart else { panic!("{name} is not the same to the bit") };
    let allowed = match found.dtype() {
        DType::F64 => 1e-12,
        DType::F32 => of_f32,
        DType::F16 => 2f64.powi(-9),
        DType::BF16 => 2f64.powi(-6),
        other => panic!("{name}: {other} is not the same"),
    };
    for (index, (a, b)) in wide(found).into_iter().zip(wide(expected)).enumerate() {
        let is_near = (a - b).abs() <= allowed * b.abs().max(0.1);
        assert!(is_near, "{name}[{index}]: {a}, not {b}");
    }
}

fn check(gpu: &Gpu, kind: Kind, types: [DType; 2]) {
    let here = Device::cpu(CpuOptions { threads: Some(1), ..Default::default() }).expect("memory");
    let device = gpu.device();
    for ((name, apart, mut there), (_, _, mut beside)) in
        optimizers(kind).into_iter().zip(optimizers(kind))
    {
        let found = updated(&device, &mut *there, types);
        let expected = updated(&here, &mut *beside, types);
        assert_eq!(found.len(), expected.len(), "{name}");
        for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let name = format!("{name} {types:?} {kind:?}, tensor {index}");
            assert_alike(&name, found, expected, apart);
        }
    }
}

#[test]
fn every_update_rule_is_in_the_list() {
    let cases = optimizers(Kind::Plain);
    let is_listed =
        |rule: &&str| cases.iter().any(|(name, ..)| name.split(' ').next() == Some(rule));
    let missing: Vec<_> = RULES.into_iter().filter(|rule| !is_listed(rule)).collect();
    assert!(missing.is_empty(), "no case of {missing:?}");
}

#[test]
fn every_optimizer_updates_as_on_the_processor_in_every_type() {
    let Some(gpu) = Gpu::take() else { return };
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        check(&gpu, Kind::Plain, [dtype, dtype]);
        if dtype != dtype.computed() {
            check(&gpu, Kind::Plain, [dtype, dtype.computed()]);
        }
    }
}

#[test]
fn states_in_8_bits_and_drawn_rounding_are_those_of_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    check(&gpu, Kind::EightBit, [DType::F32; 2]);
    check(&gpu, Kind::EightBit, [DType::BF16; 2]);
    check(&gpu, Kind::Stochastic, [DType::BF16; 2]);
}

/// Number of launches in a committed update of `count` parameters.
fn launches(gpu: &Gpu, optimizer: &mut dyn Optimizer, count: usize) -> u64 {
    let device = gpu.device();
    let parameter = |index: usize| {
        let name = format!("p{index}");
        let value = numbers(&device, &name, &[index % 7 + 1, 3], DType::F32);
        (name, Parameter::new(value))
    };
    let mut model = Model((0..count).map(parameter).collect());
    let mut gradients = Gradients::default();
    for (name, parameter) in &model.0 {
        let value = numbers(&device, name, parameter.value().shape(), DType::F32);
        gradients.insert(parameter.id(), value);
    }
    let update = optimizer.prepare(&mut model, gradients).expect("kernels");
    let before = gpu.pretend.calls("cuLaunchKernel");
    update.commit().expect("kernels");
    gpu.pretend.calls("cuLaunchKernel") - before
}

#[test]
fn update_of_all_parameters_is_few_launches() {
    let Some(gpu) = Gpu::pretend() else { return };
    // ResNet-50 has 161 parameter tensors; GPT-2 with 124 million weights has 148.
    for (count, expected) in [(1, 1), (82, 1), (148, 2), (161, 2)] {
        let mut sgd = Sgd::new(SgdOptions { momentum: 0.9, ..SgdOptions::new(0.1) }).expect("good");
        let mut adam = Adam::new(AdamOptions::default()).expect("good");
        assert_eq!(launches(&gpu, &mut sgd, count), expected, "{count}");
        assert_eq!(launches(&gpu, &mut adam, count), expected, "{count}");
    }
    let mut amsgrad = Amsgrad::new(AmsgradOptions::default()).expect("good");
    assert_eq!(launches(&gpu, &mut amsgrad, 161), 3);
}
