//! The checkpoints of a run on disk, written during the run. The last few and the best one are
//! kept.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use lowtide_allocator::files::{open_input, read_input_text};
use lowtide_tensor::DeviceKind;

use crate::error::{Result, TrainError};
use crate::files::new_file::{NewFile, sync_path};
use crate::files::reserve::Reserve;
use crate::files::snapshot::{FILES, RunNotes, Snapshot, partial_folder, remove_folder};
use crate::run::observer::{RunStart, Training};

/// The part of a checkpoint's folder name before the number of steps.
const NAME_MARK: &str = "step-";

/// The file that names the best checkpoint by its cost and its number of steps.
const BEST: &str = "best.txt";

/// The folder of the reserves, in the folder of the checkpoints.
const RESERVE: &str = ".reserve";

/// Bytes of a header without its notes.
const HEADER_BYTES: usize = 4096;

/// A folder of checkpoints, which are called `step-00000120`. The last few checkpoints and the best
/// one are kept. If a checkpoint cannot be written, a note on standard error says so and the run
/// goes on. An observer decides when to write: [`Checkpoints`](crate::run::observers::Checkpoints),
/// or an observer of your own.
///
/// When a run begins, room is set aside for all checkpoints that have to be on the disk at once:
/// the last one, the best one, and the one that is being written. On a full disk this room is used,
/// and only the newest of the last few are kept.
pub struct CheckpointFolder {
    path: PathBuf,
    last_max: usize,
    keeps_best: bool,
    notes: RunNotes,
    best_cost: f64,
    best_path: Option<PathBuf>,
    /// The last checkpoints of this run, oldest first.
    last: Vec<PathBuf>,
    in_background: bool,
    /// The checkpoint that is being written: its path, and the thread.
    writing: Option<(PathBuf, JoinHandle<Written>)>,
    written_at: Instant,
    /// Largest sizes of the files of a checkpoint.
    sizes_bytes: Vec<usize>,
    /// Number of checkpoints that need a place on the disk, as files or as reserves.
    place_count: usize,
    reserves: Vec<Reserve>,
}

/// The result of writing a checkpoint, and its reserve if the reserve was not needed.
type Written = (Result<()>, Option<Reserve>);

impl CheckpointFolder {
    /// The folder `path`. The first checkpoint creates the folder. The last two checkpoints are
    /// kept.
    pub fn new(path: &Path) -> Self {
        CheckpointFolder {
            path: path.to_owned(),
            last_max: 2,
            keeps_best: false,
            notes: RunNotes::default(),
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

    /// Sets the number of last checkpoints that are kept, at least one.
    #[must_use]
    pub fn keep_last(mut self, count: usize) -> Self {
        self.last_max = count.max(1);
        self
    }

    /// Also keeps the best checkpoint that [`CheckpointFolder::write_if_best`] has written.
    #[must_use]
    pub fn keep_best(mut self) -> Self {
        self.keeps_best = true;
        self
    }

    /// Writes `notes` into each checkpoint, see [`Snapshot::with_notes`].
    #[must_use]
    pub fn with_notes(mut self, notes: RunNotes) -> Self {
        self.notes = notes;
        self
    }

    /// Reads the folder and sets room aside at the start of a run. A run that writes no checkpoint
    /// before its end needs room for a single one.
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
        // An optimizer keeps up to four tensors for each parameter, named after the parameter.
        let state_bytes = training.snapshot_bytes() - tensor_bytes + name_bytes;
        let header_bytes = HEADER_BYTES + self.notes.size_bytes();
        self.sizes_bytes = vec![tensor_bytes + name_bytes, state_bytes, header_bytes];
        self.place_count = match (writes_before_end, self.keeps_best) {
            (false, false) => 1,
            (_, keeps_best) => 2 + usize::from(keeps_best),
        };
        // A killed process leaves its reserves behind.
        drop(fs::remove_dir_all(self.path.join(RESERVE)));
        self.set_aside()
    }

    /// The start time of the last checkpoint; without a checkpoint, the start time of the run.
    pub fn written_at(&self) -> Instant {
        self.written_at
    }

    /// Begins to write a checkpoint, unless the last checkpoint is of this step. The training is
    /// copied before the call returns. Another thread writes the copy if the plan counts its bytes.
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
        // The sizes are updated so that the reserve that is used and the next reserve have the same
        // size.
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

    /// Writes a checkpoint and keeps it as the best one, if no earlier checkpoint has a lower cost.
    /// Waits until it is written.
    pub fn write_if_best(&mut self, cost: f64, training: &mut dyn Training) {
        if cost >= self.best_cost || cost.is_nan() {
            return;
        }
        self.write(training);
        // The previous best checkpoint is removed only once the new one is written.
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
            // The file still names the previous best checkpoint, which stays.
            note(&format!("{} is the best one, {error}", path.display()));
            return;
        }
        self.best_cost = cost;
        if let Some(before) = self.best_path.replace(path).filter(|p| !self.last.contains(p)) {
            drop(fs::remove_dir_all(before));
        }
        self.refill();
    }

    /// Writes a checkpoint, unless the last checkpoint is of this step. Waits until it is written.
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

    /// Sets aside the room that is still missing, and gives back the room that is not needed any
    /// more.
    fn set_aside(&mut self) -> Result<()> {
        let best = self.best_path.iter().filter(|best| !self.last.contains(best));
        // A checkpoint that is shared with an earlier run gives no room back when it is removed.
        let written = self.last.iter().chain(best).filter(|path| !is_shared(path)).count();
        // Room for all checkpoints that are not written yet, and in any case for the next one.
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
        Ok(training.snapshot()?.with_notes(&self.notes))
    }

