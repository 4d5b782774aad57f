//! The optimizer around an update rule: parameter groups, states, number of updates, learning rate.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use lowtide_autograd::{Gradients, LeafId};
use lowtide_tensor::{DType, RandomKey, Rounding, Tensor};

use crate::checks::check_option;
use crate::error::{NnError, Result, WeightsProblem};
use crate::module::{Parameters, visit_once};
use crate::optim::optimizer::{
    FusedUpdate, Optimizer, OptimizerMemory, OptimizerState, Scheduled, Stateful, Update,
};
use crate::optim::rule::{Job, Scratch, StateShape, UpdateRule, UpdateStep, reserve_for};
use crate::optim::slots::{Slots, StateKind, take_states};
use crate::parameter::Parameter;
use crate::pattern::is_like;
use crate::schedule::Schedule;

/// Smallest number of elements of a parameter whose states can be in 8 bits. Smaller parameters
/// save little memory, and biases and norms need the precision.
const QUANTIZED_LEN_MIN: usize = 4096;

/// An optimizer that updates each parameter by a rule. Each parameter group has its own rule.
#[derive(Clone, Debug)]
pub struct PerParameter<R> {
    /// Parameter groups. The first group has the parameters that match no pattern of another group.
    groups: Vec<Group<R>>,
    /// Learning rate of the first group, without the schedule.
    learning_rate: f64,
    schedule: Schedule,
    slots: Slots,
    steps: u64,
    stochastic: Option<RandomKey>,
    quantized: bool,
}

#[derive(Clone, Debug)]
struct Group<R> {
    /// Pattern of the parameters' names; `*` matches anything.
    pattern: String,
    rule: R,
    /// Ratio of the group's learning rate to the first group's.
    rate_factor: f64,
}

impl<R: UpdateRule> PerParameter<R> {
    /// An optimizer without state yet.
    ///
    /// # Errors
    /// `Option` for a value out of range.
    pub fn new(rule: R) -> Result<Self> {
        check_rule(&rule)?;
        Ok(PerParameter {
            learning_rate: rule.learning_rate(),
            groups: vec![Group { pattern: "*".to_owned(), rule, rate_factor: 1.0 }],
            schedule: Schedule::Constant,
            slots: Slots::default(),
            steps: 0,
            stochastic: None,
            quantized: false,
        })
    }

    /// Adds a parameter group: options for the parameters whose names match `pattern`, in which `*`
    /// matches anything (`*.bias`). The first pattern that matches counts. A schedule keeps the
    /// ratio of the group's learning rate to the first group's.
    ///
    /// # Errors
    /// `Option` for a value out of range.
    pub fn with_group(mut self, pattern: impl Into<String>, rule: R) -> Result<Self> {
        check_rule(&rule)?;
        let base = self.groups[0].rule.learning_rate();
        let rate_factor = if base == 0.0 { 1.0 } else { rule.learning_rate() / base };
        self.groups.push(Group { pattern: pattern.into(), rule, rate_factor });
        Ok(self)
    }

    /// Makes the learning rate follow `schedule`. The learning rate is a function of
    /// [`Scheduled::steps`]: a step that is rolled back or skipped does not move it, and a loaded
    /// optimizer continues where it was saved.
    ///
    /// # Errors
    /// `Option` for a value out of range.
    pub fn with_schedule(self, schedule: Schedule) -> Result<Self> {
        schedule.check()?;
        Ok(PerParameter { schedule, ..self })
    }

    /// Rounds updated parameters of bf16 stochastically; see [`Rounding::Stochastic`].
    #[must_use]
    pub fn with_stochastic_rounding(self, key: RandomKey) -> Self {
        PerParameter { stochastic: Some(key), ..self }
    }

    /// Keeps the states of parameters with 4,096 elements or more in 8 bits, a little over a
    /// quarter of the memory (Dettmers et al. 2022, with the paper's threshold). States of f64
    /// parameters stay, and so do states whose shape differs from the parameter's.
    #[must_use]
    pub fn with_8bit_states(self) -> Self {
        PerParameter { quantized: true, ..self }
    }

    /// Names, shapes and types of the states of the parameter `name`.
    fn state_kinds(&self, name: &str, parameter: &Tensor) -> Vec<StateKind> {
        let specs = self.groups[self.group(name)].rule.states(parameter);
        let quantized = self.quantized
            && specs.iter().all(|spec| spec.shape == StateShape::Parameter)
            && parameter.element_count() >= QUANTIZED_LEN_MIN
            && parameter.dtype() != DType::F64
            && parameter.layout().is_contiguous();
        specs.iter().map(|spec| StateKind::new(spec, parameter, quantized)).collect()
    }

    /// Index of the group of the parameter `name`.
    fn group(&self, name: &str) -> usize {
        let mut named = self.groups[1..].iter();
        named.position(|group| is_like(name, &group.pattern)).map_or(0, |index| index + 1)
    }

