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
use crate::checkpoint::{Snapshot, model_bytes};
use crate::error::{Result, TrainError};
use crate::observer::{EvaluationReport, Flow, Observer, RunStart, StepReport, Training};
use crate::reserve::Reserve;
use crate::run_dir::RunDir;

/// Before the number of steps, in the name of a checkpoint's folder.
const NAME_MARK: &str = "step-";

/// The file that says which one is the best: its cost, and its number of steps.
const BEST: &str = "best.txt";

/// Bytes of a header, beside the recipe in it.
const HEADER_BYTES: usize = 4096;

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
///
/// Room for one is set aside when a run begins. On a full disk it is for the first one, so that
/// there is one, or for [`Checkpoints::write_now`], which comes last.
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
    writing: Option<(PathBuf, JoinHandle<Written>)>,
    /// Sizes of the files of one, at most.
    sizes_bytes: Vec<usize>,
    reserve: Option<Reserve>,
}

/// Whether a checkpoint was written, and what is left of the reserve that it could take.
type Written = (Result<()>, Option<Reserve>);

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
            sizes_bytes: Vec::new(),
            reserve: None,
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
            let snapshot = self.snapshot(training)?;
            Reserve::spend(&mut self.reserve, || snapshot.write(&path))?;
            self.keep(path);
        }
        Ok(())
    }

    fn set_aside(&self) -> Result<Reserve> {
        Reserve::take(&self.folder.join(".reserve"), &self.sizes_bytes, "the last checkpoint")
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
        let snapshot = match self.snapshot(training) {
            Ok(snapshot) => snapshot,
            Err(error) => return tell(&path, &error),
        };
        // With one there, the reserve is for the last one.
        let mut reserve = if self.last.is_empty() { self.reserve.take() } else { None };
        let place = path.clone();
        let write = move || {
            let written = Reserve::spend(&mut reserve, || snapshot.write(&place));
            (written, reserve)
        };
        if self.in_background {
            self.writing = Some((path, thread::spawn(write)));
        } else {
            self.conclude(path, write());
        }
    }

    /// Waits for the one that is being written.
    fn wait(&mut self) {
        let Some((path, thread)) = self.writing.take() else { return };
        match thread.join() {
            Ok(written) => self.conclude(path, written),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    fn conclude(&mut self, path: PathBuf, (written, reserve): Written) {
        self.reserve = self.reserve.take().or(reserve);
        match written {
            Ok(()) => self.keep(path),
            Err(error) => tell(&path, &error),
        }
        // One that was spent is set aside again as soon as there is room.
        if self.reserve.is_none() && !self.sizes_bytes.is_empty() {
            self.reserve = self.set_aside().ok();
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
        let [tensor_bytes, name_bytes] = model_bytes(training.parameters());
        // An optimizer keeps up to four tensors under the name of each.
        let state_bytes = training.snapshot_bytes() - tensor_bytes + name_bytes;
        // As a string in JSON.
        let header_bytes = HEADER_BYTES + 2 * self.recipe.as_ref().map_or(0, String::len);
        self.sizes_bytes = vec![tensor_bytes + name_bytes, state_bytes, header_bytes];
        self.reserve = Some(self.set_aside()?);
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
            let line = format!("{cost:?} {}\n", training.position().step);
            if let Err(error) = RunDir::write(&self.folder.join(BEST), &line) {
                // The file says so of the one before, which stays.
                tell(&path, &error);
                return Ok(Flow::Continue);
            }
            self.best_cost = cost;
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
