//! Pipeline parallelism (GPipe, Huang et al. 2019): each of several ranks has a run of the model's
//! blocks, a stage.
//!
//! All ranks have all samples of every batch, which goes through the stages in micro-batches. A
//! rank that fails declines all further exchanges with its neighbours, which then decline as well.
//! So all ranks reach the end of the batch, and vote.

pub(crate) mod course;
pub(crate) mod cut;
pub(crate) mod gathering;
pub(crate) mod lane;
pub(crate) mod pipeline;
pub(crate) mod schedule;
pub(crate) mod scoring;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use lowtide_autograd::{Attempt, LeafId};
use lowtide_data::BatchView;
use lowtide_nn::Parameters;
use lowtide_nn::optim::Stateful;
use lowtide_nn::parallel::keep_own;
use lowtide_ranks::Collectives;
use lowtide_tensor::Device;

use crate::error::{Result, TrainError};
use crate::options::Options;
use crate::parallel::alone::Alone;
use crate::parallel::division::{
    Division, EvaluationDivision, Observed, PlanDivision, PlanFreedom, StateDivision, StepDivision,
    Wanted,
};
use crate::parallel::knobs::{common_micro_batch, plan_of_common_micro_batches};
use crate::parallel::reduce::sum_numbers;
use crate::parallel::stages::course::{add_shared, run_through};
use crate::parallel::stages::cut::{bounds_of, bounds_of_first, check, uncut};
use crate::parallel::stages::gathering::StagedState;
use crate::parallel::stages::pipeline::Pipeline;
use crate::parallel::stages::scoring::InStages;
use crate::parallel::vote::{agree, mirrored};
use crate::parallel::whole::name_tensors;
use crate::plan::Plan;
use crate::plan::knobs::{EVERY_BLOCK, Knobs};
use crate::step::compute::{Computation, Computed};
use crate::step::gradient_check::OwnNumbers;
use crate::step::summation::Summation;
use crate::task::contract::Task;

/// Ranks that each have a stage of the model.
pub(crate) struct Stages<T> {
    ranks: Arc<dyn Collectives>,
    /// Set once the model is cut.
    pipeline: OnceLock<Arc<Pipeline<T>>>,
    /// Simulated seconds of one micro-batch forwards and backwards, in the last step.
    seconds: Mutex<[f64; 2]>,
}

impl<T> Stages<T> {
    pub(crate) fn new(ranks: Arc<dyn Collectives>) -> Self {
        Stages { ranks, pipeline: OnceLock::new(), seconds: Mutex::default() }
    }

    /// # Errors
    /// `Setting` unless the model is cut.
    fn pipeline(&self) -> Result<&Pipeline<T>> {
        let pipeline = self.pipeline.get().map(|pipeline| &**pipeline);
        pipeline.ok_or_else(uncut)
    }
}

impl<T: Task + Clone> Division<T> for Stages<T> {
    fn ranks(&self) -> Option<&dyn Collectives> {
        Some(&*self.ranks)
    }

    fn evaluation(&self) -> Box<dyn EvaluationDivision<T> + '_> {
        match self.pipeline.get() {
            Some(pipeline) => Box::new(InStages { ranks: &*self.ranks, pipeline }),
            None => Box::new(Alone),
        }
    }

    fn state(&self) -> Box<dyn StateDivision + '_> {
        match self.pipeline.get() {
            Some(pipeline) => Box::new(StagedState { ranks: &*self.ranks, pipeline }),
            None => Box::new(Alone),
        }
    }

    fn cut(
        &self,
        task: &mut T,
        device: &Device,
        options: &Options,
        example: &BatchView<'_>,
    ) -> Result<()> {
        if !self.is_to_be_cut() {
            return Ok(());
        }
        let ranks = &*self.ranks;
        let found = check(options, task).and_then(|()| {
            let (whole, simulated) = (task.clone(), device.simulate());
            let (pipeline, found) =
                Pipeline::uncut(ranks.rank(), whole, simulated, example, options.precision)?;
            let bounds = bounds_of(&found.sections, ranks.rank().count)?;
            Ok((pipeline, found.sections, bounds))
        });
        let (pipeline, sections, bounds) = agree(Some(ranks), found)?;
        let pipeline = pipeline.cut_at(bounds_of_first(ranks, &bounds)?, &sections);
        let is_own_buffer = |buffer| pipeline.stage_of_buffer(buffer) == pipeline.index();
        let parameters = task.parameters();
        let kept = keep_own(parameters, device, &|leaf| pipeline.has(leaf), &is_own_buffer);
        agree(Some(ranks), kept.map_err(TrainError::from))?;
        name_tensors(parameters);
        // If a pipeline is set already, it belongs to the same model.
        drop(self.pipeline.set(Arc::new(pipeline)));
        Ok(())
    }

    fn is_to_be_cut(&self) -> bool {
        self.pipeline.get().is_none()
    }
}

