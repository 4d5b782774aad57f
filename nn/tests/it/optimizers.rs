//! Optimizers against their formulas, element by element, in f64.

use std::collections::BTreeSet;
use std::path::Path;

use lowtide_autograd::Attempt;
use lowtide_nn::optim::{
    Adadelta, AdadeltaOptions, Adagrad, AdagradOptions, Adam, AdamOptions, Adamax, AdamaxOptions,
    Amsgrad, AmsgradOptions, Lion, LionOptions, Momentum, Nadam, NadamOptions, Optimizer,
    PerParameter, RULES, Radam, RadamOptions, RmsProp, RmsPropOptions, Rprop, RpropOptions,
    Scheduled, Sgd, SgdOptions, Spread, Stateful, UpdateRule, WeightDecay,
};
use lowtide_nn::{NnError, NnResult as Result, Parameters};
use lowtide_tensor::Tensor;

use crate::common::{
    Named, Outcome, Pair, all_bits, bits, check_every_rule, cpu, f64s, gradients_are, optimizers,
    state_bits,
};
use crate::torch_optimizers;

const STEPS: usize = 5;

/// The update of one element by the formula in PyTorch's documentation: (p, g, t, lr) to p.
type Naive = Box<dyn FnMut(f64, f64, usize, f64) -> f64>;

fn naive_sgd(options: SgdOptions) -> Naive {
    let SgdOptions { momentum, dampening, weight_decay, momentum_kind, .. } = options;
    let mut m = 0.0;
    Box::new(move |p, g, t, lr| {
        let mut g = g + weight_decay * p;
        if momentum != 0.0 {
            m = if t == 1 { g } else { momentum * m + (1.0 - dampening) * g };
            g = if momentum_kind == Momentum::Nesterov { g + momentum * m } else { m };
        }
        p - lr * g
    })
}

fn naive_adam(options: AdamOptions) -> Naive {
    let AdamOptions { betas: [beta1, beta2], eps, weight_decay, .. } = options;
    let (mut m, mut v) = (0.0, 0.0);
    Box::new(move |mut p, mut g, t, lr| {
        match weight_decay {
            WeightDecay::Coupled(decay) => g += decay * p,
            WeightDecay::Decoupled(decay) => p -= lr * decay * p,
        }
        m = beta1 * m + (1.0 - beta1) * g;
        v = beta2 * v + (1.0 - beta2) * g * g;
        let m_hat = m / (1.0 - beta1.powf(t as f64));
        let v_hat: f64 = v / (1.0 - beta2.powf(t as f64));
        p - lr * m_hat / (v_hat.sqrt() + eps)
    })
}

/// Adam's weight decay: returns the parameter and its gradient.
fn pulled(weight_decay: WeightDecay, p: f64, g: f64, lr: f64) -> [f64; 2] {
    match weight_decay {
        WeightDecay::Coupled(decay) => [p, g + decay * p],
        WeightDecay::Decoupled(decay) => [p - lr * decay * p, g],
    }
}

fn naive_amsgrad(options: AdamOptions) -> Naive {
    let AdamOptions { betas: [beta1, beta2], eps, weight_decay, .. } = options;
    let (mut m, mut v, mut largest) = (0.0, 0.0, 0.0_f64);
    Box::new(move |p, g, t, lr| {
        let [p, g] = pulled(weight_decay, p, g, lr);
        m = beta1 * m + (1.0 - beta1) * g;
        v = beta2 * v + (1.0 - beta2) * g * g;
        largest = largest.max(v);
        let m_hat = m / (1.0 - beta1.powf(t as f64));
        let v_hat: f64 = largest / (1.0 - beta2.powf(t as f64));
        p - lr * m_hat / (v_hat.sqrt() + eps)
    })
}

fn naive_nadam(options: NadamOptions) -> Naive {
    let NadamOptions { betas: [beta1, beta2], eps, weight_decay, momentum_decay, .. } = options;
    let (mut m, mut v, mut product) = (0.0, 0.0, 1.0);
    let momentum = move |t: usize| beta1 * (1.0 - 0.5 * 0.96_f64.powf(t as f64 * momentum_decay));
    Box::new(move |p, g, t, lr| {
        let [p, g] = pulled(weight_decay, p, g, lr);
        product *= momentum(t);
        m = beta1 * m + (1.0 - beta1) * g;
        v = beta2 * v + (1.0 - beta2) * g * g;
        let root = f64::sqrt(v / (1.0 - beta2.powf(t as f64))) + eps;
        let next = momentum(t + 1);
        let ahead = next / (1.0 - product * next) * m;
        p - lr * ((1.0 - momentum(t)) / (1.0 - product) * g + ahead) / root
    })
}

