//! `lowtide plan`.

use std::cell::RefCell;

use clap::Args;
use lowtide_allocator::Category;
use lowtide_tensor::Device;
use lowtide_trainer::{
    DoesNotFit, Fit, Forecast, Forecasts, Knobs, Parallelism, Plan, PlanOptions, Result,
    TrainError, categories_json, lock_pages, modules_json,
};
use serde_json::{Value, json};

use crate::command::device::{CAPACITY_BYTES, Simulated};
use crate::command::model::ModelArgs;
use crate::command::planning::{Changed, Numerics, PlanningArgs};
use crate::command::process::{Process, ProcessBudget, Work};
use crate::command::rates::Calibration;
use crate::command::rehearsing::{Rehearsing, way_of_one_model};
use crate::command::stages::Stages;
use crate::command::ways::Ways;
use crate::command::{DeviceArgs, RecipeArgs, failure, say};
use crate::human::{format_bytes, format_seconds};
use crate::json::{does_not_fit_json, with_knobs};
use crate::recipe::{Recipe, RecipeData, RecipeTrainer, Samples};

#[derive(Args)]
pub(super) struct PlanArgs {
    #[command(flatten)]
    recipe: RecipeArgs,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    planning: PlanningArgs,
    /// Finds the longest rows that fit each budget, up to what the model was made for.
    #[arg(long, conflicts_with = "seq")]
    longest: bool,
    /// Finds the least budget that there is a plan for, and that plan: a byte less does not do.
    #[arg(long, conflicts_with_all = ["budgets", "process_budget", "longest", "allow"])]
    least: bool,
    /// Prints the plan, or why there is none, as one JSON object.
    #[arg(long)]
    pub(super) json: bool,
}

/// How many modules a plan lists.
const MODULES_SHOWN: usize = 8;

/// What a plan has to fit.
#[derive(Clone, Copy)]
pub(super) enum PlanBudget {
    /// The budget of the device, within what the process may take.
    Given(Option<ProcessBudget>),
    /// The least that there is a plan for, whatever the device has.
    Least,
}

/// What a rehearsal of a recipe found.
pub(super) struct Found {
    plan: Plan,
    /// What the process takes, where that has a limit.
    process: Option<Process>,
    /// Whether the budget is the least that there is a plan for.
    is_least: bool,
    /// What of the device's memory is not for tensors.
    outside_bytes: usize,
    /// Whether that is no measurement.
    is_assumed: bool,
    /// What will multiply matrices, where an NVIDIA device was asked.
    products: Option<String>,
    /// The rates that times are by, where they are not nominal.
    calibration: Option<Calibration>,
    survey: Vec<(Knobs, Forecast)>,
    /// Changes of the recipe's numerics that it takes.
    numerics: Vec<Numerics>,
    offload_budget: Option<usize>,
    /// How many ranks it is one of.
    rank_count: usize,
    /// Bytes that it sends to the others in a step.
    sent_bytes: usize,
    /// What is divided among them.
    zero: Parallelism,
    /// What each way of dividing comes to, if there are several ranks.
    ways: Ways,
    /// The stages, where the model is cut.
    stages: Stages,
}

impl PlanArgs {
    /// # Errors
    /// `Setting` for what is not planned for a pipeline.
    fn check_pipeline(&self) -> Result<()> {
        let is_pipeline = self.planning.divided() == Some(Parallelism::Pipeline);
        if !is_pipeline || !(self.least || self.longest || self.device.budgets.len() > 1) {
            return Ok(());
        }
        let problem = "is planned within one budget, not with --least, --longest or several";
        Err(TrainError::Setting { place: "--pipeline".to_owned(), problem: problem.to_owned() })
    }
}

/// Whether everything that was asked for fits.
pub(super) fn run(arguments: &PlanArgs) -> Result<bool> {
    let recipe = arguments.model.recipe(&arguments.recipe)?;
    arguments.check_pipeline()?;
    if arguments.longest {
        return longest(arguments);
    }
    if arguments.device.budgets.len() > 1 {
        return compare(&recipe, arguments);
    }
    let PlanArgs { device, planning, .. } = arguments;
    let device = &device.of_rank(planning.first_rank())?;
    let budget = match arguments.least {
        true => PlanBudget::Least,
        false => PlanBudget::Given(device.process_budget()),
    };
    let found = find(&recipe, device, planning, budget)?;
    device.doubt(found.plan.predicted_peak_bytes());
    if arguments.json {
        say(&found.to_json(device).to_string())?;
    } else {
        found.tell(device)?;
    }
    Ok(true)
}

