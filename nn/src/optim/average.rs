//! An exponential moving average of the weights, kept beside an optimizer.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use lowtide_allocator::Category;
use lowtide_autograd::{Gradients, LeafId};
use lowtide_tensor::{
    DType, Float, KnownFormula, Rounding, Tensor, TensorUpdate, UpdateFormula, update_all_,
};

use crate::checks::check_option;
use crate::error::{NnError, Result, WeightsProblem};
use crate::module::{Parameters, visit_once};
use crate::optim::optimizer::{
    FusedUpdate, Optimizer, OptimizerMemory, OptimizerState, Scheduled, Stateful, Update,
};
use crate::optim::rule::{StateSpec, reserve_for};
use crate::optim::slots::{StateKind, block_bytes, take_states};
use crate::parameter::Parameter;

/// Name of the operation in errors.
const NAME: &str = "average";
/// Name of the average among the states of a parameter.
const SUFFIX: &str = "ema";

/// An optimizer that also keeps an exponential moving average of the parameters, in f32 or f64.
/// After each update `average = average + (1 - decay) (p - average)`; after the first update the
/// average is `p` (`torch.optim.swa_utils.AveragedModel` with `get_ema_multi_avg_fn`).
#[derive(Clone, Debug)]
pub struct Averaged<O> {
    optimizer: O,
    decay: f64,
    averages: BTreeMap<LeafId, Tensor>,
    /// The values of parameters whose type is narrower than the average's, while the two are
    /// swapped.
    swapped: Option<BTreeMap<LeafId, Tensor>>,
}

impl<O: Optimizer> Averaged<O> {
    /// Wraps `optimizer`. `decay` is the fraction of the average that stays in each update.
    ///
    /// # Errors
    /// `Option` unless `decay` is from 0 to 1.
    pub fn new(optimizer: O, decay: f64) -> Result<Self> {
        check_option("decay", decay, "0..=1", |x| (0.0..=1.0).contains(&x))?;
        Ok(Averaged { optimizer, decay, averages: BTreeMap::new(), swapped: None })
    }

    /// A job for the average of each parameter that is not frozen.
    fn jobs(&self, parameters: &mut dyn Parameters) -> Result<Vec<Job>> {
        let mut jobs = Vec::new();
        let mut result = Ok(());
        visit_once(parameters, &mut |_, parameter| {
            if result.is_ok() && !parameter.is_frozen() {
                let job = Job::new(parameter, self.averages.get(&parameter.id()), self.decay);
                result = job.map(|job| jobs.push(job));
            }
        });
        result?;
        reserve_for(jobs.iter().map(|job| &job.average))?;
        Ok(jobs)
    }

    /// The inner optimizer.
    pub fn optimizer(&self) -> &O {
        &self.optimizer
    }

    /// True if the parameters hold their averages, between two calls of [`Averaged::swap`].
    pub fn is_swapped(&self) -> bool {
        self.swapped.is_some()
    }

    /// Exchanges the values of the parameters with their averages, for an evaluation. A second call
    /// exchanges them back, with the same bits. Takes memory for the largest parameter; while
    /// swapped, also for the values of all parameters of half types. A parameter without an average
    /// keeps its value.
    ///
    /// # Errors
    /// `OutOfMemory`, `Frozen`; then nothing is exchanged.
    pub fn swap(&mut self, parameters: &mut dyn Parameters) -> Result<()> {
        let mut all = Vec::new();
        visit_once(parameters, &mut |_, parameter| {
            if let Some(average) = self.averages.get(&parameter.id()) {
                all.push((parameter.id(), parameter.value().clone(), average.clone()));
            }
        });
        for (_, value, average) in &all {
            value.check_writable("swap")?;
            average.check_writable("swap")?;
        }
        let is_wide = |value: &Tensor| value.dtype() == value.dtype().computed();
        let spare = |dtype: DType| -> Result<Option<Tensor>> {
            let values = all.iter().map(|(_, value, _)| value);
            let largest = values.filter(|value| value.dtype() == dtype).map(Tensor::element_count);
            let Some(len) = largest.max() else { return Ok(None) };
            Ok(Some(Tensor::empty(all[0].1.device(), [len], dtype)?))
        };
        let spares = [spare(DType::F32)?, spare(DType::F64)?];
        let kept = match &self.swapped {
            Some(_) => BTreeMap::new(),
            None => {
                let half = all.iter().filter(|(_, value, _)| !is_wide(value));
                half.map(|(id, value, _)| Ok((*id, value.copied()?))).collect::<Result<_>>()?
            }
        };
        // The code below cannot fail.
        let back = self.swapped.take();
        for (id, mut value, mut average) in all {
            if is_wide(&value) {
                let spare = spares.iter().flatten().find(|spare| spare.dtype() == value.dtype());
                let spare =
                    spare.expect("one for each type").narrow(0, 0, value.element_count())?;
                let mut spare = spare.reshape(*value.shape())?;
                spare.copy_(&value)?;
                value.copy_(&average)?;
                average.copy_(&spare)?;
            } else {
                let kept = back.as_ref().and_then(|back| back.get(&id));
                value.copy_(kept.unwrap_or(&average))?;
            }
        }
        self.swapped = if back.is_some() { None } else { Some(kept) };
        Ok(())
    }
}

