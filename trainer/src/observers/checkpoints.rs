//! Checkpoints that are written while a training goes on.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lowtide_tensor::DeviceKind;
use serde::{Deserialize, Serialize};

use super::Watched;
use crate::checkpoint::Snapshot;
use crate::error::{Result, TrainError};
use crate::observer::{EvaluationReport, Flow, Observer, RunStart, StepReport, Training};
use crate::run_dir::RunDir;

/// Before the number of steps, in the name of a checkpoint's folder.
const NAME_MARK: &str = "step-";

/// The file that says which one is the best: its cost, and its number of steps.
const BEST: &str = "best.txt";

/// How often a checkpoint is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum CheckpointEvery {
    /// After so many steps, counted over the whole training.
    Steps(u64),
    /// After so many epochs, counted over the whole training.
    Epochs(u64),
    /// After a step, when so much time has passed since the last one.
    Time(Duration),
}

impl FromStr for CheckpointEvery {
    type Err = String;

    /// `20steps`, `1epoch`, `10min`, `90s`, `2h`; a number alone counts steps.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let expected = || format!("{text:?} is no interval such as 500steps, 1epoch or 10min");
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (count, unit) = text.split_at(digits);
        let count: u64 = count.parse().ok().filter(|&count| count > 0).ok_or_else(expected)?;
        let time = |seconds| Ok(CheckpointEvery::Time(Duration::from_secs(count * seconds)));
        match unit.trim() {
            "" | "step" | "steps" => Ok(CheckpointEvery::Steps(count)),
            "epoch" | "epochs" => Ok(CheckpointEvery::Epochs(count)),
            "s" => time(1),
            "min" if count < 1 << 40 => time(60),
            "h" if count < 1 << 40 => time(3600),
            _ => Err(expected()),
        }
    }
}

impl fmt::Display for CheckpointEvery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CheckpointEvery::Steps(count) => write!(f, "{count}steps"),
            CheckpointEvery::Epochs(count) => write!(f, "{count}epochs"),
            CheckpointEvery::Time(time) => write!(f, "{}s", time.as_secs()),
        }
    }
}

impl TryFrom<String> for CheckpointEvery {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        text.parse()
    }
}

impl From<CheckpointEvery> for String {
    fn from(every: CheckpointEvery) -> String {
        every.to_string()
    }
}

/// Writes checkpoints into a folder, as `step-00000120`; keeps the last few, and the best one. One
/// that cannot be written is told on standard error, and the run goes on.
pub struct Checkpoints {
    folder: PathBuf,
    every: CheckpointEvery,
    last_max: usize,
    best: Option<Watched>,
    recipe: Option<String>,
    best_cost: f64,
    best_path: Option<PathBuf>,
    /// Those of this run that are kept as the last ones, in order.
    last: Vec<PathBuf>,
    written_at: Instant,
    in_background: bool,
    /// Whether one is to be written after the evaluation of this step.
    is_due: bool,
    /// What is being written: its path, and the thread.
    writing: Option<(PathBuf, JoinHandle<Result<()>>)>,
}

impl Checkpoints {
    /// Checkpoints in `folder`, which is made when the first one is written; the last two are kept.
    pub fn new(folder: &Path, every: CheckpointEvery) -> Self {
        Checkpoints {
            folder: folder.to_owned(),
            every,
            last_max: 2,
            best: None,
            recipe: None,
            best_cost: f64::INFINITY,
            best_path: None,
            last: Vec::new(),
            written_at: Instant::now(),
            in_background: false,
            is_due: false,
            writing: None,
        }
    }

    /// The same with another number of last ones that are kept, at least one.
    #[must_use]
    pub fn keep_last(mut self, count: usize) -> Self {
        self.last_max = count.max(1);
        self
    }

    /// The same, which also writes and keeps the one after the evaluation with the best value.
    #[must_use]
    pub fn keep_best(mut self, watched: Watched) -> Self {
        self.best = Some(watched);
        self
    }

    /// The same with what was trained in each, see [`Snapshot::with_recipe`].
    #[must_use]
    pub fn with_recipe(mut self, recipe: &str) -> Self {
        self.recipe = Some(recipe.to_owned());
        self
    }

    /// Writes one now, unless the last one is of this step, and waits for it.
    ///
    /// # Errors
    /// Those of [`Trainer::snapshot`](crate::Trainer::snapshot) and [`Snapshot::write`].
    pub fn write_now(&mut self, training: &mut dyn Training) -> Result<()> {
        self.wait();
        let path = self.path_of(training.position().step);
        if !path.exists() {
            self.snapshot(training)?.write(&path)?;
            self.keep(path);
        }
        Ok(())
    }

    fn snapshot(&self, training: &mut dyn Training) -> Result<Snapshot> {
        let make = |source| TrainError::File { path: self.folder.clone(), source };
        fs::create_dir_all(&self.folder).map_err(make)?;
        let snapshot = training.snapshot()?;
        Ok(match &self.recipe {
            Some(recipe) => snapshot.with_recipe(recipe),
            None => snapshot,
        })
    }

    /// The best one of a run that this one goes on with.
    fn read_best(&self) -> Option<(f64, PathBuf)> {
        let text = fs::read_to_string(self.folder.join(BEST)).ok()?;
        let (cost, step) = text.trim().split_once(' ')?;
        let path = self.path_of(step.parse().ok()?);
        path.is_dir().then_some((cost.parse().ok()?, path))
    }

