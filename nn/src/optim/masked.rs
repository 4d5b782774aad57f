//! An optimizer that keeps pruned weights at zero.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use lowtide_autograd::{Gradients, LeafId};
use lowtide_tensor::{DType, Tensor};

use crate::compress::prune::masks::Masks;
use crate::error::{NnError, Result, WeightsProblem};
use crate::module::{Parameters, visit_once};
use crate::optim::optimizer::{
    FusedUpdate, Optimizer, OptimizerMemory, OptimizerState, Scheduled, Stateful, Update,
};
use crate::optim::slots::{StateKind, block_bytes, take_states};

/// Name of the mask among the states of a parameter.
const SUFFIX: &str = "pruned";

/// An optimizer that keeps pruned weights at zero. The gradients of pruned weights are set to zero,
/// as with `torch.nn.utils.prune`. After each update the weights are set to zero, so that an old
/// momentum does not move them. Pruned weights do not affect numbers that the optimizer computes
/// from a whole tensor, such as a norm or the scale of a block in 8 bits.
///
/// The masks are part of the state: checkpoints hold them as `{parameter}.pruned`. No step writes
/// the masks. Gradients are masked in place if no other handle holds them. A trainer that clips
/// gradients measures the gradients before they are masked.
#[derive(Clone, Debug)]
pub struct Masked<O> {
    optimizer: O,
    masks: Masks,
}

impl<O: Optimizer> Masked<O> {
    /// Wraps `optimizer` with the masks of a model that was [pruned](crate::prune::magnitude). With
    /// empty masks, the optimizer can get masks from a [state](Stateful::set_state).
    pub fn new(optimizer: O, masks: Masks) -> Self {
        Masked { optimizer, masks }
    }

    /// The inner optimizer.
    pub fn optimizer(&self) -> &O {
        &self.optimizer
    }

    /// The masks of the weights that stay zero.
    pub fn masks(&self) -> &Masks {
        &self.masks
    }

    /// A job for each parameter that has a mask and is not frozen.
    fn jobs(&self, parameters: &mut dyn Parameters) -> BTreeMap<LeafId, Job> {
        let mut jobs = BTreeMap::new();
        visit_once(parameters, &mut |_, parameter| {
            let mask = self.masks.get(parameter.id()).filter(|_| !parameter.is_frozen());
            if let Some(mask) = mask {
                let (value, mask) = (parameter.value().clone(), mask.clone());
                jobs.insert(parameter.id(), Job { value, mask });
            }
        });
        jobs
    }
}

/// A pruned parameter with its mask.
struct Job {
    value: Tensor,
    mask: Tensor,
}

impl Job {
    /// The gradient with zeros at the pruned weights.
    fn masked(&self, mut gradient: Tensor) -> Result<Tensor> {
        // The optimizer reports a gradient of another shape.
        if gradient.shape() != self.mask.shape() {
            return Ok(gradient);
        }
        if !gradient.is_reusable() {
            return Ok(gradient.masked_fill(&self.mask, 0.0)?);
        }
        gradient.masked_fill_(&self.mask, 0.0)?;
        Ok(gradient)
    }

    fn apply(&mut self) -> Result<()> {
        Ok(self.value.masked_fill_(&self.mask, 0.0)?)
    }
}

