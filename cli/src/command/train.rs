//! `lowtide train`.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use lowtide_allocator::{Fault, Repeat};
use lowtide_data::Loader;
use lowtide_ranks::Collectives;
#[cfg(feature = "mpi")]
use lowtide_ranks::Rank;
use lowtide_tensor::Device;
use lowtide_trace::Recording;
use lowtide_trainer::observers::{CheckpointEvery, Checkpoints, TensorBoard, Watched};
use lowtide_trainer::{
    CheckpointFolder, Examples, Fit, Metrics, NewFile, Observer, Parallelism, Plan, Position,
    Progress, Result, TrainError, Training, agree, lock_pages, metric_values, partial_of,
};
use serde_json::Value;

use crate::command::interrupt::Interrupt;
use crate::command::plan::PlanBudget;
use crate::command::plan_file::PlanFile;
use crate::command::planning::{Changed, Numerics, PlanningArgs};
use crate::command::process::Process;
use crate::command::recording::{Output, Target};
use crate::command::rehearsing::fastest_way;
use crate::command::saving::{LastFiles, rescue, unless_full};
use crate::command::staging::{Origin, Staging};
use crate::command::{DeviceArgs, RecipeArgs, parse_count, plan, ranks, say};
use crate::human::format_bytes;
use crate::recipe::{Recipe, RecipeData, RecipeTrainer, Samples};
use crate::report::{self, About, Curves, Report};
use crate::run_dir::{RunDir, Summary};

#[derive(Args, Clone)]
pub(super) struct TrainArgs {
    #[command(flatten)]
    recipe: RecipeArgs,
    /// Goes on with the run in DIR after its last checkpoint, or with the checkpoint DIR; what is
    /// given beside it is changed, --epochs counts from the beginning.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["recipe", "plan"])]
    resume: Option<PathBuf>,
    #[command(flatten)]
    pub(super) run: RunArgs,
}

/// Where and how a run is done, and what it leaves.
#[derive(Args, Clone)]
pub(super) struct RunArgs {
    #[command(flatten)]
    pub(super) device: DeviceArgs,
    #[command(flatten)]
    planning: PlanningArgs,
    /// Folder of the run; runs/NAME-N if absent. An earlier run there is replaced.
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    /// Runs by the plan in FILE, which `lowtide plan --json` has printed, within its budget unless
    /// one is given; refuses if a rehearsal finds other bytes.
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Writes a checkpoint every so many steps, epochs or minutes: 500steps, 1epoch, 10min.
    #[arg(long, value_name = "INTERVAL", value_parser = CheckpointEvery::from_str)]
    checkpoint_every: Option<CheckpointEvery>,
    /// Checkpoints that are kept: so many last ones, and the best.
    #[arg(long, value_name = "N", default_value_t = 2)]
    #[arg(value_parser = |text: &str| parse_count(text, 1..=10_000))]
    keep: u64,
    /// How long a step that ran out of memory waits for it to come back before it keeps less, runs
    /// in smaller parts, or ends the run: 60s, 10min.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(super) wait: Option<Duration>,
    /// A drill: lets the N-th device allocation of the training fail once.
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    #[arg(value_parser = |text: &str| parse_count(text, 1..=u64::MAX))]
    fault_at: Option<u64>,
    /// Writes the allocator's last events to FILE: .html, .pickle or .jsonl.
    #[arg(long, value_name = "FILE", value_parser = Target::parser())]
    trace: Option<Target>,
    /// Writes the report to FILE too, every few seconds while the run goes on.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Writes every metric to an event file in FOLDER, for TensorBoard.
    #[arg(long, value_name = "FOLDER")]
    tensorboard: Option<PathBuf>,
    /// Shows no progress.
    #[arg(long)]
    quiet: bool,
    /// Prints the summary, or what kept the run from ending, as one JSON object.
    #[arg(long)]
    pub(super) json: bool,
}

fn parse_time(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(CheckpointEvery::Time(time)) => Ok(time),
        _ => Err(format!("{text:?} is no time such as 60s or 10min")),
    }
}

