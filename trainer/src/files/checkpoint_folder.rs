//! The checkpoints of a run on disk: written while it goes on, the last few and the best one kept.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use lowtide_tensor::DeviceKind;

use crate::error::{Result, TrainError};
use crate::files::new_file::NewFile;
use crate::files::reserve::Reserve;
use crate::files::snapshot::Snapshot;
use crate::run::observer::{RunStart, Training};

/// The part of a checkpoint's folder name before the number of steps.
const NAME_MARK: &str = "step-";

/// The file that names the best checkpoint, by its cost and its number of steps.
const BEST: &str = "best.txt";

/// The folder of the reserves, in the folder of the checkpoints.
const RESERVE: &str = ".reserve";

/// Bytes of a header, beside the recipe in it.
const HEADER_BYTES: usize = 4096;

/// A folder of checkpoints, which are called `step-00000120`. The last few and the best one are
/// kept. A checkpoint that cannot be written is reported on standard error, and the run goes on. An
/// observer says when to write: [`Checkpoints`](crate::run::observers::Checkpoints), or one of your
/// own.
///
/// When a run begins, room is set aside for all checkpoints that have to be on the disk at once:
/// the last one, the best one, and the one that is being written. On a full disk this room is used,
/// and the older ones of the last few are not kept.
pub struct CheckpointFolder {
    path: PathBuf,
    last_max: usize,
    keeps_best: bool,
    recipe: Option<String>,
    best_cost: f64,
    best_path: Option<PathBuf>,
    /// Checkpoints of this run that are kept as the last ones, in order.
    last: Vec<PathBuf>,
    in_background: bool,
    /// The checkpoint that is being written: its path, and the thread.
    writing: Option<(PathBuf, JoinHandle<Written>)>,
    written_at: Instant,
    /// Sizes of the files of a checkpoint, at most.
    sizes_bytes: Vec<usize>,
    /// Checkpoints that have to have a place on the disk: in files, or in reserves.
    place_count: usize,
    reserves: Vec<Reserve>,
}

/// Whether a checkpoint was written, and the reserve for it, if it was not needed.
type Written = (Result<()>, Option<Reserve>);

impl CheckpointFolder {
    /// The folder `path`, which is made when the first one is written; the last two are kept.
    pub fn new(path: &Path) -> Self {
        CheckpointFolder {
            path: path.to_owned(),
            last_max: 2,
            keeps_best: false,
            recipe: None,
            best_cost: f64::INFINITY,
            best_path: None,
            last: Vec::new(),
            in_background: false,
            writing: None,
            written_at: Instant::now(),
            sizes_bytes: Vec::new(),
            place_count: 0,
            reserves: Vec::new(),
        }
    }

    /// Sets how many of the last checkpoints are kept, at least one.
    #[must_use]
    pub fn keep_last(mut self, count: usize) -> Self {
        self.last_max = count.max(1);
        self
    }

    /// Keeps the best of the checkpoints that [`CheckpointFolder::write_if_best`] has written, too.
    #[must_use]
    pub fn keep_best(mut self) -> Self {
        self.keeps_best = true;
        self
    }

    /// Writes `recipe` into each checkpoint, see [`Snapshot::with_recipe`].
    #[must_use]
    pub fn with_recipe(mut self, recipe: &str) -> Self {
        self.recipe = Some(recipe.to_owned());
        self
    }

    /// Looks at what is in the folder, and sets room aside, when a run begins. One that will not
    /// write before its end needs room for one checkpoint only.
    ///
    /// # Errors
    /// `File` if the folder cannot be read or there is no room.
    pub fn open(
        &mut self,
        start: &RunStart,
        training: &mut dyn Training,
        writes_before_end: bool,
    ) -> Result<()> {
        let is_elsewhere = training.device().kind() != DeviceKind::Cpu;
        self.in_background = is_elsewhere || start.plan.checkpoint_copy_bytes > 0;
        self.written_at = Instant::now();
        if self.keeps_best
            && let Some((cost, path)) = self.read_best()
        {
            (self.best_cost, self.best_path) = (cost, Some(path));
        }
        self.last = checkpoints_in(&self.path)?.into_iter().rev().map(|(_, path)| path).collect();
        let [tensor_bytes, name_bytes] = training.learned_bytes();
        // An optimizer keeps up to four tensors under the name of each.
        let state_bytes = training.snapshot_bytes() - tensor_bytes + name_bytes;
        // As a string in JSON.
        let header_bytes = HEADER_BYTES + 2 * self.recipe.as_ref().map_or(0, String::len);
        self.sizes_bytes = vec![tensor_bytes + name_bytes, state_bytes, header_bytes];
        self.place_count = match (writes_before_end, self.keeps_best) {
            (false, false) => 1,
            (_, keeps_best) => 2 + usize::from(keeps_best),
        };
        // A process that was killed leaves its reserves behind.
        drop(fs::remove_dir_all(self.path.join(RESERVE)));
        self.set_aside()
    }

    /// When the last one was begun, or the run.
    pub fn written_at(&self) -> Instant {
        self.written_at
    }

