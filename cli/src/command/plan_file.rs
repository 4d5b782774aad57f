//! `lowtide train --plan FILE`: a run with an earlier plan.

use std::path::{Path, PathBuf};

use lowtide_allocator::Category;
use lowtide_allocator::files::read_input_text;
use lowtide_trainer::{
    Examples, Fit, Knobs, Parallelism, Plan, RehearsedEvent, Result, TrainError, categories_json,
    modules_json,
};
use serde::Deserialize;
use serde_json::Value;

use crate::command::planning::Numerics;
use crate::human::exact_bytes;
use crate::recipe::RecipeTrainer;

/// A plan that `lowtide plan --json` has printed.
pub(super) struct PlanFile {
    path: PathBuf,
    fields: PlanFields,
}

/// The fields of a plan file that a run needs. Some are inputs of the run, such as the knobs; the
/// others are results, which a new rehearsal has to reproduce.
#[derive(Deserialize)]
struct PlanFields {
    budget_bytes: usize,
    batch_size: usize,
    #[serde(flatten)]
    knobs: Knobs,
    predicted_peak_bytes: usize,
    peak_bytes_by_category: Value,
    modules_at_peak: Value,
    events: Vec<RehearsedEvent>,
    #[serde(default)]
    numerics: Vec<Numerics>,
    #[serde(default)]
    zero: Parallelism,
    #[serde(default)]
    offload_budget_bytes: Option<usize>,
}

impl PlanFile {
    /// # Errors
    /// `File`; `Setting` for a file that does not contain a plan.
    pub(super) fn read(path: &Path) -> Result<PlanFile> {
        /// A size larger than any plan.
        const PLAN_BYTES_MAX: u64 = 1 << 26;
        let text = read_input_text(path, PLAN_BYTES_MAX)
            .map_err(|source| TrainError::File { path: path.to_owned(), source })?;
        let wrong = |error: serde_json::Error| TrainError::Setting {
            place: path.display().to_string(),
            problem: format!("is not one plan as `lowtide plan --json` prints it: {error}"),
        };
        Ok(PlanFile { path: path.to_owned(), fields: serde_json::from_str(&text).map_err(wrong)? })
    }

    /// The budget of the plan.
    pub(super) fn budget_bytes(&self) -> usize {
        self.fields.budget_bytes
    }

    /// Bytes of host memory to which blocks may be offloaded.
    pub(super) fn offload_budget(&self) -> Option<usize> {
        self.fields.offload_budget_bytes
    }

    /// The changes of the recipe's numerics with which the plan fits.
    pub(super) fn numerics(&self) -> &[Numerics] {
        &self.fields.numerics
    }

    /// The parallelism of the plan.
    pub(super) fn zero(&self) -> Parallelism {
        self.fields.zero
    }

    /// Plans `fit` with the knobs of the file, by a new rehearsal.
    ///
    /// # Errors
    /// `Setting` unless the rehearsal needs the same bytes: in each step and evaluation, in all, of
    /// each category and by module. The file holds the plan of the first rank; on other ranks the
    /// peak may not be higher. `DoesNotFit`.
    pub(super) fn follow(&self, trainer: &mut RecipeTrainer, fit: &Fit<'_>) -> Result<Plan> {
        let batch_sizes = [self.fields.batch_size, Examples::of(fit)?.batch_size()];
        if let Some(difference) = differs("a batch", batch_sizes.map(|size| size.to_string())) {
            return Err(self.refused(&difference));
        }
        let plan = trainer.plan_run(fit, &self.fields.knobs.into())?;
        let is_other = trainer.options().ranks.as_ref().is_some_and(|ranks| ranks.rank().index > 0);
        if is_other && plan.predicted_peak_bytes() <= self.fields.predicted_peak_bytes {
            return Ok(plan);
        }
        match self.difference(&plan) {
            None => Ok(plan),
            Some(difference) => Err(self.refused(&difference)),
        }
    }

    /// The path of the file that the plan was read from.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn refused(&self, difference: &str) -> TrainError {
        let problem = format!(
            "is a plan for something else: {difference}; recipe, data, options and program have to \
             be those of the plan"
        );
        TrainError::Setting { place: self.path.display().to_string(), problem }
    }

    /// The first difference in bytes between the file and a rehearsal.
    fn difference(&self, plan: &Plan) -> Option<String> {
        let PlanFields { predicted_peak_bytes, .. } = self.fields;
        let peaks = [predicted_peak_bytes, plan.predicted_peak_bytes()].map(exact_bytes);
        let found: &[(Category, usize)] = &plan.forecast.category_peaks;
        let categories =
            [self.fields.peak_bytes_by_category.clone(), categories_json(found.iter().copied())];
        let modules =
            [self.fields.modules_at_peak.clone(), modules_json(&plan.forecast.modules_at_peak)];
        let events = [&self.fields.events, &plan.forecast.events];
        differs("the number of steps and evaluations", events.map(|of| of.len().to_string()))
            .or_else(|| {
                let mut pairs = events[0].iter().zip(events[1]).enumerate();
                pairs.find_map(|(index, (told, found))| event_differs(index, told, found))
            })
            .or_else(|| differs("the peak", peaks))
            .or_else(|| differs("the peak of each category", categories.map(|c| c.to_string())))
            .or_else(|| differs("what is in use at the peak", modules.map(|m| m.to_string())))
    }
}

/// The difference of an event from the planned one.
fn event_differs(index: usize, told: &RehearsedEvent, found: &RehearsedEvent) -> Option<String> {
    let kind = |event: &RehearsedEvent| {
        let kind = if event.is_evaluation { "an evaluation" } else { "a step" };
        format!("{kind} of {} samples", event.samples)
    };
    let of = |what: &str| format!("event {}, {}: {what}", index + 1, kind(told));
    let both = |number: fn(&RehearsedEvent) -> u64| [told, found].map(|e| number(e).to_string());
    differs(&format!("event {}", index + 1), [told, found].map(kind))
        .or_else(|| differs(&of("the count of allocations"), both(|event| event.allocations)))
        .or_else(|| differs(&of("the peak up to its end"), both(|e| e.peak_bytes as u64)))
        .or_else(|| differs(&of("what is live after it"), both(|event| event.layout_hash)))
}

/// The first difference between the planned and the rehearsed numbers, if there is one.
fn differs(what: &str, [told, found]: [String; 2]) -> Option<String> {
    (told != found).then(|| format!("{what} was {told} and is {found}"))
}