pub(super) fn run(arguments: &TrainArgs) -> Result<()> {
    let origin = arguments.resume.as_deref().map(Origin::find).transpose()?;
    let recipe = match &origin {
        Some(origin) => {
            arguments.recipe.load_saved(&origin.checkpoint).map_err(|e| offer(origin, e))?
        }
        None => arguments.recipe.load()?,
    };
    run_recipe(recipe, origin.as_ref(), &arguments.run)
}

/// Trains what a recipe says, or goes on with it, and tells of it.
///
/// # Errors
/// Anything that keeps the run from being published.
pub(super) fn run_recipe(
    recipe: Recipe,
    origin: Option<&Origin>,
    arguments: &RunArgs,
) -> Result<()> {
    #[cfg(feature = "mpi")]
    if let Some(ranks) = ranks::of_process(arguments.wait)? {
        let Rank { index, count } = ranks.rank();
        let planning = arguments.planning.of_processes(count)?;
        let arguments = &RunArgs { planning, ..arguments.clone() };
        return match index {
            0 => Ended::of_rank(recipe, origin, arguments, Some(ranks))?.tell(arguments, None),
            _ => follow(recipe, origin, arguments, ranks),
        };
    }
    Ended::of(recipe, origin, arguments)?.tell(arguments, None)
}

/// A run whose files are at their place.
pub(super) struct Ended {
    summary: Summary,
    pub(super) run_dir: RunDir,
    /// What its report shows.
    pub(super) report: report::Run,
    pub(super) was_interrupted: bool,
    plan: Plan,
    process: Option<Process>,
    /// Whether the trace that was asked for is written.
    traced: Result<()>,
}

impl Ended {
    /// Trains what a recipe says, or goes on with it, on one rank or several.
    ///
    /// # Errors
    /// Anything that keeps the run from being published.
    pub(super) fn of(recipe: Recipe, origin: Option<&Origin>, arguments: &RunArgs) -> Result<Self> {
        let count = arguments.planning.rank_count();
        if count == 1 {
            return Ended::of_rank(recipe, origin, arguments, None);
        }
        ranks::on_threads(
            count,
            arguments.wait,
            |ranks| Ended::of_rank(recipe.clone(), origin, arguments, Some(ranks)),
            |ranks| follow(recipe.clone(), origin, arguments, ranks),
        )
    }

    /// Trains on the one rank that leaves files.
    fn of_rank(
        recipe: Recipe,
        origin: Option<&Origin>,
        arguments: &RunArgs,
        ranks: Option<Arc<dyn Collectives>>,
    ) -> Result<Self> {
        with_planned(recipe, origin, arguments, ranks, |arguments, changed, test| {
            let Changed { recipe, planned, numerics, zero } = changed;
            let Planned { mut trainer, rest, process, plan } = planned;
            arguments.device.doubt(plan.predicted_peak_bytes());

            // Everything that will be written is opened before the first step.
            let trace = arguments.trace.as_ref().map(Output::open).transpose()?;
            let out = arguments.out.as_deref();
            let staging = match origin {
                Some(origin) => Staging::resume(&origin.run_dir, out)?,
                None => Staging::new(out, recipe.name())?,
            };
            let interrupt = Interrupt::listen()?;
            let metrics = origin.map(|origin| origin.metrics.as_path());
            let (recipe, files) = (&recipe, staging.partial());
            let run = Run {
                arguments,
                recipe,
                numerics: &numerics,
                zero,
                plan: &plan,
                process: process.as_ref(),
                files,
                metrics,
            };
            let worked = run.work(&mut trainer, rest.as_ref(), test, &interrupt);
            // The model is at its place before anything else is tried.
            let published = worked.and_then(|worked| Ok((worked, staging.publish()?)));
            if published.is_err() {
                rescue(&mut trainer, recipe, staging);
            }
            let recording = || Recording::of(&trainer.device().allocator().capture());
            let traced = trace.map_or(Ok(()), |trace| trace.write(&recording()));
            let ((summary, report), run_dir) = published?;
            // Who is gone by now has nothing more to give.
            drop(trainer.leave());
            let was_interrupted = interrupt.came();
            Ok(Ended { summary, run_dir, report, was_interrupted, plan, process, traced })
        })
    }

