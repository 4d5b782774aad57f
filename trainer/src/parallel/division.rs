//! The division of a training among ranks: the one seam through which everything else asks.
//!
//! A division answers four kinds of questions, a trait each: those of a step in the order of time,
//! those of a plan, of an evaluation, and of a state that is saved or loaded. The answers that the
//! traits give themselves are those of one device alone.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use lowtide_allocator::Promise;
use lowtide_autograd::{Gradients, LeafId};
use lowtide_data::BatchView;
use lowtide_nn::optim::{OptimizerState, Stateful, Update, state_from_safetensors};
use lowtide_nn::{NnResult, Parameters};
use lowtide_ranks::{Collectives, Rank};
use lowtide_tensor::{Device, Tensor};

use crate::error::Result;
use crate::files::trained_state::TrainedState;
use crate::options::Options;
use crate::parallel::alone::Alone;
use crate::parallel::reduce::sum_counts;
use crate::parallel::vote::agree;
use crate::plan::Plan;
use crate::plan::knobs::{EVERY_BLOCK, Knobs};
use crate::run::evaluation::{Evaluation, score_parts};
use crate::run::score::Score;
use crate::step::compute::{Computation, Computed};
use crate::step::gradient_check::OwnNumbers;
use crate::step::summation::Summation;
use crate::task::contract::Task;

/// A division of a training among ranks.
pub(crate) trait Division<T: Task>: StepDivision<T> + PlanDivision<T> {
    /// The ranks that train together, if there are several.
    fn ranks(&self) -> Option<&dyn Collectives> {
        None
    }

    fn evaluation(&self) -> Box<dyn EvaluationDivision<T> + '_> {
        Box::new(Alone)
    }

    fn state(&self) -> Box<dyn StateDivision + '_> {
        Box::new(Alone)
    }

    /// Leaves of the model on `device` what this rank has of it; nothing where that takes an
    /// [example](Division::cut).
    ///
    /// # Errors
    /// `OutOfMemory`; `Setting` for a model that cannot be divided so.
    fn divide(&self, _task: &mut T, _device: &Device, _options: &Options) -> Result<()> {
        Ok(())
    }

    /// Leaves of the model on `device` what this rank has of it, where an example of a batch
    /// decides that.
    ///
    /// # Errors
    /// `OutOfMemory`; `Setting` for a model that cannot be cut so; errors of a forward pass;
    /// `Ranks`.
    fn cut(
        &self,
        _task: &mut T,
        _device: &Device,
        _options: &Options,
        _example: &BatchView<'_>,
    ) -> Result<()> {
        Ok(())
    }

    /// True until the model is cut, if it has to be.
    fn is_to_be_cut(&self) -> bool {
        false
    }
}

impl<T: Task> dyn Division<T> + '_ {
    /// The own result, if every rank has one.
    ///
    /// # Errors
    /// The rank's own error; `Ranks` for an error of another rank.
    pub(crate) fn agree<R>(&self, own: Result<R>) -> Result<R> {
        agree(self.ranks(), own)
    }
}

/// Questions of a step, in the order of time.
pub(crate) trait StepDivision<T: Task> {
    /// BEGIN: the knobs of the step, which are the own ones unless ranks need common ones.
    ///
    /// # Errors
    /// `Setting` for an optimizer or a summation that cannot be divided so; `Ranks`.
    fn begin(&self, own: Knobs, _optimizer: &dyn Stateful, _summation: Summation) -> Result<Knobs> {
        Ok(own)
    }

    /// The blocks whose policies the knobs are about.
    fn policies(&self) -> Range<usize> {
        EVERY_BLOCK
    }

    /// The ranks that share the samples of a batch.
    fn sharing(&self) -> Option<&dyn Collectives> {
        None
    }

    /// The counts of the loss over the whole logical batch, of those over the own samples.
    ///
    /// # Errors
    /// `Setting` if ranks count differently many terms of a loss; `Ranks`.
    fn counts(&self, own: Vec<f64>) -> Result<Vec<f64>> {
        match self.sharing() {
            Some(ranks) => sum_counts(ranks, &own),
            None => Ok(own),
        }
    }