fn naive_radam(options: AdamOptions) -> Naive {
    let AdamOptions { betas: [beta1, beta2], eps, weight_decay, .. } = options;
    let (mut m, mut v) = (0.0, 0.0);
    let limit = 2.0 / (1.0 - beta2) - 1.0;
    Box::new(move |p, g, t, lr| {
        let [p, g] = pulled(weight_decay, p, g, lr);
        m = beta1 * m + (1.0 - beta1) * g;
        v = beta2 * v + (1.0 - beta2) * g * g;
        let n = m / (1.0 - beta1.powf(t as f64));
        let power = beta2.powf(t as f64);
        let terms = limit - 2.0 * t as f64 * power / (1.0 - power);
        if terms <= 5.0 {
            return p - lr * n;
        }
        let share = (terms - 4.0) * (terms - 2.0) * limit / ((limit - 4.0) * (limit - 2.0) * terms);
        p - lr * share.sqrt() * n * (1.0 - power).sqrt() / (f64::sqrt(v) + eps)
    })
}

fn naive_adamax(options: AdamaxOptions) -> Naive {
    let AdamaxOptions { betas: [beta1, beta2], eps, weight_decay, .. } = options;
    let (mut m, mut u) = (0.0, 0.0_f64);
    Box::new(move |p, g, t, lr| {
        let g: f64 = g + weight_decay * p;
        m = beta1 * m + (1.0 - beta1) * g;
        u = (beta2 * u).max(g.abs() + eps);
        p - lr / (1.0 - beta1.powf(t as f64)) * m / u
    })
}

fn naive_adadelta(options: AdadeltaOptions) -> Naive {
    let AdadeltaOptions { smoothing, eps, weight_decay, .. } = options;
    let (mut v, mut u) = (0.0, 0.0);
    Box::new(move |p, g, _, lr| {
        let g = g + weight_decay * p;
        v = smoothing * v + (1.0 - smoothing) * g * g;
        let d = f64::sqrt(u + eps) / f64::sqrt(v + eps) * g;
        u = smoothing * u + (1.0 - smoothing) * d * d;
        p - lr * d
    })
}

fn naive_rprop(options: RpropOptions) -> Naive {
    let RpropOptions { factors: [down, up], step_range: [low, high], .. } = options;
    let (mut before, mut step) = (0.0, 0.0_f64);
    Box::new(move |p, g, t, lr| {
        if t == 1 {
            step = lr;
        }
        let same: f64 = g * before;
        step *= if same > 0.0 {
            up
        } else if same < 0.0 {
            down
        } else {
            1.0
        };
        step = step.clamp(low, high);
        before = if same < 0.0 { 0.0 } else { g };
        p - step * if before == 0.0 { 0.0 } else { before.signum() }
    })
}

fn naive_rms_prop(options: RmsPropOptions) -> Naive {
    let RmsPropOptions { smoothing, eps, weight_decay, momentum, spread, .. } = options;
    let (mut v, mut a, mut m) = (0.0, 0.0, 0.0);
    Box::new(move |p, g, _, lr| {
        let g = g + weight_decay * p;
        v = smoothing * v + (1.0 - smoothing) * g * g;
        a = smoothing * a + (1.0 - smoothing) * g;
        let mean = if spread == Spread::Variance { a } else { 0.0 };
        let direction = g / ((v - mean * mean).sqrt() + eps);
        m = momentum * m + direction;
        p - lr * if momentum == 0.0 { direction } else { m }
    })
}

fn naive_adagrad(options: AdagradOptions) -> Naive {
    let AdagradOptions { learning_rate_decay, weight_decay, initial_sum, eps, .. } = options;
    let mut s: f64 = initial_sum;
    Box::new(move |p, g, t, lr| {
        let g = g + weight_decay * p;
        s += g * g;
        p - lr / (1.0 + learning_rate_decay * (t - 1) as f64) * g / (s.sqrt() + eps)
    })
}