    /// Prints what it came to, and as JSON something more under a key.
    ///
    /// # Errors
    /// `File` when it cannot be printed, or the trace was not written.
    pub(super) fn tell(self, arguments: &RunArgs, more: Option<(&str, Value)>) -> Result<()> {
        let Ended { summary, run_dir, was_interrupted, plan, process, traced, .. } = self;
        if arguments.json {
            let mut json = summary_json(&summary, &run_dir);
            if let Some((key, value)) = more {
                json[key] = value;
            }
            say(&json.to_string())?;
        } else {
            if was_interrupted {
                say("interrupted: everything up to the last step is in the run folder")?;
            }
            conclude(&summary, &plan, process.as_ref(), &run_dir, arguments)?;
        }
        traced
    }
}

/// Trains on a rank that leaves no files.
fn follow(
    mut recipe: Recipe,
    origin: Option<&Origin>,
    arguments: &RunArgs,
    ranks: Arc<dyn Collectives>,
) -> Result<()> {
    recipe.train.checkpoint_every = None;
    let arguments = RunArgs { checkpoint_every: None, ..arguments.clone() };
    with_planned(recipe, origin, &arguments, Some(ranks), |_, changed, _| {
        let Planned { mut trainer, rest, .. } = changed.planned;
        rest.map_or(Ok(()), |rest| trainer.run(&rest, &mut []).map(drop))?;
        trainer.leave()
    })
}

/// Opens everything for a run, plans it, and does `work` with the arguments of this rank, the
/// training, and the data to test on.
///
/// # Errors
/// What keeps it from being planned, and those of `work`.
fn with_planned<R>(
    mut recipe: Recipe,
    origin: Option<&Origin>,
    arguments: &RunArgs,
    ranks: Option<Arc<dyn Collectives>>,
    work: impl FnOnce(&RunArgs, Changed<Planned<'_>>, &Loader) -> Result<R>,
) -> Result<R> {
    let rank = ranks.as_ref().map_or(arguments.planning.first_rank(), |ranks| ranks.rank());
    let plan_file = arguments.plan.as_deref().map(PlanFile::read).transpose()?;
    let mut arguments = arguments.clone();
    if let Some(file) = &plan_file {
        arguments.device.limit_to(file.budget_bytes());
        let given = &mut arguments.planning.offload_budget;
        *given = given.or(file.offload_budget());
        file.numerics().iter().for_each(|change| change.apply(&mut recipe));
        arguments.planning.zero = arguments.planning.divided().or(Some(file.zero()));
        if arguments.planning.divided() == Some(Parallelism::Pipeline) {
            let problem = "is of one stage: a pipeline is planned when it is run";
            let place = file.path().display().to_string();
            return Err(TrainError::Setting { place, problem: problem.to_owned() });
        }
    }
    arguments.device = arguments.device.of_rank(rank)?;
    let arguments = &arguments;
    let every = arguments.checkpoint_every.or(recipe.train.checkpoint_every);
    recipe.train.checkpoint_every = every;
    let process_budget = arguments.device.process_budget();
    let RecipeData { samples, mut train, mut test } =
        recipe.open_share(arguments.planning.reader(rank))?;
    let device = arguments.device.open(process_budget)?;
    #[cfg(feature = "cuda")]
    let ranks = ranks.map(|ranks| ranks::by_nccl(ranks, &device, arguments)).transpose()?;
    for loader in [&mut train, &mut test] {
        lock_pages(loader, &device)?;
    }
    let begin = Begin { arguments, origin, plan_file: plan_file.as_ref(), ranks };
    let (train, test) = (&train, &test);
    let plan = |planning: &PlanningArgs| {
        let changed = planning.first_that_fits(&recipe, |recipe, zero| {
            begin.plan(recipe, zero, &device, samples, [train, test])
        });
        // Nothing is written before every rank is ready.
        agree(begin.ranks.as_deref(), changed)
    };
    let mut planning = arguments.planning.clone();
    if origin.is_some() || plan_file.is_some() {
        // What has begun, or is planned, stays what it is.
        planning.allow.clear();
    }
    if let Some(ranks) = begin.ranks.as_deref().filter(|_| planning.divided().is_none()) {
        let of_first = match rank.index {
            0 => fastest_way(&recipe, &arguments.device, &planning).ok().flatten(),
            _ => None,
        };
        let said = ranks.exchange(&[of_first.map_or(u8::MAX, |zero| zero as u8)])?;
        planning.preferred =
            Parallelism::OF_SHARED_BATCHES.into_iter().find(|&zero| said[0] == [zero as u8]);
    }
    let mut changed = plan(&planning)?;
    let zeros = begin.ranks.as_deref().map(|ranks| ranks.exchange(&[changed.zero as u8]));
    let zeros = zeros.transpose()?.unwrap_or_default();
    if zeros.iter().any(|zero| *zero != zeros[0]) {
        // One that has less memory than others divides more, and then all do.
        let most = zeros.iter().flatten().max();
        planning.zero =
            Parallelism::OF_SHARED_BATCHES.into_iter().find(|&zero| Some(&(zero as u8)) == most);
        changed = plan(&planning)?;
    }
    if let Some(file) = &plan_file {
        changed.numerics = file.numerics().to_vec();
    }
    work(arguments, changed, test)
}

/// How a run begins.
struct Begin<'a> {
    arguments: &'a RunArgs,
    origin: Option<&'a Origin>,
    plan_file: Option<&'a PlanFile>,
    /// The others, if several train together.
    ranks: Option<Arc<dyn Collectives>>,
}

