//! The optimizer of everything that updates a parameter by itself, element by element.

use std::fmt::Debug;

use lowtide_autograd::Gradients;
use lowtide_tensor::{DType, Device, RandomKey, Rounding, Tensor};

use crate::optim::slots::{Job, Slots, StateKind};
use crate::optim::{Optimizer, OptimizerMemory, Update};
use crate::{Parameters, Result};

/// Smaller parameters are few bytes, and biases and norms need the precision.
const QUANTIZED_LEN_MIN: usize = 4096;

/// What an [`Elementwise`] optimizer does to one parameter.
pub trait UpdateRule: Clone + Debug {
    /// The optimizer's name, as errors show it.
    const NAME: &'static str;

    /// `Ok` if every option is in its range.
    ///
    /// # Errors
    /// `Option`.
    fn check(&self) -> Result<()>;

    /// The step size.
    fn learning_rate(&self) -> f64;

    /// Sets the step size.
    fn set_learning_rate(&mut self, learning_rate: f64);

    /// How many tensors of a parameter's shape are kept for it: f64 beside f64, else f32.
    fn state_count(&self) -> usize;

    /// Updates in place and allocates nothing; see [`Tensor::update_`].
    ///
    /// # Errors
    /// None, when the operands are writable.
    fn update(
        &self,
        parameter: &mut Tensor,
        gradient: &Tensor,
        state: &mut [Tensor],
        at: UpdateStep,
    ) -> lowtide_tensor::Result<()>;
}

/// When an update happens.
#[derive(Clone, Copy, Debug)]
pub struct UpdateStep {
    /// The number of the update, from 1 on.
    pub number: u64,
    /// Whether it is this parameter's first: its states are all zeros.
    pub is_first: bool,
    /// How the parameter is rounded to its type.
    pub rounding: Rounding,
}

/// An optimizer made of one rule, or of several for parameters of different names.
#[derive(Clone, Debug)]
pub struct Elementwise<R> {
    /// The first is for all that no pattern names.
    groups: Vec<Group<R>>,
    slots: Slots,
    steps: u64,
    stochastic: Option<RandomKey>,
    quantized: bool,
}

#[derive(Clone, Debug)]
struct Group<R> {
    /// What names have to look like; `*` stands for anything.
    pattern: String,
    rule: R,
    /// The group's learning rate over the first group's.
    rate_factor: f64,
}

impl<R: UpdateRule> Elementwise<R> {
    /// An optimizer without state yet.
    ///
    /// # Errors
    /// `Option` for a value out of range.
    pub fn new(rule: R) -> Result<Self> {
        rule.check()?;
        let all = Group { pattern: "*".to_owned(), rule, rate_factor: 1.0 };
        let (groups, slots) = (vec![all], Slots::default());
        Ok(Elementwise { groups, slots, steps: 0, stochastic: None, quantized: false })
    }

    /// Other options for the parameters whose names look like `pattern`, in which `*` stands for
    /// anything (`*.bias`). The first pattern given counts. A learning rate that differs keeps its
    /// ratio when a schedule moves the first one.
    ///
    /// # Errors
    /// `Option` for a value out of range.
    pub fn with_group(mut self, pattern: impl Into<String>, rule: R) -> Result<Self> {
        rule.check()?;
        let base = self.groups[0].rule.learning_rate();
        let rate_factor = if base == 0.0 { 1.0 } else { rule.learning_rate() / base };
        self.groups.push(Group { pattern: pattern.into(), rule, rate_factor });
        Ok(self)
    }

    /// Rounds new parameters of bf16 up or down at random; see [`Rounding::Stochastic`].
    #[must_use]
    pub fn with_stochastic_rounding(self, key: RandomKey) -> Self {
        Elementwise { stochastic: Some(key), ..self }
    }

    /// Keeps the states of parameters with 4,096 elements and more in 8 bits: a little over a
    /// quarter of the memory (Dettmers et al. 2022, whose threshold this is). Parameters of f64
    /// keep theirs.
    #[must_use]
    pub fn with_8bit_states(self) -> Self {
        Elementwise { quantized: true, ..self }
    }

    fn state_kind(&self, name: &str, parameter: &Tensor) -> StateKind {
        let fits = parameter.element_count() >= QUANTIZED_LEN_MIN
            && parameter.dtype() != DType::F64
            && parameter.layout().is_contiguous();
        let quantized = self.quantized && fits;
        StateKind { count: self.rule(name).state_count(), quantized }
    }