impl<O: Optimizer> Optimizer for Masked<O> {
    fn prepare(
        &mut self,
        parameters: &mut dyn Parameters,
        mut gradients: Gradients,
    ) -> Result<Update<'_>> {
        let mut jobs = self.jobs(parameters);
        // Parameters without a gradient are not updated.
        jobs.retain(|&leaf, _| gradients.get(leaf).is_some());
        for (&leaf, job) in &jobs {
            if let Some(gradient) = gradients.remove(leaf) {
                gradients.insert(leaf, job.masked(gradient)?);
            }
        }
        let update = self.optimizer.prepare(parameters, gradients)?;
        Ok(Update::new(move || {
            update.commit()?;
            jobs.values_mut().try_for_each(Job::apply)
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
        let jobs = self.jobs(parameters);
        let Some(update) = self.optimizer.fused(parameters, leaves)? else { return Ok(None) };
        Ok(Some(Box::new(Fused { update, jobs })))
    }

    fn visit_state(&mut self, visitor: &mut dyn FnMut(&mut Tensor)) {
        self.optimizer.visit_state(visitor);
        self.masks.0.values_mut().for_each(visitor);
    }
}

/// An update of one parameter at a time, with the masks.
struct Fused<'a> {
    update: Box<dyn FusedUpdate + 'a>,
    jobs: BTreeMap<LeafId, Job>,
}

impl FusedUpdate for Fused<'_> {
    fn apply(&mut self, leaf: LeafId, gradient: Tensor) -> Result<()> {
        let Some(job) = self.jobs.get_mut(&leaf) else { return self.update.apply(leaf, gradient) };
        self.update.apply(leaf, job.masked(gradient)?)?;
        job.apply()
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.update.finish()
    }
}

impl<O: Scheduled> Scheduled for Masked<O> {
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

impl<O: Stateful + Clone + 'static> Stateful for Masked<O> {
    /// Memory of the inner optimizer and of the masks. The masks exist before the first update.
    fn memory(&self, parameters: &mut dyn Parameters) -> OptimizerMemory {
        let mut memory = self.optimizer.memory(parameters);
        visit_once(parameters, &mut |_, parameter| {
            if let Some(mask) = self.masks.get(parameter.id()) {
                memory.state_bytes += block_bytes(mask.element_count(), DType::Bool);
            }
        });
        memory
    }

    fn state(&self, parameters: &mut dyn Parameters) -> Result<OptimizerState> {
        let mut state = self.optimizer.state(parameters)?;
        parameters.visit(&mut |name, parameter| {
            if let Some(mask) = self.masks.get(parameter.id()) {
                state.tensors.insert(format!("{name}.{SUFFIX}"), mask.clone());
            }
        });
        Ok(state)
    }

    /// # Errors
    /// Also `State` if the parameter has a mask here but not in the state.
    fn set_state(
        &mut self,
        parameters: &mut dyn Parameters,
        mut state: OptimizerState,
    ) -> Result<()> {
        let mut masks = BTreeMap::new();
        let mut result = Ok(());
        parameters.visit(&mut |name, parameter| {
            let (id, value) = (parameter.id(), parameter.value());
            let kind = StateKind { name: SUFFIX, shape: *value.shape(), dtype: DType::Bool };
            let missing = || {
                let problem = WeightsProblem::Missing;
                Err(NnError::State { name: format!("{name}.{SUFFIX}"), problem })
            };
            let found = match take_states(name, value, &[kind], &mut state.tensors) {
                Ok(Some(found)) => {
                    masks.extend(found.into_iter().map(|mask| (id, mask)));
                    Ok(())
                }
                Ok(None) if self.masks.get(id).is_some() => missing(),
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            };
            result = mem::replace(&mut result, Ok(())).and(found);
        });
        result?;
        self.optimizer.set_state(parameters, state)?;
        self.masks = Masks(masks);
        Ok(())
    }

    /// Masks the averages too: an average may have started before the model was pruned.
    fn swap_averages(&mut self, parameters: &mut dyn Parameters) -> Result<bool> {
        let is_swapped = self.optimizer.swap_averages(parameters)?;
        if is_swapped {
            self.masks.apply(parameters)?;
        }
        Ok(is_swapped)
    }

    fn eight_bit(&self) -> Option<Box<dyn Stateful>> {
        let optimizer = self.optimizer.eight_bit()?;
        Some(Box::new(Masked { optimizer, masks: self.masks.clone() }))
    }

    fn boxed_clone(&self) -> Box<dyn Stateful> {
        Box::new(self.clone())
    }
}