/// Tells the plan of each of several budgets, a line each.
fn compare(recipe: &Recipe, arguments: &PlanArgs) -> Result<bool> {
    let of_rank = arguments.device.of_rank(arguments.planning.first_rank())?;
    of_rank.check_budgets()?;
    let simulated = of_rank.open_simulated(of_rank.process_budget())?;
    let Simulated { device: sim, calibration, .. } = simulated;
    let mut data = recipe.open_share(arguments.planning.first_reader())?;
    lock_pages(&mut data.train, &sim)?;
    let host = arguments.planning.open_simulated_host(&arguments.device)?;
    let place = Place::new(arguments, &sim, host.as_ref());
    let mut plans = Vec::new();
    for &budget_bytes in &arguments.device.budgets {
        let plan = place.plan(budget_bytes, recipe, &data)?;
        plans.push((budget_bytes, plan));
    }
    let fitting = || plans.iter().filter_map(|(_, plan)| Some(&plan.as_ref().ok()?.plan));
    let fastest = fitting().map(|plan| plan.forecast.seconds).fold(f64::INFINITY, f64::min);
    let fits = fitting().count() == plans.len();
    if arguments.json {
        let plans = plans.iter().map(|(budget_bytes, plan)| match plan {
            Ok(Within { plan, numerics, zero }) => {
                let fields = json!({
                    "budget_bytes": budget_bytes,
                    "numerics": numerics,
                    "zero": zero,
                    "offloaded_peak_bytes": plan.forecast.offloaded_peak_bytes,
                    "predicted_peak_bytes": plan.predicted_peak_bytes(),
                    "relative_time": plan.forecast.seconds / fastest,
                    "step_seconds": measured_seconds(calibration.as_ref(), &plan.forecast),
                });
                with_knobs(plan.knobs, fields)
            }
            Err(error) => json!({
                "budget_bytes": budget_bytes,
                "does_not_fit": does_not_fit_json(error),
            }),
        });
        let measured_on = calibration.as_ref().map(|calibration| &calibration.measured_on);
        let plans = plans.collect::<Vec<_>>();
        let all = json!({ "fits": fits, "rates_measured_on": measured_on, "plans": plans });
        say(&all.to_string())?;
        return Ok(fits);
    }
    let time = match &calibration {
        Some(calibration) => {
            format!("time of a step {}", arguments.device.tell_rates(Some(calibration)))
        }
        None => "time relative to the fastest".to_owned(),
    };
    let share = match arguments.planning.share_count() {
        1 => String::new(),
        count => format!(", {} on each of {count} ranks", recipe.train.batch_size / count),
    };
    say(&format!("batches of {} samples{share}; {time}", recipe.train.batch_size))?;
    say("")?;
    let width = if calibration.is_some() { 8 } else { 4 };
    say(&format!("budget       peak                             {:>width$}  plan", "time"))?;
    for (budget_bytes, plan) in plans {
        let (bytes, time, words) = match plan {
            Ok(Within { plan, numerics, zero }) => {
                let time = match measured_seconds(calibration.as_ref(), &plan.forecast) {
                    Some(seconds) => format_seconds(seconds),
                    None => format!("{:.2}", plan.forecast.seconds / fastest),
                };
                let divided = zero.divided().map(|what| format!("{what} divided among ranks"));
                let numerics = numerics.iter().map(Numerics::to_string);
                let words = std::iter::once(plan.knobs.to_string()).chain(divided).chain(numerics);
                let words: Vec<_> = words.collect();
                (plan.predicted_peak_bytes(), time, words.join(", "))
            }
            Err(error) => {
                let missing = format_bytes(error.missing_bytes() as u64);
                let words = format!("does not fit: {missing} missing, even in {}", error.knobs);
                (error.needed_bytes, "-".to_owned(), words)
            }
        };
        let [budget, peak] = [budget_bytes, bytes].map(|bytes| format_bytes(bytes as u64));
        say(&format!(
            "{budget:<12} {:<32} {time:>width$}  {words}",
            format!("{peak} ({bytes} bytes)")
        ))?;
    }
    Ok(fits)
}

