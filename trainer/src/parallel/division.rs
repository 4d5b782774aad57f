//! The division of a training among ranks. All other code asks through this interface.
//!
//! A division has one trait for each of four kinds of questions: about a step (in the order of
//! time), a plan, an evaluation, and a state that is saved or loaded. The default methods answer
//! for one device alone.

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
use crate::parallel::vote::{agree, agree_in_calls};
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

    /// Reduces the model to the parts that this rank has, on `device`. A pipeline does nothing
    /// here, because its [cut](Division::cut) takes an example.
    ///
    /// # Errors
    /// `OutOfMemory`; `Setting` for a model that cannot be divided in this way.
    fn divide(&self, _task: &mut T, _device: &Device, _options: &Options) -> Result<()> {
        Ok(())
    }

    /// Reduces the model to the stage of this rank, on `device`. An example of a batch decides
    /// where the model is cut.
    ///
    /// # Errors
    /// `OutOfMemory`; `Setting` for a model that cannot be cut into stages; errors of a forward
    /// pass; `Ranks`.
    fn cut(
        &self,
        _task: &mut T,
        _device: &Device,
        _options: &Options,
        _example: &BatchView<'_>,
    ) -> Result<()> {
        Ok(())
    }

    /// True for a model that has to be cut and is not cut yet.
    fn is_to_be_cut(&self) -> bool {
        false
    }
}

impl<T: Task> dyn Division<T> + '_ {
    /// Returns `own` if every rank has succeeded.
    ///
    /// # Errors
    /// The rank's own error; `Ranks` for an error of another rank.
    pub(crate) fn agree<R>(&self, own: Result<R>) -> Result<R> {
        agree(self.ranks(), own)
    }

    /// [`agree_in_calls`] of the ranks, if there are several.
    ///
    /// # Errors
    /// The rank's own error; `Ranks` for an error of another rank.
    pub(crate) fn agree_in_calls<R>(&self, own: Result<R>) -> Result<R> {
        match self.ranks() {
            Some(ranks) => agree_in_calls(ranks, own),
            None => own,
        }
    }
}

/// Questions of a step, in the order of time.
pub(crate) trait StepDivision<T: Task> {
    /// BEGIN: the knobs of the step: `own`, unless all ranks need common knobs.
    ///
    /// # Errors
    /// `Setting` for an optimizer or a summation that cannot be divided in this way; `Ranks`.
    fn begin(&self, own: Knobs, _optimizer: &dyn Stateful, _summation: Summation) -> Result<Knobs> {
        Ok(own)
    }

    /// The blocks that the knobs count: the blocks of this rank.
    fn policies(&self) -> Range<usize> {
        EVERY_BLOCK
    }

    /// The ranks that share the samples of a batch.
    fn sharing(&self) -> Option<&dyn Collectives> {
        None
    }

    /// The counts of the loss over the whole logical batch, from the counts over the samples of
    /// this rank.
    ///
    /// # Errors
    /// `Setting` if ranks count different numbers of loss terms; `Ranks`.
    fn counts(&self, own: Vec<f64>) -> Result<Vec<f64>> {
        match self.sharing() {
            Some(ranks) => sum_counts(ranks, &own),
            None => Ok(own),
        }
    }

    /// Number of samples of the logical batch before the `len` samples of this rank.
    fn samples_before(&self, len: usize) -> usize {
        self.sharing().map_or(0, |ranks| ranks.rank().index * len)
    }