    /// Begins to write one, unless the last one is of this step. It is copied when this returns,
    /// and written by another thread if the plan has its bytes.
    pub fn write(&mut self, training: &mut dyn Training) {
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
        // With what is spent and what is set aside of one size, nothing else grows in between.
        self.sizes_bytes = snapshot.sizes_bytes();
        let (mut reserve, place) = (self.reserves.pop(), path.clone());
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

    /// Writes one, and keeps it as the best, if none has cost less; waits for it.
    pub fn write_if_best(&mut self, cost: f64, training: &mut dyn Training) {
        if cost >= self.best_cost || cost.is_nan() {
            return;
        }
        self.write(training);
        // The best one before goes only when this one is there.
        self.wait();
        let step = training.position().step;
        let path = self.path_of(step);
        if !path.is_dir() {
            return;
        }
        let line = format!("{cost:?} {step}\n");
        let (file, mut reserve) = (self.path.join(BEST), self.reserves.pop());
        let marked = Reserve::spend(&mut reserve, || NewFile::write(&file, &line));
        self.reserves.extend(reserve);
        if let Err(error) = marked {
            // The file says so of the one before, which stays.
            note(&format!("{} is the best one, {error}", path.display()));
            return;
        }
        self.best_cost = cost;
        if let Some(before) = self.best_path.replace(path).filter(|p| !self.last.contains(p)) {
            drop(fs::remove_dir_all(before));
        }
        self.refill();
    }

    /// Writes one now, unless the last one is of this step, and waits for it.
    ///
    /// # Errors
    /// Errors of [`Trainer::snapshot`](crate::Trainer::snapshot) and [`Snapshot::write`].
    pub fn write_now(&mut self, training: &mut dyn Training) -> Result<()> {
        self.wait();
        let path = self.path_of(training.position().step);
        if !path.exists() {
            let snapshot = self.snapshot(training)?;
            let mut reserve = self.reserves.pop();
            Reserve::spend(&mut reserve, || snapshot.write(&path))?;
            self.keep(path);
        }
        Ok(())
    }

    /// Sets aside what is missing of the room that has to be there, and gives back what is too
    /// much of it.
    fn set_aside(&mut self) -> Result<()> {
        let best = self.best_path.iter().filter(|best| !self.last.contains(best));
        let written = self.last.len() + best.count();
        // Where none is written, all of it; in any case that of the next one.
        let count = self.place_count.saturating_sub(written).max(self.place_count.min(1));
        self.reserves.truncate(count);
        while self.reserves.len() < count {
            let path = self.path.join(RESERVE).join(self.reserves.len().to_string());
            self.reserves.push(Reserve::take(&path, &self.sizes_bytes, "a checkpoint")?);
        }
        Ok(())
    }

    fn snapshot(&self, training: &mut dyn Training) -> Result<Snapshot> {
        let make = |source| TrainError::File { path: self.path.clone(), source };
        fs::create_dir_all(&self.path).map_err(make)?;
        let snapshot = training.snapshot()?;
        Ok(match &self.recipe {
            Some(recipe) => snapshot.with_recipe(recipe),
            None => snapshot,
        })
    }

    /// The best one of a run that this one goes on with.
    fn read_best(&self) -> Option<(f64, PathBuf)> {
        let text = fs::read_to_string(self.path.join(BEST)).ok()?;
        let (cost, step) = text.trim().split_once(' ')?;
        let path = self.path_of(step.parse().ok()?);
        path.is_dir().then_some((cost.parse().ok()?, path))
    }

    fn path_of(&self, step: u64) -> PathBuf {
        self.path.join(format!("{NAME_MARK}{step:08}"))
    }

    /// Waits for the one that is being written.
    pub fn wait(&mut self) {
        let Some((path, thread)) = self.writing.take() else { return };
        match thread.join() {
            Ok(written) => self.conclude(path, written),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    fn conclude(&mut self, path: PathBuf, (written, reserve): Written) {
        self.reserves.extend(reserve);
        match written {
            Ok(()) => self.keep(path),
            Err(error) => tell(&path, &error),
        }
        self.refill();
    }

    /// Sets room aside for the next one, for which the older ones go where there is no other.
    fn refill(&mut self) {
        while let Err(error) = self.set_aside()
            && error.lacks_room()
            && self.last.len() > 1
        {
            self.remove_first(1);
        }
    }

    /// Adds one to those that are kept, and removes what is one too many.
    fn keep(&mut self, path: PathBuf) {
        if self.last.last() != Some(&path) {
            self.last.push(path);
        }
        self.remove_first(self.last.len().saturating_sub(self.last_max));
    }

    /// Removes the first ones of those that are kept as the last ones.
    fn remove_first(&mut self, count: usize) {
        for old in self.last.drain(..count) {
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
    note(&format!("the checkpoint {} was not written: {error}", path.display()));
}

fn note(line: &str) {
    drop(writeln!(io::stderr(), "note: {line}"));
}

impl Drop for CheckpointFolder {
    fn drop(&mut self) {
        if !thread::panicking() {
            self.wait();
        }
        self.reserves.clear();
        drop(fs::remove_dir(self.path.join(RESERVE)));
    }
}
