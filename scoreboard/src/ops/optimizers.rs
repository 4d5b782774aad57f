//! Optimizers: five updates, then the parameters and the states.

use lowtide_autograd::Gradients;
use lowtide_nn::Parameter;
use lowtide_nn::optim::{
    Adadelta, AdadeltaOptions, Adafactor, AdafactorOptions, Adagrad, AdagradOptions, Adam,
    AdamOptions, Adamax, AdamaxOptions, Amsgrad, AmsgradOptions, Ascending, Momentum, Muon,
    MuonOptions, Nadam, NadamOptions, Radam, RadamOptions, RateScale, RmsProp, RmsPropOptions,
    Rprop, RpropOptions, Sgd, SgdOptions, Spread, Stateful, WeightDecay,
};

use super::Family;
use crate::call::{Call, Output, Result, Stop, at, named, no_form, no_such};
use crate::case::Kind;
use crate::outcome::Reason;
use crate::parameters::NamedParameters;

pub(super) const OPS: Family = &[
    ("optim.Adadelta", |call| {
        let base = AdadeltaOptions::default();
        let options = AdadeltaOptions {
            learning_rate: number(call, "lr", base.learning_rate)?,
            smoothing: number(call, "rho", base.smoothing)?,
            eps: number(call, "eps", base.eps)?,
            weight_decay: number(call, "weight_decay", base.weight_decay)?,
        };
        updates(call, || Ok(Box::new(Adadelta::new(options)?)))
    }),
    ("optim.Adafactor", |call| {
        let base = AdafactorOptions::default();
        let eps = call.value(named("eps")).and_then(|value| value.as_array());
        let eps = eps.map(|pair| [0, 1].map(|index| pair[index].as_f64()));
        let options = AdafactorOptions {
            learning_rate: number(call, "lr", base.learning_rate)?,
            beta2_decay: number(call, "beta2_decay", base.beta2_decay)?,
            eps: eps.map_or(base.eps, |[eps, _]| eps),
            scale_min: eps.and_then(|[_, scale]| scale).unwrap_or(base.scale_min),
            clip: number(call, "d", base.clip)?,
            weight_decay: number(call, "weight_decay", base.weight_decay)?,
        };
        updates(call, || Ok(Box::new(Adafactor::new(options)?)))
    }),
    ("optim.Adagrad", |call| {
        let base = AdagradOptions::default();
        let options = AdagradOptions {
            learning_rate: number(call, "lr", base.learning_rate)?,
            learning_rate_decay: number(call, "lr_decay", base.learning_rate_decay)?,
            weight_decay: number(call, "weight_decay", base.weight_decay)?,
            initial_sum: number(call, "initial_accumulator_value", base.initial_sum)?,
            eps: number(call, "eps", base.eps)?,
        };
        updates(call, || Ok(Box::new(Adagrad::new(options)?)))
    }),
    ("optim.Adam", |call| {
        let decay = number(call, "weight_decay", 0.0)?;
        adam_or_amsgrad(call, AdamOptions::default(), WeightDecay::Coupled(decay))
    }),
    ("optim.AdamW", |call| {
        let decay = number(call, "weight_decay", 0.01)?;
        adam_or_amsgrad(call, AdamOptions::adamw(), WeightDecay::Decoupled(decay))
    }),
    ("optim.Adamax", |call| {
        let base = AdamaxOptions::default();
        let options = AdamaxOptions {
            learning_rate: number(call, "lr", base.learning_rate)?,
            betas: pair(call, "betas", base.betas)?,
            eps: number(call, "eps", base.eps)?,
            weight_decay: number(call, "weight_decay", base.weight_decay)?,
        };
        updates(call, || Ok(Box::new(Adamax::new(options)?)))
    }),
    ("optim.Muon", |call| {
        let base = MuonOptions::default();
        let coefficients = call.value(named("ns_coefficients")).and_then(|value| value.as_array());
        let coefficients = match coefficients.map(Vec::as_slice) {
            Some([a, b, c]) => [a, b, c].map(|value| value.as_f64().unwrap_or_default()),
            _ => base.coefficients,
        };
        let options = MuonOptions {
            learning_rate: number(call, "lr", base.learning_rate)?,
            weight_decay: number(call, "weight_decay", base.weight_decay)?,
            momentum: number(call, "momentum", base.momentum)?,
            coefficients,
            iterations: call.count(named("ns_steps"))?.unwrap_or(base.iterations),
            rate_scale: match call.text(named("adjust_lr_fn"))? {
                None => base.rate_scale,
                Some("match_rms_adamw") => RateScale::MatchRmsAdamW,
                Some("spectral_unclamped") => RateScale::SpectralUnclamped,
                Some(_) => return no_such(call, "adjust_lr_fn"),
            },
            ..base
        };
        updates(call, || Ok(Box::new(Muon::new(options)?)))
    }),
    ("optim.NAdam", |call| {
        let base = NadamOptions::default();
        let options = NadamOptions {
            learning_rate: number(call, "lr", base.learning_rate)?,
            betas: pair(call, "betas", base.betas)?,
            eps: number(call, "eps", base.eps)?,
            weight_decay: decay(call)?,
            momentum_decay: number(call, "momentum_decay", base.momentum_decay)?,
        };
        updates(call, || Ok(Box::new(Nadam::new(options)?)))
    }),
    ("optim.RAdam", |call| {
        let options = RadamOptions(adam(call, AdamOptions::default(), decay(call)?)?);
        updates(call, || Ok(Box::new(Radam::new(options)?)))
    }),
    ("optim.Rprop", |call| {
        let base = RpropOptions::default();
        let options = RpropOptions {
            learning_rate: number(call, "lr", base.learning_rate)?,
            factors: pair(call, "etas", base.factors)?,
            step_range: pair(call, "step_sizes", base.step_range)?,
        };
        updates(call, || Ok(Box::new(Rprop::new(options)?)))
    }),
    ("optim.RMSprop", |call| {
        let base = RmsPropOptions::default();
        let centered = call.flag(named("centered"))?.unwrap_or(false);
        let options = RmsPropOptions {
            learning_rate: number(call, "lr", base.learning_rate)?,
            smoothing: number(call, "alpha", base.smoothing)?,
            eps: number(call, "eps", base.eps)?,
            weight_decay: number(call, "weight_decay", base.weight_decay)?,
            momentum: number(call, "momentum", base.momentum)?,
            spread: if centered { Spread::Variance } else { Spread::MeanSquare },
        };
        updates(call, || Ok(Box::new(RmsProp::new(options)?)))
    }),
    ("optim.SGD", |call| {
        let base = SgdOptions::new(number(call, "lr", 1e-3)?);
        let nesterov = call.flag(named("nesterov"))?.unwrap_or(false);
        let options = SgdOptions {
            momentum: number(call, "momentum", base.momentum)?,
            dampening: number(call, "dampening", base.dampening)?,
            weight_decay: number(call, "weight_decay", base.weight_decay)?,
            momentum_kind: if nesterov { Momentum::Nesterov } else { Momentum::Classical },
            ..base
        };
        updates(call, || Ok(Box::new(Sgd::new(options)?)))
    }),
];