fn naive_lion(options: LionOptions) -> Naive {
    let LionOptions { betas: [beta1, beta2], weight_decay, .. } = options;
    let mut m = 0.0;
    Box::new(move |p, g, _, lr| {
        let direction: f64 = beta1 * m + (1.0 - beta1) * g;
        m = beta2 * m + (1.0 - beta2) * g;
        p * (1.0 - lr * weight_decay) - lr * direction.signum()
    })
}

/// An optimizer, and its formula.
struct Check {
    rule: &'static str,
    options: String,
    optimizer: Box<dyn Stateful>,
    naive: Box<dyn Fn() -> Naive>,
}

impl Check {
    fn new<R: UpdateRule>(options: R, naive: fn(R) -> Naive) -> Result<Check> {
        Ok(Check {
            rule: R::NAME,
            options: format!("{options:?}"),
            optimizer: Box::new(PerParameter::new(options.clone())?),
            naive: Box::new(move || naive(options.clone())),
        })
    }

    /// Five steps with other gradients and another learning rate in each.
    fn run(self) -> Result<()> {
        let Check { options, mut optimizer, naive, .. } = self;
        let device = cpu();
        let mut model = Pair::new(&device);
        let mut formulas: Vec<Vec<(f64, Naive)>> = Vec::new();
        for parameter in &model.0 {
            let start = parameter.value().to_vec::<f64>()?;
            formulas.push(start.into_iter().map(|p| (p, naive())).collect());
        }
        for t in 1..=STEPS {
            let lr = 0.1 / t as f64;
            optimizer.set_learning_rate(lr);
            assert_eq!(optimizer.learning_rate(), lr);
            let [a, b] = [format!("ga{t}"), format!("gb{t}")];
            let (a, b) = (f64s(&device, &a, [2, 3]), f64s(&device, &b, [5]));
            let gradients = gradients_are(&[(&model.0[0], a.clone()), (&model.0[1], b.clone())])?;
            optimizer.prepare(&mut model, gradients)?.commit()?;
            assert_eq!(optimizer.steps(), t as u64);

            for ((parameter, gradient), formulas) in model.0.iter().zip([a, b]).zip(&mut formulas) {
                let found = parameter.value().to_vec::<f64>()?;
                for ((found, g), (p, formula)) in
                    found.iter().zip(gradient.to_vec::<f64>()?).zip(formulas)
                {
                    *p = formula(*p, g, t, lr);
                    // A handful of roundings a step; Adam's quotient of a small g is relative to 1.
                    let allowed = 64.0 * t as f64 * f64::EPSILON;
                    let is_near = (found - *p).abs() <= allowed;
                    assert!(is_near, "{options}, step {t}: {found}, formula {p}");
                }
            }
        }
        Ok(())
    }
}

/// Adds a check of each of these options.
fn add<R: UpdateRule>(
    checks: &mut Vec<Check>,
    naive: fn(R) -> Naive,
    options: impl IntoIterator<Item = R>,
) -> Result<()> {
    for options in options {
        checks.push(Check::new(options, naive)?);
    }
    Ok(())
}

fn sgd(checks: &mut Vec<Check>) -> Result<()> {
    let plain = SgdOptions::new(0.1);
    let decay = SgdOptions { weight_decay: 0.2, ..plain };
    let momentum = SgdOptions { momentum: 0.9, ..plain };
    let dampened = SgdOptions { dampening: 0.3, ..momentum };
    let infinite = SgdOptions::new(f64::INFINITY);
    check_option(Sgd::new(infinite), "learning_rate", f64::INFINITY);
    let grouped = Sgd::new(SgdOptions::new(0.1))?.with_group("*", infinite);
    check_option(grouped, "learning_rate", f64::INFINITY);
    let nesterov = SgdOptions { momentum_kind: Momentum::Nesterov, ..momentum };
    let all = SgdOptions { weight_decay: 0.2, ..dampened };
    let nesterov_decay = SgdOptions { weight_decay: 0.2, ..nesterov };
    add(checks, naive_sgd, [plain, decay, momentum, dampened, nesterov, all, nesterov_decay])
}

