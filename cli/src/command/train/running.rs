//! A run from its first step to its last file.

use std::time::Instant;

use lowtide_allocator::{Fault, Repeat};
use lowtide_data::Loader;
use lowtide_tensor::Device;
use lowtide_trainer::observers::{CheckpointEvery, Checkpoints, TensorBoard, Watched};
use lowtide_trainer::{
    CheckpointFolder, Fingerprint, Fit, Metrics, NewFile, Observer, Parallelism, Plan, Progress,
    Result, RunNotes, Score, metric_values, partial_of, take_over_checkpoints,
};

use super::arguments::RunArgs;
use super::conditions::Conditions;
use super::summary::facts;
use crate::command::DeviceArgs;
use crate::command::interrupt::Interrupt;
use crate::command::planning::Numerics;
use crate::command::process::Process;
use crate::command::saving::{LastFiles, unless_full};
use crate::command::staging::Origin;
use crate::recipe::{Recipe, RecipeTrainer};
use crate::report::{self, About, Curves, Report};
use crate::run_dir::{RunDir, Summary};

/// The inputs of a run before its first step.
pub(super) struct Run<'a> {
    pub(super) arguments: &'a RunArgs,
    pub(super) recipe: &'a Recipe,
    /// Changes of the recipe's numerics that let the run fit.
    pub(super) numerics: &'a [Numerics],
    /// The parallelism of the ranks.
    pub(super) zero: Parallelism,
    pub(super) plan: &'a Plan,
    /// The parts of the process, if it has a limit.
    pub(super) process: Option<&'a Process>,
    /// The folder to which the files of the run are written.
    pub(super) files: &'a RunDir,
    /// The run that this run resumes.
    pub(super) origin: Option<&'a Origin>,
}

/// The data of a run: to train on, and to test on at the end.
#[derive(Clone, Copy)]
pub(super) struct Sets<'a> {
    /// The remaining steps; `None` if only the end is missing.
    pub(super) rest: Option<&'a Fit<'a>>,
    pub(super) test: &'a Loader,
}

/// Numbers of a run for the summary, besides those of the trainer.
struct Trained {
    score: Score,
    seconds: f64,
    /// Device allocations from the first step on.
    allocations: u64,
}