/// A training that is ready to begin.
struct Planned<'a> {
    trainer: RecipeTrainer,
    /// What is left to do; `None` where only the end is missing.
    rest: Option<Fit<'a>>,
    /// What the process takes, where that has a limit.
    process: Option<Process>,
    plan: Plan,
}

impl Begin<'_> {
    /// Makes the model and its plan.
    ///
    /// # Errors
    /// `DoesNotFit`, and what else keeps it from being run.
    fn plan<'a>(
        &self,
        recipe: &Recipe,
        zero: Parallelism,
        device: &Device,
        samples: Samples,
        [train, test]: [&'a Loader; 2],
    ) -> Result<Planned<'a>> {
        let &Begin { arguments, origin, plan_file, ref ranks } = self;
        let RunArgs { device: device_arguments, planning, .. } = arguments;
        let process_budget = device_arguments.process_budget();
        let built = recipe.trainer_among(ranks.clone(), zero, device, samples);
        // Those that have blocks or features of one model meet on the way to a plan.
        let stages = ranks
            .as_deref()
            .filter(|_| matches!(zero, Parallelism::Pipeline | Parallelism::TensorParallel));
        let mut trainer = match agree(stages, built) {
            // The rehearsal on a larger, simulated device knows how much is missing in all.
            Err(error) if error.out_of_memory().is_some() => {
                let mut as_it_is = planning.clone();
                as_it_is.allow.clear();
                as_it_is.zero = Some(zero);
                let budget = PlanBudget::Given(process_budget);
                let found = plan::find(recipe, device_arguments, &as_it_is, budget);
                return found.and(Err(error));
            }
            built => built?,
        };
        trainer.set_wait(arguments.wait.unwrap_or_default());
        trainer.set_offload(planning.open_host(device_arguments)?);
        let fit = recipe.fit(train, test);
        if trainer.is_to_be_cut() {
            trainer.cut_for(&agree(stages, Examples::of(&fit))?)?;
        }
        if let Some(origin) = origin {
            let loaded = trainer.load(&origin.checkpoint).map_err(|error| offer(origin, error));
            agree(stages, loaded)?;
        }
        let rest = rest_of(recipe, origin, &fit, trainer.position())?;
        let planned_for = rest.as_ref().unwrap_or(&fit);
        let given_bytes = device_arguments.budget();
        let process = plan::divide(process_budget, &mut trainer, planned_for, given_bytes)?;
        if let Some(bytes) = process.as_ref().and_then(Process::training_bytes) {
            device.allocator().set_capacity(bytes);
        }
        let planned = match plan_file {
            Some(file) => file.follow(&mut trainer, planned_for),
            None => trainer.plan_run(planned_for, &Default::default()),
        };
        let plan = plan::checked(planned, process.as_ref())?;
        Ok(Planned { trainer, rest, process, plan })
    }
}