fn number(call: &Call<'_>, name: &'static str, default: f64) -> Result<f64> {
    if call.value(named(name)).is_some_and(|value| call.var_of(value).is_some()) {
        return match call.case().kind {
            Kind::Error => no_such(call, name),
            _ => no_form("a learning rate as a tensor"),
        };
    }
    Ok(call.number(named(name))?.unwrap_or(default))
}

/// An argument of two numbers.
fn pair(call: &Call<'_>, name: &'static str, default: [f64; 2]) -> Result<[f64; 2]> {
    let pair = call.value(named(name)).and_then(|value| value.as_array());
    match pair.map(Vec::as_slice) {
        None => Ok(default),
        Some([first, second]) => match (first.as_f64(), second.as_f64()) {
            (Some(first), Some(second)) => Ok([first, second]),
            _ => no_such(call, "a pair of tensors"),
        },
        Some(_) => no_such(call, name),
    }
}

/// Weight decay, decoupled if a flag is set.
fn decay(call: &Call<'_>) -> Result<WeightDecay> {
    let decay = number(call, "weight_decay", 0.0)?;
    Ok(match call.flag(named("decoupled_weight_decay"))? {
        Some(true) => WeightDecay::Decoupled(decay),
        _ => WeightDecay::Coupled(decay),
    })
}

fn adam(call: &Call<'_>, base: AdamOptions, weight_decay: WeightDecay) -> Result<AdamOptions> {
    Ok(AdamOptions {
        learning_rate: number(call, "lr", base.learning_rate)?,
        betas: pair(call, "betas", base.betas)?,
        eps: number(call, "eps", base.eps)?,
        weight_decay,
    })
}

fn adam_or_amsgrad(
    call: &Call<'_>,
    base: AdamOptions,
    weight_decay: WeightDecay,
) -> Result<Vec<Output>> {
    let options = adam(call, base, weight_decay)?;
    if call.flag(named("amsgrad"))?.unwrap_or(false) {
        return updates(call, || Ok(Box::new(Amsgrad::new(AmsgradOptions(options))?)));
    }
    updates(call, || Ok(Box::new(Adam::new(options)?)))
}

/// The parameters and the states after a step with each gradient.
fn updates(
    call: &Call<'_>,
    make: impl FnOnce() -> Result<Box<dyn Stateful>>,
) -> Result<Vec<Output>> {
    if call.case().kind == Kind::Error && call.case().options.is_empty() {
        let why = "lists of parameters, which in lowtide are a module's".to_owned();
        return Err(Stop::NotApplicable(Reason::DoesNotCompile, why));
    }
    let optimizer = make()?;
    let mut optimizer: Box<dyn Stateful> = if call.flag(named("maximize"))?.unwrap_or(false) {
        Box::new(Ascending(optimizer))
    } else {
        optimizer
    };
    let mut model = NamedParameters(Vec::new());
    for (name, value) in &call.case().state {
        let value = call.var_of(value).map(|var| var.into_value().copied()).transpose()?;
        model.0.extend(value.map(|value| (name.clone(), Parameter::new(value))));
    }
    for step in 0..call.case().arguments.len() {
        let mut gradients = Gradients::default();
        for ((_, parameter), gradient) in model.0.iter().zip(call.vars(at(step, "gradients"))?) {
            gradients.insert(parameter.id(), gradient.into_value().copied()?);
        }
        optimizer.prepare(&mut model, gradients)?.commit()?;
    }
    let states = optimizer.state(&mut model)?.tensors;
    let parameters = model.0.into_iter().map(|(_, parameter)| parameter.value().clone());
    Ok(parameters.chain(states.into_values()).map(Output::Tensor).collect())
}