    /// The rule for the parameter called `name`.
    fn rule(&self, name: &str) -> &R {
        let named = self.groups[1..].iter().find(|group| is_like(name, &group.pattern));
        &named.unwrap_or(&self.groups[0]).rule
    }

    fn jobs(
        &self,
        parameters: &mut dyn Parameters,
        mut gradients: Gradients,
    ) -> Result<Vec<(Job, R, UpdateStep)>> {
        let mut jobs = Vec::new();
        let mut result = Ok(());
        parameters.visit(&mut |name, parameter| {
            if result.is_err() {
                return;
            }
            let Some(gradient) = gradients.remove(parameter.id()) else { return };
            let rule = self.rule(name);
            let rounding = match (self.stochastic, parameter.value().dtype()) {
                (Some(key), DType::BF16) => Rounding::Stochastic(key.step(self.steps).op(name)),
                _ => Rounding::Nearest,
            };
            let kind = self.state_kind(name, parameter.value());
            match self.slots.job(name, parameter, gradient, kind) {
                Ok(job) => {
                    let (number, is_first) = (self.steps + 1, job.is_first);
                    jobs.push((job, rule.clone(), UpdateStep { number, is_first, rounding }));
                }
                Err(error) => result = Err(error),
            }
        });
        result.map(|()| jobs)
    }
}

impl<R: UpdateRule> Optimizer for Elementwise<R> {
    fn prepare(
        &mut self,
        parameters: &mut dyn Parameters,
        gradients: Gradients,
    ) -> Result<Update<'_>> {
        let jobs = self.jobs(parameters, gradients)?;
        Ok(Update::new(move || {
            jobs.iter().try_for_each(|(job, ..)| job.check_writable(R::NAME))?;
            for (mut job, rule, at) in jobs {
                rule.update(&mut job.parameter, &job.gradient, &mut job.state, at)?;
                self.slots.keep(job);
            }
            self.steps += 1;
            Ok(())
        }))
    }

    fn visit_state(&mut self, visitor: &mut dyn FnMut(&mut Tensor)) {
        self.slots.visit(visitor);
    }

    fn steps(&self) -> u64 {
        self.steps
    }

    fn learning_rate(&self) -> f64 {
        self.groups[0].rule.learning_rate()
    }

    fn set_learning_rate(&mut self, learning_rate: f64) {
        for group in &mut self.groups {
            group.rule.set_learning_rate(group.rate_factor * learning_rate);
        }
    }

    fn memory(&self, parameters: &mut dyn Parameters) -> OptimizerMemory {
        let mut sum_bytes = 0;
        parameters.visit(&mut |name, parameter| {
            let value = parameter.value();
            sum_bytes += self.state_kind(name, value).size_bytes(value);
        });
        OptimizerMemory { state_bytes: sum_bytes, scratch_bytes: 0 }
    }

    fn twin(&self, sim: &Device) -> Option<Self> {
        Some(Elementwise { slots: self.slots.twin(sim)?, ..self.clone() })
    }
}

/// Whether `name` is `pattern` with something in the place of each `*`.
fn is_like(name: &str, pattern: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return name == pattern };
    let Some(mut name) = name.strip_prefix(head) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let tail = parts.pop().unwrap_or_default();
    for part in parts {
        // The earliest place leaves the most for what follows.
        let Some(at) = name.find(part) else { return false };
        name = &name[at + part.len()..];
    }
    name.ends_with(tail)
}

/// The states of a rule that keeps `N`.
///
/// # Panics
/// With another number of them: a bug in the rule.
pub(super) fn states<const N: usize>(state: &mut [Tensor]) -> &mut [Tensor; N] {
    state.try_into().expect("as many states as the rule keeps")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_anything() {
        let cases = [
            ("layers.0.bias", "*.bias", true),
            ("bias", "*.bias", false),
            ("layers.0.bias", "layers.0.bias", true),
            ("layers.0.bias", "layers.0", false),
            ("layers.10.norm.weight", "layers.*.norm.*", true),
            ("layers.10.conv.weight", "layers.*.norm.*", false),
            ("abab", "*ab", true),
            ("ab", "a*b*b", false),
            ("", "*", true),
        ];
        for (name, pattern, expected) in cases {
            assert_eq!(is_like(name, pattern), expected, "{name} {pattern}");
        }
    }
}
