//! The files of a run that is not done: in a folder inside the run's own, so that a run that
//! fails before its first step leaves none, and none takes anything from an earlier run.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use lowtide_trainer::{Result, TrainError, checkpoints_in, partial_of};

use crate::run_dir::RunDir;
use crate::run_lock::RunLock;

/// The folder `.partial` in a run's folder; gone, with all that is in it, when this is dropped,
/// unless checkpoints are in it.
pub(super) struct Staging {
    run_dir: RunDir,
    partial: RunDir,
    /// Whether the run's folder was not there before.
    is_new: bool,
    /// Whether it goes on with the run that was there.
    is_resumed: bool,
    /// Until the folder itself is removed.
    lock: Option<RunLock>,
}

impl Staging {
    /// Makes the folder of a run, at `out` or the next free one in `runs` of this name, and keeps
    /// other runs out of it.
    ///
    /// # Errors
    /// `File` if it cannot be made or something in it could not be replaced; `Setting` if another
    /// process is training into it, or a run was cut off there that left checkpoints.
    pub(super) fn new(out: Option<&Path>, name: &str) -> Result<Self> {
        let is_new = out.is_none_or(|path| !path.exists());
        let run_dir = match out {
            Some(path) => RunDir::create(path)?,
            None => RunDir::create_next(name)?,
        };
        let staging = Staging::lock(run_dir, is_new)?;
        let left = checkpoints_in(&staging.partial.checkpoints())?;
        if let Some((step, _)) = left.first() {
            let place = staging.run_dir.path().display();
            return Err(TrainError::Setting {
                place: place.to_string(),
                problem: format!(
                    "a run was cut off here that left a checkpoint of step {step}: `lowtide train \
                     --resume {place}` goes on with it; another --out, or removing {}, does not",
                    staging.partial.path().display()
                ),
            });
        }
        remove_folder(staging.partial.path())?;
        RunDir::create(staging.partial.path())?;
        Ok(staging)
    }

    /// The folder of a run to go on with, or of another one if `out` says so; other runs are kept
    /// out of it.
    ///
    /// # Errors
    /// The errors of [`Staging::new`].
    pub(super) fn resume(run_dir: &Path, out: Option<&Path>) -> Result<Self> {
        match out {
            Some(out) if out != run_dir => Staging::new(Some(out), ""),
            _ => {
                let mut staging = Staging::lock(RunDir::create(run_dir)?, false)?;
                staging.is_resumed = true;
                RunDir::create(staging.partial.path())?;
                Ok(staging)
            }
        }
    }

    fn lock(run_dir: RunDir, is_new: bool) -> Result<Self> {
        let lock = RunLock::take(run_dir.path())?;
        // Whatever is left there now is of a run that was killed.
        run_dir.end_publication()?;
        if let Some(path) = run_dir.files().into_iter().find(|path| path.is_dir()) {
            return Err(TrainError::File { path, source: ErrorKind::IsADirectory.into() });
        }
        let partial = run_dir.partial();
        Ok(Staging { partial, run_dir, is_new, is_resumed: false, lock: Some(lock) })
    }

    /// Where the files are to be written.
    pub(super) fn partial(&self) -> &RunDir {
        &self.partial
    }

    /// Keeps the files of a run that failed, in the folder `unfinished` in the run's own, in place
    /// of those of an earlier failure; that folder. Checkpoints of the same run stay until there
    /// are later ones.
    ///
    /// # Errors
    /// `File`.
    pub(super) fn keep_unfinished(self) -> Result<RunDir> {
        let path = self.run_dir.unfinished();
        let moved = |from: &Path, to: &Path| {
            fs::rename(from, to).map_err(|source| TrainError::File { path: to.to_owned(), source })
        };
        let (earlier, checkpoints) = (path.checkpoints(), self.partial.checkpoints());
        if self.is_resumed && earlier.is_dir() && checkpoints_in(&checkpoints)?.is_empty() {
            remove_folder(&checkpoints)?;
            moved(&earlier, &checkpoints)?;
        }
        remove_folder(path.path())?;
        moved(self.partial.path(), path.path())?;
        RunDir::open(path.path())
    }