/// The plan within a budget, or why there is none.
type WithinBudget = std::result::Result<Within, Box<DoesNotFit>>;

/// A plan, and what it takes to fit.
struct Within {
    plan: Plan,
    /// Changes of the recipe's numerics.
    numerics: Vec<Numerics>,
    /// What is divided among ranks.
    zero: Parallelism,
}

/// Where plans are made for.
struct Place<'a> {
    arguments: &'a PlanArgs,
    sim: &'a Device,
    host: Option<&'a Device>,
    /// What was rehearsed of each recipe, for the next budget.
    known: RefCell<Vec<((Recipe, Parallelism), Forecasts)>>,
}

impl<'a> Place<'a> {
    fn new(arguments: &'a PlanArgs, sim: &'a Device, host: Option<&'a Device>) -> Self {
        Place { arguments, sim, host, known: RefCell::default() }
    }

    /// What was rehearsed of a recipe.
    fn forecasts(&self, recipe: &Recipe, zero: Parallelism) -> Forecasts {
        let mut known = self.known.borrow_mut();
        let is_same = |(of, divided): &(Recipe, Parallelism)| of == recipe && *divided == zero;
        if let Some((_, forecasts)) = known.iter().find(|(of, _)| is_same(of)) {
            return forecasts.clone();
        }
        let forecasts = Forecasts::default();
        known.push(((recipe.clone(), zero), forecasts.clone()));
        forecasts
    }

    /// The plan of a recipe within a budget, or why there is none.
    ///
    /// # Errors
    /// Anything that keeps the recipe from being built.
    fn plan(
        &self,
        budget_bytes: usize,
        recipe: &Recipe,
        data: &RecipeData,
    ) -> Result<WithinBudget> {
        let &Place { arguments, sim, host, .. } = self;
        let of_rank = arguments.device.of_rank(arguments.planning.first_rank())?;
        let process_budget = of_rank.process_budget();
        let fit = recipe.fit(&data.train, &data.test);
        let found = arguments.planning.first_that_fits(recipe, |recipe, zero| {
            sim.allocator().set_capacity(CAPACITY_BYTES);
            let mut trainer = recipe.trainer(sim, data.samples)?;
            trainer.set_offload(host.cloned());
            trainer.set_ranks(arguments.planning.simulated_ranks());
            trainer.set_parallelism(zero);
            let process = divide(process_budget, &mut trainer, &fit, Some(budget_bytes))?;
            sim.allocator().set_capacity(capacity(budget_bytes, process.as_ref()));
            let planned = trainer.plan_run(
                &fit,
                &PlanOptions { forecasts: self.forecasts(recipe, zero), ..PlanOptions::default() },
            );
            checked(planned, process.as_ref())
        });
        match found {
            Err(TrainError::DoesNotFit(error)) => Ok(Err(error)),
            found => found.map(|Changed { planned: plan, numerics, zero, .. }| {
                Ok(Within { plan, numerics, zero })
            }),
        }
    }
}

/// Tells the longest rows that fit each budget, a line each.
fn longest(arguments: &PlanArgs) -> Result<bool> {
    let of_rank = arguments.device.of_rank(arguments.planning.first_rank())?;
    of_rank.check_budgets()?;
    let limit = arguments.model.context_max(&arguments.recipe)?;
    let Simulated { device: sim, .. } = of_rank.open_simulated(of_rank.process_budget())?;
    let host = arguments.planning.open_simulated_host(&arguments.device)?;
    let place = Place::new(arguments, &sim, host.as_ref());
    let mut rows = Vec::new();
    for &budget_bytes in &arguments.device.budgets {
        let plan_of = |context: usize| -> Result<WithinBudget> {
            let recipe = arguments.model.recipe_of(&arguments.recipe, Some(context))?;
            let mut data = recipe.open_share(arguments.planning.first_reader())?;
            lock_pages(&mut data.train, &sim)?;
            place.plan(budget_bytes, &recipe, &data)
        };
        rows.push((budget_bytes, longest_that_fits(limit, plan_of)?));
    }
    let fits = rows.iter().all(|(_, found)| found.is_some());
    if arguments.json {
        let rows = rows.iter().map(|(budget_bytes, found)| match found {
            Some((context, plan)) => with_knobs(
                plan.knobs,
                json!({
                    "budget_bytes": budget_bytes,
                    "context": context,
                    "predicted_peak_bytes": plan.predicted_peak_bytes(),
                }),
            ),
            None => json!({ "budget_bytes": budget_bytes, "context": null }),
        });
        let all = json!({ "fits": fits, "limit": limit, "longest": rows.collect::<Vec<_>>() });
        say(&all.to_string())?;
        return Ok(fits);
    }
    say(&format!("the longest rows that fit, of {limit} tokens at most"))?;
    say("")?;
    say("budget       tokens   peak                             plan")?;
    for (budget_bytes, found) in &rows {
        let budget = format_bytes(*budget_bytes as u64);
        let line = match found {
            Some((context, plan)) => {
                let bytes = plan.predicted_peak_bytes();
                let peak = format!("{} ({bytes} bytes)", format_bytes(bytes as u64));
                format!("{budget:<12} {context:<8} {peak:<32} {}", plan.knobs)
            }
            None => format!("{budget:<12} none fits, not even of one token"),
        };
        say(&line)?;
    }
    Ok(fits)
}