fn adam(checks: &mut Vec<Check>) -> Result<()> {
    let adam = AdamOptions::default();
    let coupled = AdamOptions { weight_decay: WeightDecay::Coupled(0.1), ..adam };
    let quick = AdamOptions { betas: [0.5, 0.6], eps: 1e-3, ..adam };
    let no_memory = AdamOptions { betas: [0.0, 0.0], eps: 0.1, ..adam };
    add(checks, naive_adam, [adam, coupled, AdamOptions::adamw(), quick, no_memory])
}

fn rms_prop(checks: &mut Vec<Check>) -> Result<()> {
    let plain = RmsPropOptions { weight_decay: 0.2, ..Default::default() };
    let momentum = RmsPropOptions { momentum: 0.9, ..plain };
    let centered = RmsPropOptions { spread: Spread::Variance, ..Default::default() };
    let quick = RmsPropOptions { smoothing: 0.5, eps: 0.1, ..momentum };
    let all = RmsPropOptions { spread: Spread::Variance, smoothing: 0.8, ..momentum };
    add(checks, naive_rms_prop, [plain, momentum, centered, quick, all])
}

fn adagrad_and_lion(checks: &mut Vec<Check>) -> Result<()> {
    let plain = AdagradOptions { eps: 1e-3, ..Default::default() };
    let all = AdagradOptions {
        learning_rate_decay: 0.3,
        weight_decay: 0.2,
        initial_sum: 0.5,
        ..Default::default()
    };
    add(checks, naive_adagrad, [plain, all])?;
    let decayed = LionOptions { weight_decay: 0.2, betas: [0.5, 0.7], ..Default::default() };
    add(checks, naive_lion, [LionOptions::default(), decayed])
}

fn relatives_of_adam(checks: &mut Vec<Check>) -> Result<()> {
    let adam = AdamOptions::default();
    let coupled = AdamOptions { weight_decay: WeightDecay::Coupled(0.1), ..adam };
    // The decay is so fast that RAdam uses the mean square within five steps, and that AMSGrad's
    // mean square falls.
    let quick = AdamOptions { betas: [0.5, 0.9], eps: 1e-3, ..adam };
    let quicker = AdamOptions { betas: [0.5, 0.6], eps: 1e-3, ..adam };
    for options in [adam, coupled, AdamOptions::adamw(), quick, quicker] {
        add(checks, |AmsgradOptions(adam)| naive_amsgrad(adam), [AmsgradOptions(options)])?;
        add(checks, |RadamOptions(adam)| naive_radam(adam), [RadamOptions(options)])?;
        let AdamOptions { learning_rate, betas, eps, weight_decay } = options;
        let momentum_decay = 0.3;
        let nadam = NadamOptions { learning_rate, betas, eps, weight_decay, momentum_decay };
        let decayed = NadamOptions { weight_decay, ..Default::default() };
        add(checks, naive_nadam, [nadam, decayed])?;
    }
    let decayed =
        AdamaxOptions { betas: [0.5, 0.6], eps: 1e-3, weight_decay: 0.2, ..Default::default() };
    add(checks, naive_adamax, [AdamaxOptions::default(), decayed])
}

fn adadelta_and_rprop(checks: &mut Vec<Check>) -> Result<()> {
    let all =
        AdadeltaOptions { smoothing: 0.6, eps: 1e-3, weight_decay: 0.2, ..Default::default() };
    add(checks, naive_adadelta, [AdadeltaOptions::default(), all])?;
    let narrow =
        RpropOptions { factors: [0.3, 2.5], step_range: [0.02, 0.2], ..Default::default() };
    add(checks, naive_rprop, [RpropOptions::default(), narrow])
}

fn checks() -> Result<Vec<Check>> {
    let mut checks = Vec::new();
    let all = [sgd, adam, rms_prop, adagrad_and_lion, relatives_of_adam, adadelta_and_rprop];
    all.into_iter().try_for_each(|add| add(&mut checks))?;
    Ok(checks)
}

#[test]
fn optimizers_are_their_formulas_with_every_option() -> Outcome {
    Ok(checks()?.into_iter().try_for_each(Check::run)?)
}

#[test]
fn every_update_rule_is_compared_with_its_formula_or_with_pytorch() -> Outcome {
    let (checks, cases) = (checks()?, torch_optimizers::cases()?);
    let of_pytorch = cases.iter().map(|(name, _)| *name);
    check_every_rule(checks.iter().map(|check| check.rule).chain(of_pytorch));
    Ok(())
}