    /// Samples of the logical batch that come before the own `len`.
    fn samples_before(&self, len: usize) -> usize {
        self.sharing().map_or(0, |ranks| ranks.rank().index * len)
    }

    /// COMPUTE: gradients of the mean loss of the logical batch, of everything that this rank
    /// updates. All ranks have theirs then.
    ///
    /// # Errors
    /// Errors of a forward and a backward pass; `Ranks`.
    fn compute(&self, computation: &mut Computation<'_, T>) -> Result<Computed>;

    /// Gradients that other ranks have as well, and count the length of.
    fn counted_elsewhere(&self, _parameters: &mut dyn Parameters) -> BTreeSet<LeafId> {
        BTreeSet::new()
    }

    /// The numbers of all gradients, of those that this rank has.
    ///
    /// # Errors
    /// The rank's own error; `Ranks` for an error of another rank.
    fn complete(&self, own: Result<OwnNumbers>) -> Result<OwnNumbers> {
        own
    }

    /// PREPARE: the update of everything that this rank updates.
    ///
    /// # Errors
    /// `OutOfMemory`; those of the optimizer.
    fn prepare<'o>(
        &self,
        optimizer: &'o mut dyn Stateful,
        parameters: &mut dyn Parameters,
        gradients: Gradients,
    ) -> NnResult<Update<'o>> {
        optimizer.prepare(parameters, gradients)
    }

    /// Promises the memory that is needed [after the commit](StepDivision::after_commit).
    ///
    /// # Errors
    /// `OutOfMemory`.
    fn promise(&self, _device: &Device) -> Result<Option<Promise>> {
        Ok(None)
    }

    /// COMMIT: completes the parameters with these `leaves`, whose update was written.
    ///
    /// # Errors
    /// Errors of ranks and device: some parameters are then not whole.
    fn after_commit(
        &self,
        _parameters: &mut dyn Parameters,
        _leaves: BTreeSet<LeafId>,
    ) -> NnResult<()> {
        Ok(())
    }
}

/// Questions of an evaluation.
pub(crate) trait EvaluationDivision<T: Task> {
    /// The share of the batches of an evaluation that this rank scores.
    fn share(&self) -> Rank {
        Rank::ALONE
    }

    /// The score of a batch, `micro_batch` samples at a time.
    ///
    /// # Errors
    /// Errors of the task; `Ranks`.
    fn score(
        &self,
        task: &T,
        device: &Device,
        batch: &BatchView<'_>,
        micro_batch: usize,
    ) -> Result<Score> {
        score_parts(task, device, batch, micro_batch)
    }

    /// The score of a whole set, on all ranks.
    ///
    /// # Errors
    /// Errors of the task, out of memory with a single sample; `Ranks`.
    fn evaluate(&self, evaluation: &Evaluation<'_, T>) -> Result<Score> {
        evaluation.score_all()
    }
}

/// Freedom that a division leaves to the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlanFreedom {
    /// True if an update may be fused: each parameter is updated before the next gradient is there.
    pub(crate) fused_update: bool,
    /// True if an optimizer with states in 8 bits may take the place of another one.
    pub(crate) eight_bit_states: bool,
    /// True if smaller micro-batches may be faster than larger ones.
    pub(crate) small_is_faster: bool,
}

/// A plan that a division asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The fastest plan, in micro-batches of at most this number of samples.
    UpTo(usize),
    /// The plan with these knobs.
    With(Knobs),
}

/// Numbers of a rehearsal that only its division knows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Observed {
    /// Bytes that ranks added up within passes so far.
    pub(crate) summed_bytes: usize,
    /// Bytes of parameters that ranks put together within passes so far.
    pub(crate) gathered_bytes: usize,
    /// Simulated seconds of one micro-batch in this stage of a pipeline, forwards and backwards, in
    /// the last step.
    pub(crate) stage_seconds: Option<[f64; 2]>,
}

/// Questions that a plan asks a division.
pub(crate) trait PlanDivision<T: Task> {
    fn freedom(&self) -> PlanFreedom {
        PlanFreedom { fused_update: true, eight_bit_states: true, small_is_faster: false }
    }