/// What a run is told before its first step.
struct Run<'a> {
    arguments: &'a RunArgs,
    recipe: &'a Recipe,
    /// What of its numerics was changed to fit.
    numerics: &'a [Numerics],
    /// What is divided among ranks.
    zero: Parallelism,
    plan: &'a Plan,
    /// What the process takes, where that has a limit.
    process: Option<&'a Process>,
    /// Where the files of the run are written.
    files: &'a RunDir,
    /// What the run that this one goes on with has told of its steps.
    metrics: Option<&'a Path>,
}

impl Run<'_> {
    /// Trains, and writes the files of the run.
    fn work(
        &self,
        trainer: &mut RecipeTrainer,
        rest: Option<&Fit<'_>>,
        test: &Loader,
        mut interrupt: &Interrupt,
    ) -> Result<(Summary, report::Run)> {
        let &Run { arguments, recipe, numerics, zero, plan, process, files, metrics } = self;
        let device = trainer.device().clone();
        let mut metrics = match metrics {
            Some(before) => Metrics::go_on(&files.metrics(), before, trainer.steps())?,
            None => Metrics::create(&files.metrics())?,
        };
        let text = recipe.to_toml();
        NewFile::write(&files.recipe(), &text)?;
        let every = recipe.train.checkpoint_every;
        // Without an interval there is one at most, after an interrupt.
        let never = CheckpointEvery::Steps(u64::MAX);
        let folder = CheckpointFolder::new(&files.checkpoints())
            .keep_last(arguments.keep as usize)
            .with_recipe(&text);
        let mut checkpoints = Checkpoints::new(folder, every.unwrap_or(never));
        if every.is_some() {
            checkpoints = checkpoints.keep_best(Watched::new("test", "loss"));
        }
        // Before the first step there is room for what the last one leaves.
        let mut last_files = LastFiles::new(files, trainer)?;

        let about = About::of_this_process(&recipe.title()).with_recipe(text);
        let page = arguments.report.clone().unwrap_or_else(|| files.report());
        let mut report = Report::new(page, about, &device);
        if self.metrics.is_some() {
            report.run_mut().curves = Curves::read(&partial_of(&files.metrics()))?;
        }
        let mut events = arguments.tensorboard.as_deref().map(TensorBoard::create).transpose()?;
        let mut progress = (!arguments.quiet).then(Progress::new);
        if let Some(nth) = arguments.fault_at {
            device.allocator().inject_fault(Fault { nth, repeat: Repeat::Once });
        }
        let requests_before = device.allocator().request_count();
        let started = Instant::now();
        let mut observers: [&mut dyn Observer; 6] = [
            &mut progress,
            &mut metrics,
            &mut events,
            &mut report,
            &mut checkpoints,
            &mut interrupt,
        ];
        let score = match rest {
            Some(rest) => trainer.run(rest, &mut observers)?,
            // All that is missing is the end.
            None => {
                observers.iter_mut().try_for_each(|observer| observer.on_end(trainer))?;
                trainer.evaluate(test)?
            }
        };
        if every.is_some() || interrupt.came() {
            let written = checkpoints.folder_mut().write_now(trainer);
            unless_full("there is no checkpoint of the last step", written)?;
        }
        let seconds = started.elapsed().as_secs_f64();
        let values = metric_values(&[("test".to_owned(), score)]);
        let allocations = device.allocator().request_count() - requests_before;
        last_files.save_model(trainer)?;

        let statistics = device.allocator().statistics();
        let summary = Summary {
            values: values.into_iter().map(|(name, value)| (name, Some(value))).collect(),
            train_loss_last: report.run().last("loss").unwrap_or(f64::NAN),
            steps: trainer.steps(),
            epochs: trainer.position().epoch,
            batch_size: plan.batch_size * arguments.planning.share_count(),
            ranks: arguments.planning.rank_count(),
            zero,
            knobs: trainer.knobs(),
            numerics: numerics.iter().map(ToString::to_string).collect(),
            budget_bytes: statistics.capacity_bytes,
            budget_from: arguments.device.budget_origin(process),
            process_budget_bytes: process.map(Process::budget_bytes),
            process_bytes: process.map(Process::total_bytes),
            outside_bytes: device.outside_bytes(),
            products: DeviceArgs::products(&device),
            product_kernels: DeviceArgs::product_kernels(&device),
            predicted_peak_bytes: plan.predicted_peak_bytes(),
            measured_peak_bytes: statistics.reserved.peak_bytes,
            retried_steps: trainer.retried_steps(),
            allocations,
            seconds,
            final_state_hash: format!("{:016x}", trainer.state_hash()?),
        };
        let computer = arguments.device.describe(&device);
        report.run_mut().facts = facts(recipe, plan, &summary, &computer);
        report.write_if_room()?;
        if arguments.report.is_some() {
            let written = NewFile::write(&files.report(), &report.run().to_html());
            unless_full("there is no report beside the model", written)?;
        }
        last_files.have_report()?;
        let json = serde_json::to_string_pretty(&summary).expect("a summary has only plain values");
        last_files.write(|| NewFile::write(&files.summary(), &format!("{json}\n")))?;
        Ok((summary, report.run().clone()))
    }
}