#[test]
fn every_update_rule_is_in_the_lists() -> Outcome {
    check_every_rule(optimizers().iter().map(|(name, _)| *name));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/optim");
    let mut written = BTreeSet::new();
    for entry in std::fs::read_dir(folder)? {
        let text = std::fs::read_to_string(entry?.path())?;
        if text.contains("\nimpl UpdateRule for ") {
            let name = |line: &str| {
                let (_, name) = line.split_once("NAME: &'static str = \"")?;
                name.strip_suffix("\";").map(str::to_owned)
            };
            written.extend(text.lines().filter_map(name));
        }
    }
    assert_eq!(written, RULES.map(str::to_owned).into(), "`optimizers!` in src/optim/mod.rs");
    Ok(())
}

#[test]
fn groups_have_options_of_their_own_and_move_together() -> Outcome {
    let device = cpu();
    let base = SgdOptions { weight_decay: 0.5, ..SgdOptions::new(0.1) };
    let special = SgdOptions { momentum: 0.9, ..SgdOptions::new(0.3) };
    let mut grouped = Sgd::new(base)?.with_group("b*", special)?;
    let mut model = Pair::new(&device);
    let mut twins = [Pair::new(&device), Pair::new(&device)];
    let mut alone = [Sgd::new(base)?, Sgd::new(special)?];
    assert_eq!(grouped.memory(&mut model).state_bytes, 512, "momentum of one block");
    for (t, rate) in [0.1, 0.2, 0.05].into_iter().enumerate() {
        let [a, b] = [format!("ga{t}"), format!("gb{t}")];
        let (a, b) = (f64s(&device, &a, [2, 3]), f64s(&device, &b, [5]));
        let step = |optimizer: &mut Sgd, model: &mut Pair, rate: f64| -> Outcome {
            optimizer.set_learning_rate(rate);
            let pairs = [(&model.0[0], a.clone()), (&model.0[1], b.clone())];
            let gradients = gradients_are(&pairs)?;
            Ok(optimizer.prepare(model, gradients)?.commit()?)
        };
        step(&mut grouped, &mut model, rate)?;
        for ((optimizer, twin), factor) in alone.iter_mut().zip(&mut twins).zip([1.0, 3.0]) {
            step(optimizer, twin, factor * rate)?;
        }
    }
    assert_eq!(bits(model.0[0].value()), bits(twins[0].0[0].value()));
    let close = |x: &Tensor, y: &Tensor| -> Result<bool> {
        let pairs = x.to_vec::<f64>()?.into_iter().zip(y.to_vec::<f64>()?);
        Ok(pairs.into_iter().all(|(x, y)| (x - y).abs() < 1e-14))
    };
    // The product with the factor 3 is rounded.
    assert!(close(model.0[1].value(), twins[1].0[1].value())?);
    assert!(!close(model.0[1].value(), twins[0].0[1].value())?);
    Ok(())
}

#[test]
fn defaults_are_pytorchs() {
    let sgd = SgdOptions::new(0.5);
    assert_eq!([sgd.learning_rate, sgd.momentum, sgd.dampening], [0.5, 0.0, 0.0]);
    assert_eq!((sgd.weight_decay, sgd.momentum_kind), (0.0, Momentum::Classical));
    let adam = AdamOptions::default();
    assert_eq!((adam.learning_rate, adam.betas, adam.eps), (1e-3, [0.9, 0.999], 1e-8));
    assert_eq!(adam.weight_decay, WeightDecay::Coupled(0.0));
    assert_eq!(AdamOptions::adamw().weight_decay, WeightDecay::Decoupled(0.01));
    let rms = RmsPropOptions::default();
    assert_eq!([rms.learning_rate, rms.smoothing, rms.eps], [1e-2, 0.99, 1e-8]);
    assert_eq!(([rms.weight_decay, rms.momentum], rms.spread), ([0.0, 0.0], Spread::MeanSquare));
    let adagrad = AdagradOptions::default();
    assert_eq!([adagrad.learning_rate, adagrad.learning_rate_decay], [1e-2, 0.0]);
    assert_eq!([adagrad.weight_decay, adagrad.initial_sum, adagrad.eps], [0.0, 0.0, 1e-10]);
}