    /// The jobs of each group: one for each parameter with a gradient.
    fn jobs(
        &self,
        parameters: &mut dyn Parameters,
        mut gradients: Gradients,
    ) -> Result<Vec<Vec<Job>>> {
        let mut jobs: Vec<Vec<Job>> = self.groups.iter().map(|_| Vec::new()).collect();
        let learning_rate = self.learning_rate();
        let mut result = Ok(());
        parameters.visit(&mut |name, parameter| {
            if result.is_err() {
                return;
            }
            let gradient = gradients.remove(parameter.id()).filter(|_| !parameter.is_frozen());
            let Some(gradient) = gradient else { return };
            let job = self.target(name, parameter, learning_rate);
            match job.and_then(|target| Ok((target.group, target.job(name, gradient)?))) {
                Ok((group, job)) => jobs[group].push(job),
                Err(error) => result = Err(error),
            }
        });
        result.map(|()| jobs)
    }

    /// The target of an update of the parameter `name`. `learning_rate` is the first group's.
    fn target(&self, name: &str, parameter: &Parameter, learning_rate: f64) -> Result<Target> {
        let (id, value, group) = (parameter.id(), parameter.value(), self.group(name));
        let kinds = self.state_kinds(name, value);
        let (states, is_first) = self.slots.states(id, value, &kinds)?;
        let rounding = match (self.stochastic, value.dtype()) {
            (Some(key), DType::BF16) => Rounding::Stochastic(key.step(self.steps).op(name)),
            _ => Rounding::Nearest,
        };
        let at = UpdateStep {
            number: self.steps + 1,
            is_first,
            learning_rate: self.groups[group].rate_factor * learning_rate,
            rounding,
        };
        Ok(Target { id, group, parameter: value.clone(), states, at })
    }
}

/// The update of one parameter before its gradient is known: the tensors that the update writes,
/// and its learning rate.
struct Target {
    id: LeafId,
    group: usize,
    parameter: Tensor,
    states: Vec<Tensor>,
    at: UpdateStep,
}

/// `Ok` if the options of a rule are in their ranges and its learning rate is finite.
fn check_rule(rule: &impl UpdateRule) -> Result<()> {
    rule.check()?;
    check_option("learning_rate", rule.learning_rate(), "the finite numbers", f64::is_finite)
}

impl Target {
    /// The job that updates the parameter `name` from `gradient`.
    fn job(self, name: &str, gradient: Tensor) -> Result<Job> {
        let Target { id, parameter, states, at, .. } = self;
        let (found, expected) = (*gradient.shape(), *parameter.shape());
        let fits = [parameter.dtype(), parameter.dtype().computed()].contains(&gradient.dtype());
        if found != expected || !fits {
            return Err(NnError::Gradient { name: name.to_owned(), found, expected });
        }
        Ok(Job { id, parameter, gradient, states, scratch: Vec::new(), at })
    }
}

/// An update of one parameter at a time.
struct Fused<'a, R> {
    optimizer: &'a mut PerParameter<R>,
    /// The targets by leaf, each with its name.
    targets: BTreeMap<LeafId, (String, Target)>,
}

impl<R: UpdateRule> FusedUpdate for Fused<'_, R> {
    fn apply(&mut self, leaf: LeafId, gradient: Tensor) -> Result<()> {
        let Some((name, target)) = self.targets.remove(&leaf) else { return Ok(()) };
        let group = target.group;
        let mut job = [target.job(&name, gradient)?];
        job[0].check_kernel::<R>()?;
        job[0].check_writable(R::NAME)?;
        self.optimizer.groups[group].rule.commit(&mut job, &mut [])?;
        let [job] = job;
        self.optimizer.slots.keep(job.id, job.states);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.optimizer.steps += 1;
        Ok(())
    }
}