    /// The best checkpoint of a run that this run continues.
    fn read_best(&self) -> Option<(f64, PathBuf)> {
        let (cost, step) = best_in(&self.path)?;
        Some((cost, self.path_of(step)))
    }

    fn path_of(&self, step: u64) -> PathBuf {
        path_of(&self.path, step)
    }

    /// Waits for the checkpoint that is being written.
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

    /// Sets room aside for the next checkpoint. If the disk is full, older checkpoints are removed.
    fn refill(&mut self) {
        while let Err(error) = self.set_aside()
            && error.lacks_room()
            && self.last.len() > 1
        {
            self.remove_first(1);
        }
    }

    /// Adds a checkpoint to the kept ones, and removes the oldest if there are too many.
    fn keep(&mut self, path: PathBuf) {
        if self.last.last() != Some(&path) {
            self.last.push(path);
        }
        self.remove_first(self.last.len().saturating_sub(self.last_max));
    }

    /// Removes the `count` oldest of the kept checkpoints. The folder of the best checkpoint stays.
    fn remove_first(&mut self, count: usize) {
        for old in self.last.drain(..count) {
            if self.best_path.as_ref() != Some(&old) {
                // A checkpoint that cannot be removed stays, which only takes room.
                drop(fs::remove_dir_all(&old));
            }
        }
    }
}

/// The checkpoints in a folder with their steps, newest first; empty if the folder does not exist.
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

/// True if a checkpoint's files are in another folder, too.
#[cfg(unix)]
fn is_shared(checkpoint: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(checkpoint.join(FILES[0])).is_ok_and(|model| model.nlink() > 1)
}

/// Other systems do not say it.
#[cfg(not(unix))]
fn is_shared(_: &Path) -> bool {
    true
}

fn path_of(folder: &Path, step: u64) -> PathBuf {
    folder.join(format!("{NAME_MARK}{step:08}"))
}

/// The cost and the number of steps of the best checkpoint in a folder; `None` if none is named or
/// the named one is missing.
fn best_in(folder: &Path) -> Option<(f64, u64)> {
    /// A size larger than a cost and a number of steps.
    const BEST_BYTES_MAX: u64 = 1 << 10;
    let text = read_input_text(&folder.join(BEST), BEST_BYTES_MAX).ok()?;
    let (cost, step) = text.trim().split_once(' ')?;
    let (cost, step) = (cost.parse().ok()?, step.parse().ok()?);
    path_of(folder, step).is_dir().then_some((cost, step))
}

/// Puts the checkpoints that a run continues with into its folder `to`: `checkpoint`, from which it
/// resumes, and the best checkpoint up to there, from the same folder. A new folder appears with
/// all of them; in a folder that is there, checkpoints and a better best one stay. Files are
/// linked, or copied where the file system has no links.
///
/// # Errors
/// `File`.
pub fn take_over_checkpoints(checkpoint: &Path, to: &Path) -> Result<()> {
    let Some(from) = checkpoint.parent().filter(|from| *from != to) else { return Ok(()) };
    let beside = partial_folder(to).filter(|_| !to.exists());
    let place = beside.as_deref().unwrap_or(to);
    if beside.is_some() {
        remove_folder(place).map_err(file_error(place))?;
    }
    fs::create_dir_all(place).map_err(file_error(place))?;
    link_checkpoint(checkpoint, place)?;
    let step = checkpoint.file_name().and_then(|name| name.to_str()?.strip_prefix(NAME_MARK));
    let step: Option<u64> = step.and_then(|step| step.parse().ok());
    let is_better = |cost: f64| best_in(place).is_none_or(|(there, _)| cost < there);
    let best = best_in(from).filter(|&(cost, best)| Some(best) <= step && is_better(cost));
    if let Some((cost, best)) = best {
        link_checkpoint(&path_of(from, best), place)?;
        NewFile::write(&place.join(BEST), &format!("{cost:?} {best}\n"))?;
    }
    if let Some(beside) = &beside {
        sync_path(beside)?;
        fs::rename(beside, to).map_err(file_error(to))?;
    }
    Ok(())
}

/// Links a checkpoint into the folder `to`, all its files or none.
fn link_checkpoint(checkpoint: &Path, to: &Path) -> Result<()> {
    let Some(path) = checkpoint.file_name().map(|name| to.join(name)) else { return Ok(()) };
    let Some(beside) = partial_folder(&path).filter(|_| !path.exists()) else { return Ok(()) };
    remove_folder(&beside).map_err(file_error(&beside))?;
    fs::create_dir(&beside).map_err(file_error(&beside))?;
    for name in FILES {
        let (from, place) = (checkpoint.join(name), beside.join(name));
        // A link to a file is followed, as it may not lead there from another folder.
        let is_linked = fs::canonicalize(&from).and_then(|from| fs::hard_link(from, &place));
        if is_linked.is_err() {
            let copy = || io::copy(&mut open_input(&from)?, &mut File::create(&place)?);
            copy().map_err(file_error(&from))?;
        }
        sync_path(&place)?;
    }
    sync_path(&beside)?;
    fs::rename(&beside, &path).map_err(file_error(&path))
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> TrainError {
    let path = path.to_owned();
    move |source| TrainError::File { path, source }
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