#[test]
fn a_learning_rate_of_zero_moves_nothing_but_counts() -> Outcome {
    let device = cpu();
    // Rprop's learning rate is its initial step size, which has a lower bound.
    for (name, mut optimizer) in optimizers().into_iter().filter(|(name, _)| *name != "rprop") {
        let mut model = Pair::new(&device);
        let before = all_bits(&mut model);
        optimizer.set_learning_rate(0.0);
        let gradients = gradients_are(&[(&model.0[0], f64s(&device, "g", [2, 3]))])?;
        optimizer.prepare(&mut model, gradients)?.commit()?;
        assert_eq!((all_bits(&mut model), optimizer.steps()), (before, 1), "{name}");
    }
    Ok(())
}

#[test]
fn a_parameter_without_gradient_is_left_alone() -> Outcome {
    let device = cpu();
    for (name, mut optimizer) in optimizers() {
        let mut model = Pair::new(&device);
        let [a, b] = model.0.each_ref().map(|parameter| bits(parameter.value()));
        let version = model.0[1].value().version();
        let gradients = gradients_are(&[(&model.0[0], f64s(&device, "g", [2, 3]))])?;
        optimizer.prepare(&mut model, gradients)?.commit()?;
        assert_ne!(bits(model.0[0].value()), a, "{name}");
        // A parameter without a gradient is not decayed either.
        assert_eq!(bits(model.0[1].value()), b, "{name}");
        assert_eq!(model.0[1].value().version(), version, "{name}");
        let mut alone = Named(vec![("a".to_owned(), model.0[0].clone())]);
        let mut states = 0;
        optimizer.visit_state(&mut |_| states += 1);
        let mut expected = optimizer.memory(&mut alone).state_bytes / 512;
        if name.ends_with("averaged") {
            // The average covers all parameters, even those that are not updated.
            expected += 1;
        }
        assert_eq!(states, expected, "{name}: a block each");
    }
    Ok(())
}

#[test]
fn momentum_of_a_parameter_starts_with_its_own_first_gradient() -> Outcome {
    let device = cpu();
    let options = SgdOptions { momentum: 0.9, dampening: 0.5, ..SgdOptions::new(0.1) };
    let mut optimizer = Sgd::new(options)?;
    let mut model = Pair::new(&device);
    let (a, b) = (f64s(&device, "ga", [2, 3]), f64s(&device, "gb", [5]));
    let gradients = gradients_are(&[(&model.0[0], a.clone())])?;
    optimizer.prepare(&mut model, gradients)?.commit()?;
    let gradients = gradients_are(&[(&model.0[0], a), (&model.0[1], b.clone())])?;
    optimizer.prepare(&mut model, gradients)?.commit()?;
    // The momentum of b starts as its undamped gradient, although this is the optimizer's second
    // step.
    assert_eq!(state_bits(&mut optimizer)[1], bits(&b));
    Ok(())
}

#[test]
fn step_is_prepare_and_commit() -> Outcome {
    let device = cpu();
    let mut ends = Vec::new();
    for whole in [false, true] {
        let mut optimizer = Adam::new(AdamOptions::default())?;
        let mut model = Pair::new(&device);
        for _ in 0..2 {
            if whole {
                let attempt = Attempt::new();
                let pass = lowtide_autograd::Pass::train(crate::common::KEY, &attempt);
                let g = pass.constant(f64s(&device, "g", [2, 3]));
                pass.backward(model.0[0].var(&pass)?.mul(g)?.sum_all()?)?;
                optimizer.step(&mut model, attempt)?;
            } else {
                let gradients = gradients_are(&[(&model.0[0], f64s(&device, "g", [2, 3]))])?;
                optimizer.prepare(&mut model, gradients)?.commit()?;
            }
        }
        ends.push((all_bits(&mut model), state_bits(&mut optimizer), optimizer.steps()));
    }
    assert_eq!(ends[0], ends[1]);
    Ok(())
}

fn check_option<T>(result: Result<T>, option: &str, bad: f64) {
    let error = result.err().unwrap_or_else(|| panic!("{option} = {bad} was accepted"));
    let NnError::Option { name, value, range } = &error else { panic!("{error}") };
    assert_eq!(*name, option);
    assert!(value.to_bits() == bad.to_bits() && !range.is_empty(), "{error}");
    assert!(error.to_string().contains(option), "{error}");
}