impl<O: Optimizer> Optimizer for Averaged<O> {
    fn prepare(
        &mut self,
        parameters: &mut dyn Parameters,
        gradients: Gradients,
    ) -> Result<Update<'_>> {
        if self.is_swapped() {
            return Err(NnError::Swapped);
        }
        let mut jobs = self.jobs(parameters)?;
        let Averaged { optimizer, averages, .. } = self;
        let update = optimizer.prepare(parameters, gradients)?;
        Ok(Update::new(move || {
            jobs.iter().try_for_each(|job| job.average.check_writable(NAME))?;
            update.commit()?;
            update_averages(&mut jobs)?;
            averages.extend(jobs.into_iter().map(|job| (job.id, job.average)));
            Ok(())
        }))
    }

    fn can_fuse(&self) -> bool {
        self.optimizer.can_fuse()
    }

    fn fused(
        &mut self,
        parameters: &mut dyn Parameters,
        leaves: &BTreeSet<LeafId>,
    ) -> Result<Option<Box<dyn FusedUpdate + '_>>> {
        if self.is_swapped() {
            return Err(NnError::Swapped);
        }
        let jobs = self.jobs(parameters)?;
        let Averaged { optimizer, averages, .. } = self;
        let Some(update) = optimizer.fused(parameters, leaves)? else { return Ok(None) };
        Ok(Some(Box::new(Fused { update, jobs, averages })))
    }

    fn visit_state(&mut self, visitor: &mut dyn FnMut(&mut Tensor)) {
        self.optimizer.visit_state(visitor);
        self.averages.values_mut().for_each(&mut *visitor);
        self.swapped.iter_mut().flat_map(BTreeMap::values_mut).for_each(visitor);
    }
}

/// An update of one parameter at a time, with the averages.
struct Fused<'a> {
    update: Box<dyn FusedUpdate + 'a>,
    /// The jobs of parameters that are not updated yet.
    jobs: Vec<Job>,
    averages: &'a mut BTreeMap<LeafId, Tensor>,
}

impl FusedUpdate for Fused<'_> {
    fn apply(&mut self, leaf: LeafId, gradient: Tensor) -> Result<()> {
        let index = self.jobs.iter().position(|job| job.id == leaf);
        if let Some(index) = index {
            self.jobs[index].average.check_writable(NAME)?;
        }
        self.update.apply(leaf, gradient)?;
        if let Some(index) = index {
            let mut job = [self.jobs.swap_remove(index)];
            update_averages(&mut job)?;
            let [job] = job;
            self.averages.insert(job.id, job.average);
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        update_averages(&mut self.jobs)?;
        self.averages.extend(self.jobs.into_iter().map(|job| (job.id, job.average)));
        self.update.finish()
    }
}

impl<O: Scheduled> Scheduled for Averaged<O> {
    fn steps(&self) -> u64 {
        self.optimizer.steps()
    }

    fn learning_rate(&self) -> f64 {
        self.optimizer.learning_rate()
    }

    fn set_learning_rate(&mut self, learning_rate: f64) {
        self.optimizer.set_learning_rate(learning_rate);
    }
}