    /// Makes the files those of the run's folder, in place of those of an earlier run; the folder.
    ///
    /// # Errors
    /// `File`; the earlier run is whole then, or this one is: see [`RunDir::publish`].
    pub(super) fn publish(&self) -> Result<RunDir> {
        self.run_dir.publish(self.partial.path())?;
        if self.is_resumed {
            // The run may have resumed from there; its own checkpoints are later ones.
            drop(fs::remove_dir_all(self.run_dir.unfinished().path()));
        }
        Ok(self.run_dir.clone())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let checkpoints = checkpoints_in(&self.partial.checkpoints());
        if checkpoints.is_ok_and(|checkpoints| checkpoints.is_empty()) {
            // Files that cannot be removed do no harm.
            drop(fs::remove_dir_all(self.partial.path()));
        }
        drop(self.lock.take());
        if self.is_new {
            // Fails, as it should, if the run has been published.
            drop(fs::remove_dir(self.run_dir.path()));
        }
    }
}

/// A checkpoint to go on from, and what is known of its run.
pub(super) struct Origin {
    /// The folder of the run.
    pub(super) run_dir: PathBuf,
    /// The folder of the checkpoint.
    pub(super) checkpoint: PathBuf,
    /// The one before it, if there is one.
    pub(super) before: Option<PathBuf>,
    /// The metrics of the run.
    pub(super) metrics: PathBuf,
    /// Whether the run has ended in good order.
    pub(super) has_ended: bool,
}

impl Origin {
    /// The last checkpoint of the run in a folder: of one that was cut off, of one that failed, or
    /// of one that has ended, the first of these that there is. A folder of a checkpoint is itself.
    ///
    /// # Errors
    /// `Setting` where there is none; `File`.
    pub(super) fn find(path: &Path) -> Result<Origin> {
        let run_dir = RunDir::open(path)?;
        let [partial, unfinished] = [run_dir.partial(), run_dir.unfinished()];
        for files in [&partial, &unfinished, &run_dir] {
            let mut found = checkpoints_in(&files.checkpoints())?.into_iter().map(|(_, path)| path);
            if let Some(checkpoint) = found.next() {
                let (metrics, run_dir) = (metrics_in(files.path()), path.to_owned());
                let before = found.next();
                let has_ended = !is_inner(files.path()) && files.summary().exists();
                return Ok(Origin { run_dir, checkpoint, before, metrics, has_ended });
            }
        }
        // RUN/checkpoints/step-N, or the same below RUN/.partial.
        let folders = path.ancestors().skip(2);
        let mut folders = folders.filter(|folder| !is_inner(folder));
        if let (true, Some(run_dir)) = (lowtide_trainer::saved_recipe(path).is_ok(), folders.next())
        {
            let run_dir = run_dir.to_owned();
            let files = path.ancestors().nth(2).unwrap_or(path);
            let (metrics, checkpoint) = (metrics_in(files), path.to_owned());
            let has_ended = !is_inner(files) && files.join("summary.json").exists();
            return Ok(Origin { run_dir, checkpoint, before: None, metrics, has_ended });
        }
        Err(TrainError::Setting {
            place: path.display().to_string(),
            problem: "has no checkpoint; a run writes them with --checkpoint-every".to_owned(),
        })
    }
}

/// The metrics so far of the run with its files in this folder.
fn metrics_in(files: &Path) -> PathBuf {
    let metrics = files.join("metrics.jsonl");
    if metrics.exists() { metrics } else { partial_of(&metrics) }
}

/// Whether a folder is one inside a run's folder.
fn is_inner(folder: &Path) -> bool {
    folder.file_name().is_some_and(|name| name == ".partial" || name == "unfinished")
}

fn remove_folder(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(source) if source.kind() != ErrorKind::NotFound => {
            Err(TrainError::File { path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}
