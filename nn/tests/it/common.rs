use std::collections::BTreeSet;
use std::error::Error;

use lowtide_autograd::{Attempt, Gradients, Pass, Var};
use lowtide_nn::optim::{
    Adadelta, AdadeltaOptions, Adafactor, AdafactorOptions, Adagrad, AdagradOptions, Adam,
    AdamOptions, Adamax, AdamaxOptions, Amsgrad, AmsgradOptions, Averaged, Lamb, LambOptions, Lion,
    LionOptions, Momentum, Muon, MuonOptions, Nadam, NadamOptions, Optimizer, RULES, Radam,
    RadamOptions, RmsProp, RmsPropOptions, Rprop, RpropOptions, Sgd, SgdOptions, Spread, Stateful,
};
use lowtide_nn::{Module, NnResult as Result, Nodes, Parameter, Parameters, Visitor};
use lowtide_tensor::{CpuOptions, Device, RandomKey, Tensor};

pub(crate) type Outcome = std::result::Result<(), Box<dyn Error>>;

pub(crate) fn cpu() -> Device {
    let options =
        CpuOptions { budget_bytes: Some(64 << 20), threads: Some(2), ..Default::default() };
    Device::cpu(options).expect("64 MiB of addresses")
}

pub(crate) const KEY: RandomKey = RandomKey::new(3);

/// Numbers from `[-1, 1)` that depend only on `name`.
pub(crate) fn values(name: &str, len: usize) -> Vec<f64> {
    let key = KEY.op(name);
    (0..len as u64).map(|i| 2.0 * f64::from(key.uniform(i)) - 1.0).collect()
}

pub(crate) fn f64s<const N: usize>(device: &Device, name: &str, shape: [usize; N]) -> Tensor {
    let values = values(name, shape.iter().product());
    Tensor::from_slice(device, shape, &values).expect("memory for a small tensor")
}

pub(crate) fn f32s<const N: usize>(device: &Device, name: &str, shape: [usize; N]) -> Tensor {
    let values: Vec<f32> =
        values(name, shape.iter().product()).into_iter().map(|x| x as f32).collect();
    Tensor::from_slice(device, shape, &values).expect("memory for a small tensor")
}

/// A module of two parameters that computes nothing.
#[derive(Clone)]
pub(crate) struct Pair(pub(crate) [Parameter; 2]);

impl Pair {
    pub(crate) fn new(device: &Device) -> Self {
        Pair([f64s(device, "a", [2, 3]), f64s(device, "b", [5])].map(Parameter::new))
    }

    pub(crate) fn f32(device: &Device) -> Self {
        Pair([f32s(device, "a", [2, 3]), f32s(device, "b", [5])].map(Parameter::new))
    }
}

impl Nodes for Pair {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        let [a, b] = &mut self.0;
        visitor.field("a", a);
        visitor.field("b", b);
    }
}

/// A module of named parameters that computes nothing.
#[derive(Clone)]
pub(crate) struct Named(pub(crate) Vec<(String, Parameter)>);

impl Nodes for Named {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        self.0.iter_mut().for_each(|(name, parameter)| visitor.field(name.as_str(), parameter));
    }
}

/// Gradients of `Σ parameter · weight`, which are the weights.
pub(crate) fn gradients_are(pairs: &[(&Parameter, Tensor)]) -> Result<Gradients> {
    let attempt = Attempt::new();
    for (parameter, weights) in pairs {
        let pass = Pass::train(KEY, &attempt);
        let product = parameter.var(&pass)?.mul(pass.constant(weights.clone()))?;
        pass.backward(product.sum_all()?)?;
    }
    Ok(attempt.into_gradients())
}

/// The bits of each element, without an allocation on the device.
pub(crate) fn bits(tensor: &Tensor) -> Vec<u64> {
    if let Ok(wide) = tensor.to_vec::<f64>() {
        return wide.into_iter().map(f64::to_bits).collect();
    }
    let values = tensor.to_vec::<f32>().expect("a float with values");
    values.into_iter().map(|x| u64::from(x.to_bits())).collect()
}

pub(crate) fn all_bits(model: &mut dyn Parameters) -> Vec<(String, Vec<u64>)> {
    let mut all = Vec::new();
    model.visit(&mut |name, parameter| all.push((name.to_owned(), bits(parameter.value()))));
    all
}

pub(crate) fn names(model: &mut dyn Parameters) -> Vec<String> {
    let mut names = Vec::new();
    model.visit(&mut |name, _| names.push(name.to_owned()));
    names
}