impl<R: UpdateRule> Optimizer for PerParameter<R> {
    fn prepare(
        &mut self,
        parameters: &mut dyn Parameters,
        gradients: Gradients,
    ) -> Result<Update<'_>> {
        let mut jobs = self.jobs(parameters, gradients)?;
        let mut shared = Vec::new();
        for (group, jobs) in self.groups.iter().zip(&mut jobs) {
            shared.push(group.rule.prepare(jobs)?);
            jobs.iter().try_for_each(Job::check_kernel::<R>)?;
        }
        reserve_for(jobs.iter().flatten().map(|job| &job.parameter))?;
        Ok(Update::new(move || {
            jobs.iter().flatten().try_for_each(|job| job.check_writable(R::NAME))?;
            for ((group, mut jobs), mut shared) in self.groups.iter().zip(jobs).zip(shared) {
                group.rule.commit(&mut jobs, &mut shared)?;
                jobs.into_iter().for_each(|job| self.slots.keep(job.id, job.states));
            }
            self.steps += 1;
            Ok(())
        }))
    }

    fn can_fuse(&self) -> bool {
        R::IS_ELEMENTWISE
    }

    fn fused(
        &mut self,
        parameters: &mut dyn Parameters,
        leaves: &BTreeSet<LeafId>,
    ) -> Result<Option<Box<dyn FusedUpdate + '_>>> {
        if !self.can_fuse() {
            return Ok(None);
        }
        let learning_rate = self.learning_rate();
        let mut targets = BTreeMap::new();
        let mut result = Ok(());
        visit_once(parameters, &mut |name, parameter| {
            if result.is_err() || parameter.is_frozen() || !leaves.contains(&parameter.id()) {
                return;
            }
            match self.target(name, parameter, learning_rate) {
                Ok(target) => _ = targets.insert(target.id, (name.to_owned(), target)),
                Err(error) => result = Err(error),
            }
        });
        result?;
        reserve_for(targets.values().map(|(_, target)| &target.parameter))?;
        Ok(Some(Box::new(Fused { optimizer: self, targets })))
    }

    fn can_update_parts(&self) -> bool {
        R::IS_ELEMENTWISE && !self.quantized && self.stochastic.is_none()
    }

    fn visit_state(&mut self, visitor: &mut dyn FnMut(&mut Tensor)) {
        self.slots.visit(visitor);
    }
}

impl<R: UpdateRule> Scheduled for PerParameter<R> {
    fn steps(&self) -> u64 {
        self.steps
    }

    fn learning_rate(&self) -> f64 {
        self.schedule.learning_rate(self.learning_rate, self.steps)
    }

    fn set_learning_rate(&mut self, learning_rate: f64) {
        self.learning_rate = learning_rate;
    }
}

impl<R: UpdateRule> Stateful for PerParameter<R> {
    fn memory(&self, parameters: &mut dyn Parameters) -> OptimizerMemory {
        let mut state_bytes = 0;
        let mut by_group: Vec<Vec<Tensor>> = self.groups.iter().map(|_| Vec::new()).collect();
        visit_once(parameters, &mut |name, parameter| {
            if parameter.is_frozen() {
                return;
            }
            let value = parameter.value();
            let kinds = self.state_kinds(name, value);
            state_bytes += kinds.iter().map(StateKind::size_bytes).sum::<usize>();
            by_group[self.group(name)].push(value.clone());
        });
        let scratch = |(group, values): (&Group<R>, &Vec<Tensor>)| {
            group.rule.scratch(&values.iter().collect::<Vec<_>>())
        };
        let scratch = self.groups.iter().zip(&by_group).map(scratch);
        let scratch = scratch.fold(Scratch::default(), Scratch::then);
        OptimizerMemory { state_bytes, scratch_bytes: scratch.peak_bytes }
    }

    fn state(&self, parameters: &mut dyn Parameters) -> Result<OptimizerState> {
        let mut tensors = BTreeMap::new();
        parameters.visit(&mut |name, parameter| {
            let Some(states) = self.slots.0.get(&parameter.id()) else { return };
            let kinds = self.state_kinds(name, parameter.value());
            for (kind, state) in kinds.iter().zip(states) {
                tensors.insert(format!("{name}.{}", kind.name), state.clone());
            }
        });
        let (steps, learning_rate, models) = (self.steps, self.learning_rate, BTreeMap::new());
        Ok(OptimizerState { steps, learning_rate, tensors, models })
    }

    fn set_state(&mut self, parameters: &mut dyn Parameters, state: OptimizerState) -> Result<()> {
        let OptimizerState { steps, learning_rate, mut tensors, models } = state;
        let mut slots = Slots::default();
        let mut result = Ok(());
        parameters.visit(&mut |name, parameter| {
            let value = parameter.value();
            let kinds = self.state_kinds(name, value);
            match take_states(name, value, &kinds, &mut tensors) {
                Ok(Some(states)) => slots.keep(parameter.id(), states),
                Ok(None) => {}
                Err(error) => result = mem::replace(&mut result, Ok(())).and(Err(error)),
            }
        });
        result?;
        if let Some(name) = tensors.into_keys().chain(models.into_keys()).next() {
            return Err(NnError::State { name, problem: WeightsProblem::Unknown });
        }
        check_option("learning_rate", learning_rate, "0..", |x| x >= 0.0)?;
        (self.slots, self.steps, self.learning_rate) = (slots, steps, learning_rate);
        Ok(())
    }

    fn eight_bit(&self) -> Option<Box<dyn Stateful>> {
        let may_change = self.steps == 0 && !self.quantized;
        may_change.then(|| Box::new(self.clone().with_8bit_states()) as Box<dyn Stateful>)
    }

    fn boxed_clone(&self) -> Box<dyn Stateful> {
        Box::new(self.clone())
    }
}