/// The largest number from 1 to `limit` that there is a plan for, and the plan: what fits rows of
/// some length fits shorter ones.
///
/// # Errors
/// Those of `plan_of`.
fn longest_that_fits(
    limit: usize,
    plan_of: impl Fn(usize) -> Result<WithinBudget>,
) -> Result<Option<(usize, Plan)>> {
    if let Ok(Within { plan, .. }) = plan_of(limit)? {
        return Ok(Some((limit, plan)));
    }
    let (mut found, mut within, mut over) = (None, 0, limit);
    while over - within > 1 {
        let middle = within.midpoint(over);
        match plan_of(middle)? {
            Ok(Within { plan, .. }) => (found, within) = (Some((middle, plan)), middle),
            Err(_) => over = middle,
        }
    }
    Ok(found)
}

impl Found {
    fn tell(&self, device: &DeviceArgs) -> Result<()> {
        let Found { plan, process, survey, products, calibration, numerics, .. } = self;
        let &Found { outside_bytes, is_assumed, .. } = self;
        let exact = |bytes: usize| format!("{} ({bytes} bytes)", format_bytes(bytes as u64));
        let budget = match self.is_least {
            true => format!("{}: the least that there is a plan for", exact(plan.budget_bytes)),
            false => device.tell_budget(plan.budget_bytes, process.as_ref()),
        };
        say(&format!("budget          {budget}"))?;
        if outside_bytes > 0 {
            let assumed = if is_assumed { ", assumed" } else { "" };
            let outside = exact(outside_bytes);
            say(&format!("outside         {outside} of the device beside the budget{assumed}"))?;
        }
        if let Some(products) = products {
            say(&format!("products        by {products}"))?;
        }
        let share = match (self.rank_count, self.zero) {
            (1, _) => String::new(),
            (count, Parallelism::Pipeline) => format!(" through {count} stages"),
            (count, Parallelism::TensorParallel) => format!(" on all of {count} ranks"),
            (count, _) => format!(" on each of {count} ranks"),
        };
        say(&format!("batch           {} samples{share}", plan.batch_size))?;
        say(&format!("plan            {}", plan.knobs))?;
        if let Some(what) = self.zero.divided() {
            let shown = match self.zero {
                Parallelism::Pipeline => "; below is the stage that needs most",
                _ => "",
            };
            say(&format!("divided         {what} among the ranks, each with a part{shown}"))?;
        }
        if self.rank_count > 1 {
            let sent = format_bytes(self.sent_bytes as u64);
            say(&format!("sent            {sent} by each rank in a step"))?;
        }
        for (index, change) in numerics.iter().enumerate() {
            let head = if index == 0 { "numerics" } else { "" };
            say(&format!("{head:<15} {change}: does not fit without, other numbers"))?;
        }
        for (index, reason) in plan.reasons().iter().enumerate() {
            say(&format!("{:<15} {reason}", if index == 0 { "why" } else { "" }))?;
        }
        say(&format!("predicted peak  {}", exact(plan.predicted_peak_bytes())))?;
        if plan.copy_ahead_bytes > 0 {
            let next = exact(plan.copy_ahead_bytes);
            say(&format!("of which        {next} for the next batch, copied during a step"))?;
        }
        if plan.knobs.offloaded_blocks > 0 {
            let waits = exact(plan.forecast.offloaded_peak_bytes);
            let budget = self.offload_budget.map_or(0, |bytes| bytes as u64);
            say(&format!("offloaded       {waits} of {} on the host", format_bytes(budget)))?;
        }
        let (batches, samples) = (exact(plan.staging_bytes), exact(plan.data_bytes));
        say(&format!("on the host     {batches} for batches and {samples} for data, beside it"))?;
        if let Some(process) = process {
            process.tell()?;
        }
        say(&format!("times           {}", device.tell_rates(calibration.as_ref())))?;
        say("")?;
        say("peak of each category (not at the same moment)")?;
        for &(category, peak_bytes) in &plan.forecast.category_peaks {
            if peak_bytes > 0 || category == Category::Parameter {
                say(failure::row(category, peak_bytes).trim_end())?;
            }
        }
        self.tell_modules()?;
        say("")?;
        let step = if calibration.is_some() { "a step    " } else { "" };
        let peak = format!("{:<28}{step}", "peak");
        say(&format!("micro-batch   recomputed         {peak}time, relative to the first"))?;
        for (knobs, forecast) in survey {
            let mark = if *knobs == plan.knobs {
                "  <- plan"
            } else if forecast.peak_bytes > plan.budget_bytes {
                "  over the budget"
            } else {
                ""
            };
            let (peak, time) = (exact(forecast.peak_bytes), self.relative_time(forecast));
            let &Knobs { micro_batch, cheap_recomputed, recomputed_blocks, .. } = knobs;
            let recomputed = match (cheap_recomputed, recomputed_blocks) {
                (false, 0) => "nothing".to_owned(),
                (true, 0) => "cheap".to_owned(),
                (false, blocks) => format!("blocks {blocks}"),
                (true, blocks) => format!("cheap, blocks {blocks}"),
            };
            let fused = if knobs.fused_update { "  update fused" } else { "" };
            let offloaded = match knobs.offloaded_blocks {
                0 => String::new(),
                blocks => format!("  blocks {blocks} offloaded"),
            };
            let at_once = match knobs.blocks_at_once {
                0 | 1 => String::new(),
                count => format!("  {count} at once"),
            };
            let mark = format!("{at_once}{offloaded}{fused}{mark}");
            let seconds = measured_seconds(calibration.as_ref(), forecast);
            let seconds = seconds.map_or(String::new(), |s| format!("{:<10}", format_seconds(s)));
            say(&format!(
                "{micro_batch:<13} {recomputed:<18} {peak:<27} {seconds}{time:.2}{mark}"
            ))?;
        }
        self.ways.tell(self.zero, calibration.is_some())?;
        self.stages.tell(calibration.is_some())?;
        if !plan.forecast.assumptions.is_empty() {
            say("")?;
            say("assumed, because a rehearsal computes no values:")?;
            for assumption in &plan.forecast.assumptions {
                say(&format!("  {} at {}", assumption.value, assumption.site))?;
            }
        }
        Ok(())
    }