/// The bits of all states, in order.
pub(crate) fn state_bits(optimizer: &mut dyn Optimizer) -> Vec<Vec<u64>> {
    let mut all = Vec::new();
    optimizer.visit_state(&mut |tensor| all.push(bits(tensor)));
    all
}

/// Gives every parameter and every buffer of floats the type f64.
pub(crate) fn widen(model: &mut dyn Parameters) {
    model.set_dtype(lowtide_tensor::DType::F64).expect("memory");
}

/// `Σ y · weight` over the module's output y. The weights depend only on the shape of y.
pub(crate) fn weighted_sum(model: &dyn Module, pass: &Pass, x: Tensor) -> Result<Var> {
    let y = model.forward(pass, pass.constant(x))?;
    let weights = values("output", y.value().element_count());
    let weights = Tensor::from_slice(y.value().device(), *y.shape(), &weights)?;
    Ok(y.mul(pass.constant(weights))?.sum_all()?)
}

/// An optimizer of each kind by name, with all its options in use.
pub(crate) fn optimizers() -> Vec<(&'static str, Box<dyn Stateful>)> {
    let plain = SgdOptions { weight_decay: 0.1, ..SgdOptions::new(0.1) };
    let momentum = SgdOptions { momentum: 0.9, dampening: 0.2, ..plain };
    let nesterov = SgdOptions { dampening: 0.0, momentum_kind: Momentum::Nesterov, ..momentum };
    let sgd = |options| Box::new(Sgd::new(options).expect("valid options"));
    let adam = |options| Box::new(Adam::new(options).expect("valid options"));
    let rms_prop = RmsPropOptions { weight_decay: 0.1, ..Default::default() };
    let full = RmsPropOptions { momentum: 0.9, spread: Spread::Variance, ..rms_prop };
    let rms = |options| Box::new(RmsProp::new(options).expect("valid options"));
    let adagrad = AdagradOptions { initial_sum: 0.1, weight_decay: 0.1, ..Default::default() };
    let adafactor = AdafactorOptions { weight_decay: 0.1, ..Default::default() };
    let averaged = Averaged::new(*adam(AdamOptions::default()), 0.9).expect("a share");
    let lion = LionOptions { weight_decay: 0.1, ..Default::default() };
    // The decay is so fast that RAdam uses the mean square after a few updates.
    let quick = AdamOptions { betas: [0.9, 0.95], ..AdamOptions::adamw() };
    let (adadelta, adamax) = (AdadeltaOptions::default(), AdamaxOptions::default());
    let (nadam, rprop) = (NadamOptions::default(), RpropOptions::default());
    vec![
        ("adadelta", Box::new(Adadelta::new(adadelta).expect("valid options"))),
        ("adamax", Box::new(Adamax::new(adamax).expect("valid options"))),
        ("amsgrad", Box::new(Amsgrad::new(AmsgradOptions(quick)).expect("valid options"))),
        ("nadam", Box::new(Nadam::new(nadam).expect("valid options"))),
        ("radam", Box::new(Radam::new(RadamOptions(quick)).expect("valid options"))),
        ("rprop", Box::new(Rprop::new(rprop).expect("valid options"))),
        ("rms_prop", rms(rms_prop)),
        ("rms_prop with all", rms(full)),
        ("adagrad", Box::new(Adagrad::new(adagrad).expect("valid options"))),
        ("lion", Box::new(Lion::new(lion).expect("valid options"))),
        ("lamb", Box::new(Lamb::new(LambOptions::default()).expect("valid options"))),
        ("adafactor", Box::new(Adafactor::new(adafactor).expect("valid options"))),
        ("muon", Box::new(Muon::new(MuonOptions::default()).expect("valid options"))),
        ("adam, averaged", Box::new(averaged)),
        ("sgd", sgd(plain)),
        ("sgd with momentum", sgd(momentum)),
        ("sgd with nesterov", sgd(nesterov)),
        ("adam", adam(AdamOptions::default())),
        ("adamw", adam(AdamOptions::adamw())),
    ]
}

/// Checks that each update rule is among `cases`: its name, or a text that begins with it and goes
/// on after a space or a comma.
#[track_caller]
pub(crate) fn check_every_rule<'a>(cases: impl IntoIterator<Item = &'a str>) {
    let found: BTreeSet<_> =
        cases.into_iter().filter_map(|case| case.split([' ', ',']).next()).collect();
    let missing: Vec<_> = RULES.iter().filter(|&rule| !found.contains(rule)).collect();
    assert!(missing.is_empty(), "no case of {missing:?}");
}