/// What is left of a run at this place of it; `None` where nothing is, but the run was cut off
/// before its end.
///
/// # Errors
/// `Setting` if the run has ended and nothing is to be added.
fn rest_of<'a>(
    recipe: &Recipe,
    origin: Option<&Origin>,
    fit: &Fit<'a>,
    position: Position,
) -> Result<Option<Fit<'a>>> {
    let epochs = recipe.train.epochs;
    if position.epoch < epochs {
        return Ok(Some(fit.clone().epochs(epochs - position.epoch)));
    }
    if origin.is_some_and(|origin| origin.has_ended) {
        return Err(TrainError::Setting {
            place: "--resume".to_owned(),
            problem: format!(
                "the run has its {epochs} epochs; --epochs {} adds one to them",
                position.epoch + 1
            ),
        });
    }
    Ok(None)
}

/// The error of a checkpoint that cannot be gone on with, and what can.
fn offer(origin: &Origin, error: TrainError) -> TrainError {
    let Some(before) = &origin.before else { return error };
    let (path, problem) = match error {
        TrainError::Checkpoint { path, problem } => (path, problem),
        TrainError::File { path, source } => (path, source.to_string()),
        error => return error,
    };
    let before = before.display();
    let problem =
        format!("{problem}; `lowtide train --resume {before}` goes on after the one before");
    TrainError::Checkpoint { path, problem }
}

/// The summary with the folder of the run.
fn summary_json(summary: &Summary, run_dir: &RunDir) -> Value {
    let mut json = serde_json::to_value(summary).expect("a summary has only plain values");
    json["run_dir"] = run_dir.path().display().to_string().into();
    json
}

