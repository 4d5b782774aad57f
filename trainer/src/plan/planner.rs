//! Plans of a run, made together with the other ranks.

use lowtide_nn::optim::Stateful;

use crate::error::Result;
use crate::parallel::division::Wanted;
use crate::plan::Plan;
use crate::plan::events::PlannedEvent;
use crate::plan::forecast::Forecast;
use crate::plan::knobs::Knobs;
use crate::plan::rehearsal::RunInputs;
use crate::plan::search::forecasts::Forecasts;
use crate::plan::search::{Search, Splitting};
use crate::task::contract::Task;

/// Options of a plan.
#[derive(Clone, Debug)]
pub struct PlanOptions {
    /// Knobs that the plan must have, even if other knobs are faster. If absent, the plan has the
    /// fastest knobs that fit.
    pub knobs: Option<Knobs>,
    /// Largest micro-batch, in samples. Ignored if knobs are given.
    pub micro_batch_max: usize,
    /// Earlier forecasts of this training.
    pub forecasts: Forecasts,
}

impl Default for PlanOptions {
    fn default() -> Self {
        PlanOptions { knobs: None, micro_batch_max: usize::MAX, forecasts: Forecasts::default() }
    }
}

impl From<Knobs> for PlanOptions {
    fn from(knobs: Knobs) -> Self {
        PlanOptions { knobs: Some(knobs), ..PlanOptions::default() }
    }
}

/// The planner of one run.
pub(crate) struct Planner<'a, T, O> {
    pub(crate) inputs: RunInputs<'a, T, O>,
    pub(crate) events: &'a [PlannedEvent<'a>],
    /// Number of samples of a logical batch.
    pub(crate) batch_size: usize,
    pub(crate) splitting: Splitting,
}

impl<T: Task + Clone, O: Stateful + Clone> Planner<'_, T, O> {
    /// The plan of this rank, made to agree with the plans of the other ranks.
    ///
    /// # Errors
    /// `DoesNotFit`; `Setting` for impossible knobs; errors of a rehearsal; `Ranks`.
    pub(crate) fn plan(&self, options: &PlanOptions) -> Result<Plan> {
        let size_max = options.micro_batch_max.min(self.batch_size);
        self.inputs.division.plan(size_max, &|wanted| self.find(options, wanted))
    }

    /// A plan of this rank alone.
    ///
    /// # Errors
    /// Errors of [`Planner::plan`] except `Ranks`.
    pub(crate) fn find(&self, options: &PlanOptions, wanted: Wanted) -> Result<Plan> {
        let budget_bytes = self.inputs.device.allocator().capacity_bytes();
        let search = Search::new(self.inputs, self.events, budget_bytes);
        let search = search.sharing(&options.forecasts);
        match (options.knobs, wanted) {
            (_, Wanted::With(knobs)) | (Some(knobs), Wanted::UpTo(_)) => {
                search.find_with(self.batch_size, knobs, self.splitting)
            }
            (None, Wanted::UpTo(size_max)) => {
                search.find(self.batch_size, size_max, self.splitting)
            }
        }
    }

    /// The least budget for which there is a plan.
    ///
    /// # Errors
    /// Errors of a rehearsal.
    pub(crate) fn least_bytes(&self, forecasts: &Forecasts) -> Result<usize> {
        let search = Search::new(self.inputs, self.events, 0).sharing(forecasts);
        search.least_budget(self.batch_size, self.splitting)
    }

    /// See [`Trainer::survey`](crate::Trainer::survey).
    ///
    /// # Errors
    /// Errors of a rehearsal.
    pub(crate) fn survey(
        &self,
        planned: Option<Knobs>,
        forecasts: &Forecasts,
    ) -> Result<Vec<(Knobs, Forecast)>> {
        let budget_bytes = self.inputs.device.allocator().capacity_bytes();
        let search = Search::new(self.inputs, self.events, budget_bytes).sharing(forecasts);
        search.survey(self.batch_size, self.splitting, planned)
    }
}