    /// The plan that goes with those of the other ranks, in micro-batches of at most `size_max`
    /// samples; `find` finds one of this rank.
    ///
    /// # Errors
    /// Errors of `find`; `Ranks` for errors of another rank.
    fn plan(&self, size_max: usize, find: &dyn Fn(Wanted) -> Result<Plan>) -> Result<Plan> {
        find(Wanted::UpTo(size_max))
    }

    /// The division of a rehearsal, in which the other ranks do the same as this one; `parameters`
    /// are those of the simulated model.
    ///
    /// # Errors
    /// `Setting` for a model that is not cut yet.
    fn rehearsed<'a>(
        &'a self,
        parameters: &mut dyn Parameters,
    ) -> Result<Box<dyn Division<T> + 'a>>;

    /// Numbers of the rehearsal so far.
    fn observed(&self) -> Observed {
        Observed::default()
    }

    /// Bytes that this rank sends in a step of `plan`, by the formula, beside the few by which
    /// ranks agree and those of buffers.
    fn sent_bytes(&self, _plan: &Plan, _parameters: &mut dyn Parameters) -> usize {
        0
    }

    /// The blocks of this stage of a pipeline.
    fn stage(&self) -> Range<usize> {
        0..0
    }
}

/// Whole tensors on the host, put together from the parts of the ranks.
#[derive(Default)]
pub(crate) struct Gathered {
    /// States of the optimizer by name, in the order in which the optimizer has them.
    pub(crate) states: Vec<(String, Tensor)>,
    pub(crate) parameters: BTreeMap<LeafId, Tensor>,
}

/// The role of a rank where whole tensors are gathered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GatherRole {
    /// The rank gives its parts, and keeps the whole tensors.
    Keeps,
    /// The rank gives its parts.
    Gives,
}

/// Questions that saving, loading and hashing a state ask a division.
pub(crate) trait StateDivision {
    /// True if this rank has the whole model.
    fn has_whole_model(&self) -> bool {
        true
    }

    /// True if this rank has the whole model, and the whole state of the optimizer.
    fn has_whole_state(&self) -> bool {
        self.has_whole_model()
    }

    /// The optimizer's state, as far as it is here.
    ///
    /// # Errors
    /// Errors of the optimizer.
    fn state(
        &self,
        optimizer: &dyn Stateful,
        parameters: &mut dyn Parameters,
    ) -> NnResult<OptimizerState> {
        optimizer.state(parameters)
    }

    /// Replaces the optimizer's state by one that this [was](StateDivision::state).
    ///
    /// # Errors
    /// Errors of the optimizer.
    fn set_state(
        &self,
        optimizer: &mut dyn Stateful,
        parameters: &mut dyn Parameters,
        state: OptimizerState,
    ) -> NnResult<()> {
        optimizer.set_state(parameters, state)
    }

    /// Replaces the optimizer's state by what this rank has of that in a file, `path`.
    ///
    /// # Errors
    /// Errors of the file and of the optimizer, which is then as before.
    fn load_state(
        &self,
        optimizer: &mut dyn Stateful,
        parameters: &mut dyn Parameters,
        bytes: &[u8],
        path: &Path,
    ) -> NnResult<()> {
        state_from_safetensors(optimizer, parameters, bytes, path)
    }

    /// Overwrites what this rank has of parameters by that of `wholes`.
    ///
    /// # Errors
    /// Errors of the device.
    fn take(
        &self,
        _parameters: &mut dyn Parameters,
        _wholes: &BTreeMap<LeafId, Tensor>,
    ) -> NnResult<()> {
        Ok(())
    }

    /// Gives what this rank has to those that keep whole tensors.
    ///
    /// # Errors
    /// `Ranks`; those of the device.
    fn gather(
        &self,
        _learned: &mut TrainedState<'_>,
        _optimizer: &mut dyn Stateful,
        _role: GatherRole,
    ) -> Result<Gathered> {
        Ok(Gathered::default())
    }
}
