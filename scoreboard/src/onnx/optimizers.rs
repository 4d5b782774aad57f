//! One step of an optimizer, from the states in the case.

use std::collections::BTreeMap;

use lowtide_autograd::Gradients;
use lowtide_nn::Parameter;
use lowtide_nn::optim::{
    Adagrad, AdagradOptions, Adam, AdamOptions, Momentum, OptimizerState, Sgd, SgdOptions,
    Stateful, WeightDecay,
};

use super::Family;
use super::node::NodeCall;
use crate::call::{Output, Result};
use crate::parameters::NamedParameters;

pub(super) const OPS: Family = &[
    ("ai.onnx.preview.training.Adagrad", |node| {
        let step = Step::of(node, 1)?;
        let options = AdagradOptions {
            learning_rate: step.rate,
            learning_rate_decay: node.attribute_number("decay_factor")?.unwrap_or(0.0),
            weight_decay: node.attribute_number("norm_coefficient")?.unwrap_or(0.0),
            initial_sum: 0.0,
            eps: node.attribute_number("epsilon")?.unwrap_or(0.0),
        };
        step.run(node, Adagrad::new(options)?, &["sum"])
    }),
    ("ai.onnx.preview.training.Adam", |node| {
        let mut step = Step::of(node, 2)?;
        let betas = [
            node.attribute_number("alpha")?.unwrap_or(0.9),
            node.attribute_number("beta")?.unwrap_or(0.999),
        ];
        let eps = node.attribute_number("epsilon")?.unwrap_or(0.0);
        if node.attribute_number("norm_coefficient_post")?.unwrap_or(0.0) != 0.0 {
            return node.no_form("a decay after the step");
        }
        let decay = node.attribute_number("norm_coefficient")?.unwrap_or(0.0);
        let Some(before) = step.number.checked_sub(1) else {
            return node.no_form("a step 0, without the correction of a start from zeros");
        };
        // ONNX adds eps before the correction of the second moment, lowtide after it.
        let correction = (1.0 - betas[1].powf(step.number as f64)).sqrt();
        step.number = before;
        let options = AdamOptions {
            learning_rate: step.rate,
            betas,
            eps: eps / correction,
            weight_decay: WeightDecay::Coupled(decay),
        };
        step.run(node, Adam::new(options)?, &["exp_avg", "exp_avg_sq"])
    }),
    ("ai.onnx.preview.training.Momentum", |node| {
        let step = Step::of(node, 1)?;
        let share = node.attribute_number("beta")?.unwrap_or(1.0);
        // The first step takes the whole gradient.
        let share = if step.number > 0 { share } else { 1.0 };
        let is_nesterov = node.text("mode")? == Some("nesterov");
        let options = SgdOptions {
            momentum: node.attribute_number("alpha")?.unwrap_or(0.0),
            dampening: 1.0 - share,
            weight_decay: node.attribute_number("norm_coefficient")?.unwrap_or(0.0),
            momentum_kind: if is_nesterov { Momentum::Nesterov } else { Momentum::Classical },
            ..SgdOptions::new(step.rate)
        };
        step.run(node, Sgd::new(options)?, &["momentum_buffer"])
    }),
];

/// The inputs of all optimizers: rate and number of the step, then parameters, gradients and
/// states.
struct Step {
    rate: f64,
    number: u64,
    count: usize,
}

impl Step {
    fn of(node: &NodeCall<'_>, states: usize) -> Result<Self> {
        let rate = node.number(0)?.ok_or_else(|| node.wrong("no rate"))?;
        let number = node.number(1)?.ok_or_else(|| node.wrong("no step"))?;
        let count = node.input_count().saturating_sub(2) / (2 + states);
        Ok(Step { rate, number: number as u64, count })
    }

    fn run(
        self,
        node: &NodeCall<'_>,
        mut optimizer: impl Stateful,
        states: &[&str],
    ) -> Result<Vec<Output>> {
        let (mut model, mut gradients) = (NamedParameters(Vec::new()), Gradients::default());
        let mut tensors = BTreeMap::new();
        let at = |part: usize, index: usize| 2 + part * self.count + index;
        for index in 0..self.count {
            let parameter = Parameter::new(node.tensor(at(0, index))?.copied()?);
            gradients.insert(parameter.id(), node.tensor(at(1, index))?.copied()?);
            for (part, state) in states.iter().enumerate() {
                let value = node.tensor(at(2 + part, index))?.copied()?;
                tensors.insert(format!("{index}.{state}"), value);
            }
            model.0.push((index.to_string(), parameter));
        }
        let models = BTreeMap::new();
        let state =
            OptimizerState { steps: self.number, learning_rate: self.rate, tensors, models };
        optimizer.set_state(&mut model, state)?;
        optimizer.prepare(&mut model, gradients)?.commit()?;
        let found = optimizer.state(&mut model)?.tensors;
        let mut outputs: Vec<Output> =
            model.0.iter().map(|(_, parameter)| parameter.value().clone().into()).collect();
        for state in states {
            for index in 0..self.count {
                let name = format!("{index}.{state}");
                let value = found.get(&name).ok_or_else(|| node.wrong("a state is gone"))?;
                outputs.push(value.clone().into());
            }
        }
        Ok(outputs)
    }
}