impl Run<'_> {
    /// Trains, and writes the files of the run.
    pub(super) fn work(
        &self,
        trainer: &mut RecipeTrainer,
        sets: Sets<'_>,
        interrupt: &Interrupt,
    ) -> Result<(Summary, report::Run)> {
        let &Run { arguments, recipe, plan, files, .. } = self;
        let device = trainer.device().clone();
        let text = recipe.to_toml();
        // Read before the first step: a base that is gone at the end does not end the run.
        let base_files = recipe.base_files()?;
        let metrics = match self.origin {
            Some(origin) => Metrics::go_on(&files.metrics(), &origin.metrics, trainer.steps())?,
            None => Metrics::create(&files.metrics())?,
        };
        let conditions = Conditions::of(recipe, arguments, self.zero, plan);
        files.write_recipe(&text, &conditions.id)?;
        if let Some(origin) = self.origin {
            // Checkpoints come after the other files: a run that ends in between resumes from where
            // it did before.
            take_over_checkpoints(&origin.checkpoint, &files.checkpoints())?;
        }
        let mut observers = self.observers(metrics, text, &conditions, &device)?;
        // Room for the files at the end is reserved before the first step. On an error this room is
        // released before a checkpoint in progress is finished.
        let mut last_files = LastFiles::new(files, trainer)?;
        let trained = self.train(trainer, sets, &mut observers, interrupt)?;
        last_files.save_model(trainer)?;

        let report = &mut observers.report;
        let train_loss_last = report.run().last("loss");
        let summary = self.summary(trainer, trained, train_loss_last, base_files)?;
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

    /// Opens all files that are written during the run.
    fn observers(
        &self,
        metrics: Metrics,
        text: String,
        conditions: &Conditions,
        device: &Device,
    ) -> Result<Observers> {
        let &Run { arguments, recipe, files, .. } = self;
        // Without an interval there is at most one checkpoint, after an interrupt.
        let never = CheckpointEvery::Steps(u64::MAX);
        let folder = CheckpointFolder::new(&files.checkpoints())
            .keep_last(arguments.keep as usize)
            .with_notes(RunNotes {
                recipe: Some(text.clone()),
                run: Some(serde_json::to_value(conditions).expect("plain values")),
            });
        let every = recipe.train.checkpoint_every;
        let mut checkpoints = Checkpoints::new(folder, every.unwrap_or(never));
        if every.is_some() {
            checkpoints = checkpoints.keep_best(Watched::new("test", "loss"));
        }
        let about = About::of_this_process(&recipe.title()).with_recipe(text);
        let page = arguments.report.clone().unwrap_or_else(|| files.report());
        let mut report = Report::new(page, about, device);
        if self.origin.is_some() {
            report.run_mut().curves = Curves::read(&partial_of(&files.metrics()))?;
        }
        let events = arguments.tensorboard.as_deref().map(TensorBoard::create).transpose()?;
        let progress = (!arguments.quiet).then(Progress::new);
        Ok(Observers { progress, metrics, events, report, checkpoints })
    }

    /// Trains to the end or to an interrupt, and writes the last checkpoint.
    fn train(
        &self,
        trainer: &mut RecipeTrainer,
        Sets { rest, test }: Sets<'_>,
        observers: &mut Observers,
        mut interrupt: &Interrupt,
    ) -> Result<Trained> {
        let device = trainer.device().clone();
        if let Some(nth) = self.arguments.fault_at {
            device.allocator().inject_fault(Fault { nth, repeat: Repeat::Once });
        }
        let requests_before = device.allocator().request_count();
        let started = Instant::now();
        let mut all = observers.all(&mut interrupt);
        let score = match rest {
            Some(rest) => trainer.run(rest, &mut all)?,
            // Only the end of the run is missing.
            None => {
                let score = trainer.evaluate_by_all(test)?;
                trainer.check_end(trainer.steps(), &score)?;
                all.iter_mut().try_for_each(|observer| observer.on_end(trainer))?;
                score
            }
        };
        // A run that was resumed has checkpoints, of which the last must be that of its end.
        let has_checkpoints = self.recipe.train.checkpoint_every.is_some() || self.origin.is_some();
        if has_checkpoints || interrupt.came() {
            let written = observers.checkpoints.folder_mut().write_now(trainer);
            unless_full("there is no checkpoint of the last step", written)?;
        }
        let seconds = started.elapsed().as_secs_f64();
        let allocations = device.allocator().request_count() - requests_before;
        Ok(Trained { score, seconds, allocations })
    }

    fn summary(
        &self,
        trainer: &mut RecipeTrainer,
        Trained { score, seconds, allocations }: Trained,
        train_loss_last: Option<f64>,
        base_files: Option<Fingerprint>,
    ) -> Result<Summary> {
        let &Run { arguments, numerics, zero, plan, process, files, .. } = self;
        let device = trainer.device().clone();
        let statistics = device.allocator().statistics();
        let values = metric_values(&[("test".to_owned(), score)]);
        Ok(Summary {
            values: values.into_iter().map(|(name, value)| (name, Some(value))).collect(),
            train_loss_last: train_loss_last.unwrap_or(f64::NAN),
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
            model_file: Some(Fingerprint::of_file(&files.model())?),
            base_files,
        })
    }
}

/// The observers of a run.
struct Observers {
    progress: Option<Progress>,
    metrics: Metrics,
    events: Option<TensorBoard>,
    report: Report,
    checkpoints: Checkpoints,
}

impl Observers {
    /// All observers in calling order. The interrupt comes last.
    fn all<'a>(&'a mut self, interrupt: &'a mut &Interrupt) -> [&'a mut dyn Observer; 6] {
        let Observers { progress, metrics, events, report, checkpoints } = self;
        [progress, metrics, events, report, checkpoints, interrupt]
    }
}