    fn tell_modules(&self) -> Result<()> {
        say("")?;
        say("largest modules when the most is in use")?;
        for share in self.plan.forecast.modules_at_peak.iter().take(MODULES_SHOWN) {
            let size = format!("{} ({} bytes)", format_bytes(share.bytes), share.bytes);
            say(&format!("  {:<30}  {size}", share.name()))?;
        }
        Ok(())
    }

    fn to_json(&self, device: &DeviceArgs) -> Value {
        let Found { plan, process, survey, products, outside_bytes, calibration, .. } = self;
        let Found { numerics, offload_budget, .. } = self;
        let calibration = calibration.as_ref();
        let budget_from = match self.is_least {
            true => "--least".to_owned(),
            false => device.budget_origin(process.as_ref()),
        };
        let survey = survey.iter().map(|(knobs, forecast)| {
            let fields = json!({
                "peak_bytes": forecast.peak_bytes,
                "relative_time": self.relative_time(forecast),
                "step_seconds": measured_seconds(calibration, forecast),
            });
            with_knobs(*knobs, fields)
        });
        let assumptions = plan.forecast.assumptions.iter().map(
            |assumption| json!({ "value": assumption.value, "site": assumption.site.to_string() }),
        );
        let fields = json!({
            "budget_bytes": plan.budget_bytes,
            "budget_from": budget_from,
            "outside_bytes": outside_bytes,
            "products": products,
            "batch_size": plan.batch_size,
            "ranks": self.rank_count,
            "zero": self.zero,
            "sent_bytes": self.sent_bytes,
            "stages": self.stages.to_json(),
            "ways": self.ways.to_json(),
            "evaluation_batch": plan.evaluation_batch,
            "copy_ahead_bytes": plan.copy_ahead_bytes,
            "numerics": numerics,
            "offload_budget_bytes": offload_budget,
            "offloaded_peak_bytes": plan.forecast.offloaded_peak_bytes,
            "staging_bytes": plan.staging_bytes,
            "data_bytes": plan.data_bytes,
            "reasons": plan.reasons(),
            "predicted_peak_bytes": plan.predicted_peak_bytes(),
            "peak_bytes_by_category": categories_json(plan.forecast.category_peaks.iter().copied()),
            "events": plan.forecast.events,
            "modules_at_peak": modules_json(&plan.forecast.modules_at_peak),
            "rates_measured_on": calibration.map(|calibration| &calibration.measured_on),
            "step_seconds": measured_seconds(calibration, &plan.forecast),
            "survey": survey.collect::<Vec<_>>(),
            "assumptions": assumptions.collect::<Vec<_>>(),
        });
        let mut json = with_knobs(plan.knobs, fields);
        if let Some(process) = process {
            json["process"] = process.to_json();
        }
        json
    }