impl<O: Stateful + Clone + 'static> Stateful for Averaged<O> {
    fn memory(&self, parameters: &mut dyn Parameters) -> OptimizerMemory {
        let mut memory = self.optimizer.memory(parameters);
        visit_once(parameters, &mut |_, parameter| {
            if !parameter.is_frozen() {
                let value = parameter.value();
                memory.state_bytes += block_bytes(value.element_count(), value.dtype().computed());
            }
        });
        memory
    }

    fn state(&self, parameters: &mut dyn Parameters) -> Result<OptimizerState> {
        if self.is_swapped() {
            return Err(NnError::Swapped);
        }
        let mut state = self.optimizer.state(parameters)?;
        parameters.visit(&mut |name, parameter| {
            if let Some(average) = self.averages.get(&parameter.id()) {
                state.tensors.insert(key(name), average.clone());
            }
        });
        Ok(state)
    }

    fn set_state(
        &mut self,
        parameters: &mut dyn Parameters,
        mut state: OptimizerState,
    ) -> Result<()> {
        if self.is_swapped() {
            return Err(NnError::Swapped);
        }
        let mut averages = BTreeMap::new();
        let mut result = Ok(());
        parameters.visit(&mut |name, parameter| {
            let value = parameter.value();
            let kind = StateKind::new(&StateSpec::own(SUFFIX, *value.shape()), value, false);
            let needs_one = state.steps > 0 && !parameter.is_frozen();
            match take_states(name, value, &[kind], &mut state.tensors) {
                Ok(Some(found)) => averages.extend(found.into_iter().map(|x| (parameter.id(), x))),
                Ok(None) if needs_one => {
                    let (name, problem) = (key(name), WeightsProblem::Missing);
                    result = mem::replace(&mut result, Ok(()))
                        .and(Err(NnError::State { name, problem }));
                }
                Ok(None) => {}
                Err(error) => result = mem::replace(&mut result, Ok(())).and(Err(error)),
            }
        });
        result?;
        self.optimizer.set_state(parameters, state)?;
        self.averages = averages;
        Ok(())
    }

    fn swap_averages(&mut self, parameters: &mut dyn Parameters) -> Result<bool> {
        self.swap(parameters).map(|()| true)
    }

    fn eight_bit(&self) -> Option<Box<dyn Stateful>> {
        let Averaged { decay, averages, swapped, .. } = self.clone();
        let optimizer = self.optimizer.eight_bit()?;
        Some(Box::new(Averaged { optimizer, decay, averages, swapped }))
    }

    fn boxed_clone(&self) -> Box<dyn Stateful> {
        Box::new(self.clone())
    }
}

fn key(parameter: &str) -> String {
    format!("{parameter}.{SUFFIX}")
}

/// The update of the average of one parameter.
struct Job {
    id: LeafId,
    value: Tensor,
    average: Tensor,
    take: f64,
}

impl Job {
    fn new(parameter: &Parameter, average: Option<&Tensor>, decay: f64) -> Result<Self> {
        let (id, value) = (parameter.id(), parameter.value().clone());
        if let Some(average) = average {
            return Ok(Job { id, value, average: average.clone(), take: 1.0 - decay });
        }
        let device = value.device().clone();
        let _scope = device.category(Category::OptimizerState);
        let average = Tensor::zeros(&device, *value.shape(), value.dtype().computed())?;
        Ok(Job { id, value, average, take: 1.0 })
    }

    fn update(&mut self) -> TensorUpdate<'_, Formula> {
        TensorUpdate {
            parameter: &mut self.average,
            gradient: &self.value,
            states: &mut [],
            scalars: &[],
            formula: Formula { take: self.take },
            rounding: Rounding::Nearest,
        }
    }
}

fn update_averages(jobs: &mut [Job]) -> Result<()> {
    let Some(device) = jobs.first().map(|job| job.value.device().clone()) else { return Ok(()) };
    let mut updates: Vec<_> = jobs.iter_mut().map(Job::update).collect();
    Ok(update_all_(&device, &mut updates)?)
}

#[derive(Clone, Copy)]
struct Formula {
    take: f64,
}

impl UpdateFormula<0, 0> for Formula {
    const NAME: &'static str = NAME;
    const FLOPS: f64 = 3.0;

    fn known(&self) -> Option<KnownFormula> {
        Some(KnownFormula::Average(self.take))
    }

    #[inline(always)]
    fn element<T: Float>(&self, _: [T; 0], average: T, p: T, _: [T; 0]) -> (T, [T; 0]) {
        (average + T::from_f64(self.take) * (p - average), [])
    }
}