#[test]
fn options_out_of_range_are_errors_naming_them() -> Outcome {
    for bad in [-0.1, f64::NAN] {
        let rms = RmsPropOptions::default();
        check_option(RmsProp::new(RmsPropOptions { smoothing: bad, ..rms }), "smoothing", bad);
        check_option(RmsProp::new(RmsPropOptions { momentum: bad, ..rms }), "momentum", bad);
        let adagrad = AdagradOptions { initial_sum: bad, ..Default::default() };
        check_option(Adagrad::new(adagrad), "initial_sum", bad);
        let nadam = NadamOptions { momentum_decay: bad, ..Default::default() };
        check_option(Nadam::new(nadam), "momentum_decay", bad);
        let radam = RadamOptions(AdamOptions { eps: bad, ..Default::default() });
        check_option(Radam::new(radam), "eps", bad);
        let amsgrad = AmsgradOptions(AdamOptions { eps: bad, ..Default::default() });
        check_option(Amsgrad::new(amsgrad), "eps", bad);
        let adamax = AdamaxOptions { betas: [bad, 0.9], ..Default::default() };
        check_option(Adamax::new(adamax), "beta", bad);
        let adadelta = AdadeltaOptions { smoothing: bad, ..Default::default() };
        check_option(Adadelta::new(adadelta), "smoothing", bad);
        for factors in [[bad, 1.2], [0.5, bad]] {
            let rprop = RpropOptions { factors, ..Default::default() };
            check_option(Rprop::new(rprop), "factors", bad);
        }
        let lion = LionOptions { betas: [0.9, bad], ..Default::default() };
        check_option(Lion::new(lion), "beta", bad);
        let groups = Sgd::new(SgdOptions::new(0.1))?;
        check_option(groups.with_group("*", SgdOptions::new(bad)), "learning_rate", bad);

        let sgd = SgdOptions::new(0.1);
        check_option(Sgd::new(SgdOptions::new(bad)), "learning_rate", bad);
        check_option(Sgd::new(SgdOptions { momentum: bad, ..sgd }), "momentum", bad);
        check_option(Sgd::new(SgdOptions { weight_decay: bad, ..sgd }), "weight_decay", bad);

        let adam = AdamOptions::default();
        let with = |weight_decay| Adam::new(AdamOptions { weight_decay, ..adam });
        check_option(Adam::new(AdamOptions { learning_rate: bad, ..adam }), "learning_rate", bad);
        check_option(Adam::new(AdamOptions { eps: bad, ..adam }), "eps", bad);
        check_option(with(WeightDecay::Coupled(bad)), "weight_decay", bad);
        check_option(with(WeightDecay::Decoupled(bad)), "weight_decay", bad);
    }
    for bad in [-0.1, 1.0, f64::NAN] {
        for betas in [[bad, 0.9], [0.9, bad]] {
            let options = AdamOptions { betas, ..AdamOptions::default() };
            check_option(Adam::new(options), "beta", bad);
        }
    }
    let nesterov = SgdOptions { momentum_kind: Momentum::Nesterov, ..SgdOptions::new(0.1) };
    check_option(Sgd::new(nesterov), "momentum", 0.0);
    let dampened = SgdOptions { momentum: 0.9, dampening: 0.1, ..nesterov };
    check_option(Sgd::new(dampened), "dampening", 0.1);
    Sgd::new(SgdOptions { dampening: 0.0, ..dampened })?;
    Ok(())
}

#[test]
fn state_is_shown_in_the_same_order_every_time() -> Outcome {
    let device = cpu();
    let mut optimizer = Adam::new(AdamOptions::default())?;
    let mut model = Pair::new(&device);
    let (a, b) = (f64s(&device, "ga", [2, 3]), f64s(&device, "gb", [5]));
    let gradients = gradients_are(&[(&model.0[0], a), (&model.0[1], b)])?;
    optimizer.prepare(&mut model, gradients)?.commit()?;
    let mut shapes = Vec::new();
    optimizer.visit_state(&mut |tensor| shapes.push(tensor.shape().to_vec()));
    assert_eq!(shapes, [vec![2, 3], vec![2, 3], vec![5], vec![5]]);
    let mut expected = Vec::new();
    model.visit(&mut |_, parameter| expected.push(parameter.id()));
    assert!(expected.is_sorted());
    Ok(())
}