    /// The estimated time of a forecast, with the fastest as 1.
    fn relative_time(&self, forecast: &Forecast) -> f64 {
        let whole = self.survey.first().map_or(1.0, |(_, forecast)| forecast.seconds);
        forecast.seconds / whole
    }
}

/// What a training may take of the process; `None` where the process has no limit.
///
/// # Errors
/// Those of [`Process::divide`].
pub(super) fn divide(
    budget: Option<ProcessBudget>,
    trainer: &mut RecipeTrainer,
    fit: &Fit<'_>,
    given_bytes: Option<usize>,
) -> Result<Option<Process>> {
    let Some(budget) = budget else { return Ok(None) };
    let (copied_bytes, device) = (trainer.copied_bytes(), trainer.device().clone());
    let steps = trainer.steps().saturating_add(fit.step_count());
    let host = trainer.options().offload.as_ref();
    let offload_bytes = host.map_or(0, |host| host.allocator().capacity_bytes());
    let work = Work { device: &device, fit, copied_bytes, steps, offload_bytes };
    Process::divide(budget, &work, given_bytes).map(Some)
}

/// What the training may take: all of its budget, or what the process has for it.
fn capacity(budget_bytes: usize, process: Option<&Process>) -> usize {
    process.and_then(Process::training_bytes).unwrap_or(budget_bytes)
}

/// A plan as it was found, or why there is none: about the process, where that has a limit.
///
/// # Errors
/// Those of `planned`.
pub(super) fn checked(planned: Result<Plan>, process: Option<&Process>) -> Result<Plan> {
    match process {
        Some(process) => process.checked(planned),
        None => planned,
    }
}