    /// COMPUTE: the gradients of the mean loss of the logical batch, for everything that this rank
    /// updates. If the call succeeds, it has succeeded on all ranks.
    ///
    /// # Errors
    /// Errors of a forward and a backward pass; `Ranks`.
    fn compute(&self, computation: &mut Computation<'_, T>) -> Result<Computed>;

    /// Gradients that other ranks have as well. This rank leaves them out of the length of all
    /// gradients.
    fn counted_elsewhere(&self, _parameters: &mut dyn Parameters) -> BTreeSet<LeafId> {
        BTreeSet::new()
    }

    /// The numbers over all gradients, computed from `own`, the numbers over the gradients of this
    /// rank.
    ///
    /// # Errors
    /// The rank's own error; `Ranks` for an error of another rank.
    fn complete(&self, own: Result<OwnNumbers>) -> Result<OwnNumbers> {
        own
    }

    /// PREPARE: the update of everything that this rank updates.
    ///
    /// # Errors
    /// `OutOfMemory`; errors of the optimizer.
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

    /// COMMIT: completes the parameters `leaves` after their update is written.
    ///
    /// # Errors
    /// Errors of ranks and device. Some parameters are then not whole.
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

/// Choices that a division leaves to the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlanFreedom {
    /// True if an update may be fused: each parameter is updated before the next gradient exists.
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

/// Numbers of a rehearsal that only the division knows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Observed {
    /// Bytes that ranks have summed within passes so far.
    pub(crate) summed_bytes: usize,
    /// Bytes of parameters that ranks have gathered within passes so far.
    pub(crate) gathered_bytes: usize,
    /// Simulated seconds of the forward and the backward pass of one micro-batch in this stage of a
    /// pipeline, in the last step.
    pub(crate) stage_seconds: Option<[f64; 2]>,
}

/// Questions that a plan asks a division.
pub(crate) trait PlanDivision<T: Task> {
    fn freedom(&self) -> PlanFreedom {
        PlanFreedom { fused_update: true, eight_bit_states: true, small_is_faster: false }
    }

    /// The plan of this rank, made to agree with the plans of the other ranks, in micro-batches of
    /// at most `size_max` samples. `find` finds a plan of this rank.
    ///
    /// # Errors
    /// Errors of `find`; `Ranks` for errors of another rank.
    fn plan(&self, size_max: usize, find: &dyn Fn(Wanted) -> Result<Plan>) -> Result<Plan> {
        find(Wanted::UpTo(size_max))
    }

    /// The division of a rehearsal, in which the other ranks are assumed to do the same as this
    /// one. `parameters` belong to the simulated model.
    ///
    /// # Errors
    /// `Setting` for a model that is not cut yet.
    fn rehearsed<'a>(
        &'a self,
        parameters: &mut dyn Parameters,
    ) -> Result<Box<dyn Division<T> + 'a>>;

    /// Numbers of the rehearsal so far, see [`Observed`].
    fn observed(&self) -> Observed {
        Observed::default()
    }

    /// Bytes that this rank sends in a step of `plan`, by a formula. Votes and buffers are not
    /// counted.
    fn sent_bytes(&self, _plan: &Plan, _parameters: &mut dyn Parameters) -> usize {
        0
    }

    /// The blocks of this stage of a pipeline.
    fn stage(&self) -> Range<usize> {
        0..0
    }
}

/// Whole tensors on the host, gathered from the parts of the ranks.
#[derive(Default)]
pub(crate) struct Gathered {
    /// States of the optimizer by name, in the order in which the optimizer has them.
    pub(crate) states: Vec<(String, Tensor)>,
    pub(crate) parameters: BTreeMap<LeafId, Tensor>,
}

/// The role of a rank when whole tensors are gathered.
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

    /// The part of the optimizer's state that this rank has.
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

    /// Restores a state that was returned by [`state`](StateDivision::state).
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

    /// Replaces the optimizer's state by this rank's part of the state in the file `path`.
    ///
    /// # Errors
    /// Errors of the file and of the optimizer, whose state is unchanged then.
    fn load_state(
        &self,
        optimizer: &mut dyn Stateful,
        parameters: &mut dyn Parameters,
        bytes: &[u8],
        path: &Path,
    ) -> NnResult<()> {
        state_from_safetensors(optimizer, parameters, bytes, path)
    }

    /// Overwrites the parameters of this rank, or its parts of them, with the values in `wholes`.
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

    /// Sends the parts of this rank to the ranks that keep whole tensors.
    ///
    /// # Errors
    /// `Ranks`; errors of the device.
    fn gather(
        &self,
        _learned: &mut TrainedState<'_>,
        _optimizer: &mut dyn Stateful,
        _role: GatherRole,
    ) -> Result<Gathered> {
        Ok(Gathered::default())
    }
}