impl<T: Task + Clone> StepDivision<T> for Stages<T> {
    fn begin(&self, own: Knobs, _: &dyn Stateful, _: Summation) -> Result<Knobs> {
        common_micro_batch(&*self.ranks, own)
    }

    fn policies(&self) -> Range<usize> {
        self.pipeline.get().map_or(EVERY_BLOCK, |pipeline| pipeline.policies())
    }

    fn compute(&self, computation: &mut Computation<'_, T>) -> Result<Computed> {
        let (ranks, pipeline, device) = (&*self.ranks, self.pipeline()?, computation.passes.device);
        let attempt = Attempt::new();
        let (loss_sum, seconds) = run_through(computation, &attempt, pipeline, ranks);
        *self.seconds.lock().unwrap_or_else(PoisonError::into_inner) = seconds;
        // The wait for the other stages with one micro-batch, if all stages are equally fast.
        let others = (pipeline.stage_count() - 1) as f64;
        computation.hooks.add_skipped_seconds(others * (seconds[0] + seconds[1]));
        let loss_sum = loss_sum.and_then(|loss_sum| {
            computation.enqueued()?;
            Ok(loss_sum)
        });
        let mut loss_sum = agree(Some(ranks), loss_sum)?;
        ranks.broadcast(&mut loss_sum, pipeline.stage_count() - 1)?;
        let (mut gradients, buffers) = attempt.into_parts();
        let mut values = BTreeMap::new();
        computation.task.parameters().visit(&mut |_, parameter| {
            if !parameter.is_frozen() {
                values.insert(parameter.id(), parameter.value().clone());
            }
        });
        let shared = add_shared(ranks, device, pipeline, &values, &mut gradients);
        agree(Some(ranks), shared)?;
        Ok(Computed::new((loss_sum, pipeline.coupling().cloned()), (gradients, buffers)))
    }

    /// The first stage counts the gradient of a parameter that several stages have.
    fn counted_elsewhere(&self, _: &mut dyn Parameters) -> BTreeSet<LeafId> {
        self.pipeline.get().map_or_else(BTreeSet::new, |pipeline| pipeline.of_earlier_stages())
    }

    fn complete(&self, own: Result<OwnNumbers>) -> Result<OwnNumbers> {
        sum_numbers(&*self.ranks, own)
    }
}

impl<T: Task + Clone> PlanDivision<T> for Stages<T> {
    /// With small micro-batches, stages wait less for the first and the last of them.
    fn freedom(&self) -> PlanFreedom {
        PlanFreedom { fused_update: false, eight_bit_states: false, small_is_faster: true }
    }

    fn plan(&self, size_max: usize, find: &dyn Fn(Wanted) -> Result<Plan>) -> Result<Plan> {
        plan_of_common_micro_batches(&*self.ranks, size_max, find)
    }

    fn rehearsed<'a>(&'a self, _: &mut dyn Parameters) -> Result<Box<dyn Division<T> + 'a>> {
        self.pipeline()?;
        Ok(Box::new(Stages {
            ranks: Arc::new(mirrored(&*self.ranks)),
            pipeline: self.pipeline.clone(),
            seconds: Mutex::default(),
        }))
    }

    fn observed(&self) -> Observed {
        let seconds = *self.seconds.lock().unwrap_or_else(PoisonError::into_inner);
        Observed { stage_seconds: Some(seconds), ..Observed::default() }
    }

    fn sent_bytes(&self, plan: &Plan, parameters: &mut dyn Parameters) -> usize {
        self.pipeline.get().map_or(0, |pipeline| pipeline.sent_bytes(plan, parameters))
    }

    fn stage(&self) -> Range<usize> {
        self.pipeline.get().map_or(0..0, |pipeline| pipeline.blocks())
    }
}