/// The run in plain words.
fn conclude(
    summary: &Summary,
    plan: &Plan,
    process: Option<&Process>,
    run_dir: &RunDir,
    arguments: &RunArgs,
) -> Result<()> {
    let bytes = |count: usize| format!("{} ({count} bytes)", format_bytes(count as u64));
    let Summary { epochs, steps, seconds, values, train_loss_last, .. } = summary;
    say(&format!("trained          {epochs} epochs, {steps} steps, in {seconds:.1} s"))?;
    for (name, value) in values {
        let value = value.unwrap_or(f64::NAN);
        say(&format!("{:<16} {value:.4}", name.replace('_', " ")))?;
    }
    say(&format!("train loss       {train_loss_last:.6} in the last step"))?;
    if summary.ranks > 1 {
        let Summary { ranks, batch_size, .. } = summary;
        let each = match summary.zero {
            Parallelism::Pipeline => format!("{ranks}, each with a stage of the model"),
            Parallelism::TensorParallel => {
                format!("{ranks}, each with all of {batch_size} samples")
            }
            _ => format!("{ranks}, each with {} of {batch_size} samples", plan.batch_size),
        };
        say(&format!("ranks            {each}"))?;
        if let Some(divided) = summary.zero.divided() {
            say(&format!("divided          {divided} among the ranks, each with a part"))?;
        }
    }
    let knobs = summary.knobs;
    say(&format!("micro-batch      {} of {}", knobs.micro_batch, plan.batch_size))?;
    for change in &summary.numerics {
        say(&format!("numerics         {change}, which was allowed: it does not fit without"))?;
    }
    if knobs.cheap_recomputed || knobs.recomputed_blocks > 0 {
        say(&format!("recomputed       {}", knobs.recomputed()))?;
    }
    if knobs.offloaded_blocks > 0 {
        let peak = bytes(plan.forecast.offloaded_peak_bytes);
        say(&format!("offloaded        {} blocks, {peak} of the host", knobs.offloaded_blocks))?;
    }
    if knobs.fused_update {
        say("update           fused, each parameter as soon as its gradient is complete")?;
    }
    let device = arguments.device.of_rank(arguments.planning.first_rank())?;
    let budget = device.tell_budget(summary.budget_bytes, process);
    say(&format!("budget           {budget}"))?;
    if let Some(process) = process {
        say(&format!("process          {}", process.headline()))?;
    }
    if summary.outside_bytes > 0 {
        say(&format!("outside          {} beside the budget", bytes(summary.outside_bytes)))?;
    }
    if let Some(products) = &summary.products {
        say(&format!("products         by {products}"))?;
    }
    say(&format!("predicted peak   {}", bytes(summary.predicted_peak_bytes)))?;
    say(&format!("measured peak    {}", bytes(summary.measured_peak_bytes)))?;
    say(&format!("retried steps    {}", summary.retried_steps))?;
    say(&format!("state hash       {}", summary.final_state_hash))?;
    say(&format!("run folder       {} (open report.html)", run_dir.path().display()))?;
    let Some(nth) = arguments.fault_at else { return Ok(()) };
    if nth > summary.allocations {
        let made = summary.allocations;
        return say(&format!(
            "drill            allocation {nth} was never made: there were {made}"
        ));
    }
    if summary.retried_steps == 0 {
        say(&format!("drill            allocation {nth} failed in an evaluation, done again"))?;
    }
    Ok(())
}

/// What the report says beyond what every run has.
fn facts(recipe: &Recipe, plan: &Plan, summary: &Summary, computer: &str) -> Vec<(String, String)> {
    let bytes = |count: usize| format!("{} ({count} bytes)", format_bytes(count as u64));
    let outside = (summary.outside_bytes > 0).then(|| bytes(summary.outside_bytes));
    let numerics = (!summary.numerics.is_empty()).then(|| summary.numerics.join(", "));
    let facts = [
        ("Time", Some(format!("{:.1} s on {computer}", summary.seconds))),
        ("Numerics changed to fit", numerics),
        ("Plan", Some(format!("{}: {}", plan.knobs, plan.reasons().join("; ")))),
        ("Ranks", (summary.ranks > 1).then(|| summary.ranks.to_string())),
        ("Divided among them", summary.zero.divided().map(str::to_owned)),
        ("Seed", Some(recipe.train.seed.to_string())),
        ("State hash", Some(summary.final_state_hash.clone())),
        ("Outside the allocator", outside),
        ("Matrix products", summary.products.clone()),
    ];
    facts.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}