    fn path_of(&self, step: u64) -> PathBuf {
        self.folder.join(format!("{NAME_MARK}{step:08}"))
    }

    /// Begins to write one, after the one before is there.
    fn begin(&mut self, training: &mut dyn Training) {
        self.wait();
        self.written_at = Instant::now();
        let path = self.path_of(training.position().step);
        if path.exists() {
            return;
        }
        let (place, in_background) = (path.clone(), self.in_background);
        let begun = self.snapshot(training).and_then(|snapshot| match in_background {
            true => Ok(Some(thread::spawn(move || snapshot.write(&place)))),
            false => snapshot.write(&place).map(|()| None),
        });
        match begun {
            Ok(Some(thread)) => self.writing = Some((path, thread)),
            Ok(None) => self.keep(path),
            Err(error) => tell(&path, &error),
        }
    }

    /// Waits for the one that is being written.
    fn wait(&mut self) {
        let Some((path, thread)) = self.writing.take() else { return };
        match thread.join() {
            Ok(Ok(())) => self.keep(path),
            Ok(Err(error)) => tell(&path, &error),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Adds one to those that are kept, and removes what is one too many.
    fn keep(&mut self, path: PathBuf) {
        if self.last.last() != Some(&path) {
            self.last.push(path);
        }
        let excess = self.last.len().saturating_sub(self.last_max);
        for old in self.last.drain(..excess) {
            if self.best_path.as_ref() != Some(&old) {
                // One that stays is one too many, no less.
                drop(fs::remove_dir_all(&old));
            }
        }
    }
}

/// The checkpoints in a folder with their steps, the last one first; none where there is no
/// folder.
///
/// # Errors
/// `File` if the folder cannot be read.
pub fn checkpoints_in(folder: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => {
            entries.map_err(|source| TrainError::File { path: folder.to_owned(), source })?
        }
    };
    let step_of = |path: &Path| path.file_name()?.to_str()?.strip_prefix(NAME_MARK)?.parse().ok();
    let paths = entries.flatten().map(|entry| entry.path());
    let mut found: Vec<(u64, PathBuf)> =
        paths.filter_map(|path| Some((step_of(&path)?, path))).collect();
    found.sort_by(|a, b| b.cmp(a));
    Ok(found)
}

fn tell(path: &Path, error: &TrainError) {
    let line = format!("note: the checkpoint {} was not written: {error}", path.display());
    drop(writeln!(io::stderr(), "{line}"));
}

impl Observer for Checkpoints {
    fn on_start(&mut self, start: &RunStart, training: &mut dyn Training) -> Result<()> {
        let is_elsewhere = training.device().kind() != DeviceKind::Cpu;
        self.in_background = is_elsewhere || start.plan.checkpoint_copy_bytes > 0;
        self.written_at = Instant::now();
        if self.best.is_some()
            && let Some((cost, path)) = self.read_best()
        {
            (self.best_cost, self.best_path) = (cost, Some(path));
        }
        self.last = checkpoints_in(&self.folder)?.into_iter().rev().map(|(_, path)| path).collect();
        Ok(())
    }

    fn on_step(&mut self, report: &StepReport, training: &mut dyn Training) -> Result<Flow> {
        let position = training.position();
        let is_due = match self.every {
            CheckpointEvery::Steps(steps) => position.step.is_multiple_of(steps.max(1)),
            CheckpointEvery::Epochs(epochs) => {
                position.batch == 0 && position.epoch.is_multiple_of(epochs.max(1))
            }
            CheckpointEvery::Time(interval) => self.written_at.elapsed() >= interval,
        };
        // After the evaluation, if one follows: a run that goes on from here does not repeat it.
        self.is_due = is_due && report.is_evaluated;
        if is_due && !report.is_evaluated {
            self.begin(training);
        }
        Ok(Flow::Continue)
    }

    fn on_evaluation(
        &mut self,
        report: &EvaluationReport,
        training: &mut dyn Training,
    ) -> Result<Flow> {
        if std::mem::take(&mut self.is_due) {
            self.begin(training);
        }
        let cost = self.best.as_ref().and_then(|watched| watched.cost(report));
        if let Some(cost) = cost.filter(|&cost| cost < self.best_cost) {
            self.begin(training);
            // The best one before goes only when this one is there.
            self.wait();
            let path = self.path_of(training.position().step);
            if !path.is_dir() {
                return Ok(Flow::Continue);
            }
            self.best_cost = cost;
            let line = format!("{cost:?} {}\n", training.position().step);
            if let Err(error) = RunDir::write(&self.folder.join(BEST), &line) {
                tell(&path, &error);
            }
            if let Some(before) = self.best_path.replace(path).filter(|p| !self.last.contains(p)) {
                drop(fs::remove_dir_all(before));
            }
        }
        Ok(Flow::Continue)
    }

    fn on_end(&mut self, training: &mut dyn Training) -> Result<()> {
        if std::mem::take(&mut self.is_due) {
            self.begin(training);
        }
        self.wait();
        Ok(())
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        if !thread::panicking() {
            self.wait();
        }
    }
}