/// Rehearses `recipe` on a simulated device like `device`.
///
/// # Errors
/// `DoesNotFit`; anything that keeps the recipe from being built.
pub(super) fn find(
    recipe: &Recipe,
    device: &DeviceArgs,
    planning: &PlanningArgs,
    budget: PlanBudget,
) -> Result<Found> {
    let (mut device, is_least) = (device.clone(), matches!(budget, PlanBudget::Least));
    let process_budget = match budget {
        PlanBudget::Given(process_budget) => process_budget,
        PlanBudget::Least => {
            device.limit_to(CAPACITY_BYTES);
            None
        }
    };
    let Simulated { device: sim, budget_bytes, products, calibration } =
        device.open_simulated(process_budget)?;
    let RecipeData { samples, mut train, test } = recipe.open_share(planning.first_reader())?;
    lock_pages(&mut train, &sim)?;
    let host = planning.open_simulated_host(&device)?;
    let fit = recipe.fit(&train, &test);
    let place = Rehearsing { planning, sim: &sim, host: host.as_ref(), samples, fit: &fit };
    let trainer_of = |recipe: &Recipe, zero: Parallelism| place.trainer(recipe, zero, 0);
    let mut planning = planning.clone();
    if is_least && planning.divided().is_none() && can_divide(recipe, &sim, samples, &planning)? {
        // What parameters take when they are put together may be more than their share saves.
        let least = |zero| -> Result<usize> {
            trainer_of(recipe, zero)?.least_bytes(&fit, &Default::default())
        };
        let [gradients, parameters] = [least(Parallelism::Zero2)?, least(Parallelism::Zero3)?];
        let is_less = parameters < gradients;
        planning.zero = Some(if is_less { Parallelism::Zero3 } else { Parallelism::Zero2 });
    }
    let mut ways = Ways::default();
    if planning.rank_count() > 1 && planning.divided().is_none() && process_budget.is_none() {
        ways = Ways::of(budget_bytes, &fit, |zero| trainer_of(recipe, zero))?;
        ways.add_those_of_one_model(|zero| {
            way_of_one_model(recipe, &sim, budget_bytes, (&planning, host.as_ref()), zero)
        })?;
        planning.preferred = ways.fastest();
        ways.hint();
    }
    let mut stages = Stages::default();
    let changed = planning.first_that_fits(recipe, |recipe, zero| {
        let mut shown = 0;
        if zero == Parallelism::Pipeline {
            (stages, shown) = place.stages(recipe, |trainer, size_max, forecasts| {
                let process = divide(process_budget, trainer, &fit, device.budget())?;
                sim.allocator().set_capacity(capacity(budget_bytes, process.as_ref()));
                checked(
                    trainer.plan_run(
                        &fit,
                        &PlanOptions {
                            micro_batch_max: size_max,
                            forecasts: forecasts.clone(),
                            ..PlanOptions::default()
                        },
                    ),
                    process.as_ref(),
                )
            })?;
        }
        let mut trainer = place.trainer(recipe, zero, shown)?;
        let process = divide(process_budget, &mut trainer, &fit, device.budget())?;
        let forecasts = Forecasts::default();
        let budget_bytes = match is_least {
            true => trainer.least_bytes(&fit, &forecasts)?,
            false => capacity(budget_bytes, process.as_ref()),
        };
        sim.allocator().set_capacity(budget_bytes);
        let planned = trainer.plan_run(
            &fit,
            &PlanOptions {
                micro_batch_max: stages.micro_batch(),
                forecasts: forecasts.clone(),
                ..PlanOptions::default()
            },
        );
        let plan = checked(planned, process.as_ref())?;
        let sent_bytes = trainer.sent_bytes(&plan);
        Ok((plan, process, sent_bytes, trainer.survey(&fit, &forecasts)?))
    })?;
    let Changed { planned, recipe, numerics, zero } = changed;
    let (plan, process, sent_bytes, survey) = planned;
    let shares_batches = !matches!(zero, Parallelism::Pipeline | Parallelism::TensorParallel);
    if ways.fastest().is_none() && planning.rank_count() > 1 && shares_batches {
        ways = Ways::of(plan.budget_bytes, &fit, |zero| trainer_of(&recipe, zero))?;
    }
    let (outside_bytes, is_assumed) = (sim.outside_bytes(), device.is_assumed());
    let offload_budget = planning.offload_budget;
    Ok(Found {
        plan,
        process,
        is_least,
        outside_bytes,
        is_assumed,
        products,
        calibration,
        survey,
        numerics,
        offload_budget,
        rank_count: planning.rank_count(),
        sent_bytes,
        zero,
        ways,
        stages,
    })
}

/// Whether the states of the optimizer can be divided among the ranks.
fn can_divide(
    recipe: &Recipe,
    sim: &Device,
    samples: Samples,
    planning: &PlanningArgs,
) -> Result<bool> {
    sim.allocator().set_capacity(CAPACITY_BYTES);
    let trainer = recipe.trainer(sim, samples)?;
    Ok(planning.rank_count() > 1 && trainer.optimizer().can_update_parts())
}

/// Seconds of a step, where they are more than an order of plans.
fn measured_seconds(calibration: Option<&Calibration>, forecast: &Forecast) -> Option<f64> {
    calibration.map(|_| forecast.step_seconds)
}
