//! The files of a run in progress, in a folder inside the run's own. A run that fails before its
//! first step leaves no files, and does not change those of an earlier run.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use lowtide_trainer::{Result, RunNotes, TrainError, checkpoints_in, partial_of};

use crate::command::train::Conditions;
use crate::recipe::Recipe;
use crate::run_dir::RunDir;
use crate::run_lock::RunLock;

/// The folder `.partial` in a run's folder. If dropped, removes the folder with its contents,
/// unless it contains checkpoints.
pub(super) struct Staging {
    run_dir: RunDir,
    partial: RunDir,
    /// True if this run made the folder.
    is_new: bool,
    /// True if the run continues the run whose files are in the folder.
    is_resumed: bool,
    /// The lock, held until the folder is removed.
    lock: Option<RunLock>,
}

impl Staging {
    /// Makes the folder of a run, at `out` or as the next free folder of this name in `runs`, and
    /// locks it.
    ///
    /// # Errors
    /// `File` if the folder cannot be made or a file in it cannot be replaced; `Setting` if another
    /// process trains into it, or if an interrupted run left checkpoints there.
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

    /// Locks the folder of a run to continue, or makes another folder if `out` names one.
    ///
    /// # Errors
    /// Errors of [`Staging::new`].
    pub(super) fn resume(origin: &Origin, out: Option<&Path>) -> Result<Self> {
        match out {
            Some(out) if out != origin.run_dir => Staging::new(Some(out), ""),
            _ => {
                let mut staging = Staging::lock(RunDir::create(&origin.run_dir)?, false)?;
                staging.is_resumed = true;
                if checkpoints_in(&staging.partial.checkpoints())?.is_empty() {
                    // Files of a killed run that cannot be resumed.
                    remove_folder(staging.partial.path())?;
                }
                RunDir::create(staging.partial.path())?;
                Ok(staging)
            }
        }
    }

    fn lock(run_dir: RunDir, is_new: bool) -> Result<Self> {
        let lock = RunLock::take(run_dir.path())?;
        // Unmoved files belong to a killed run.
        run_dir.end_publication()?;
        if let Some(path) = run_dir.files().into_iter().find(|path| path.is_dir()) {
            return Err(TrainError::File { path, source: ErrorKind::IsADirectory.into() });
        }
        let partial = run_dir.partial();
        Ok(Staging { partial, run_dir, is_new, is_resumed: false, lock: Some(lock) })
    }

    /// The folder to which files are written.
    pub(super) fn partial(&self) -> &RunDir {
        &self.partial
    }

    /// Keeps the files of a failed run in the folder `unfinished` of the run's folder, in place of
    /// the files of an earlier failure. Returns this folder. Checkpoints of the same run stay until
    /// there are later ones.
    ///
    /// # Errors
    /// `File`.
    pub(super) fn keep_unfinished(self) -> Result<RunDir> {
        let path = self.run_dir.unfinished();
        let moved = |from: &Path, to: &Path| {
            fs::rename(from, to).map_err(|source| TrainError::File { path: to.to_owned(), source })
        };
        let (earlier, checkpoints) = (path.checkpoints(), self.partial.checkpoints());
        let before = checkpoints_in(&earlier)?;
        let newest_now = checkpoints_in(&checkpoints)?.first().map(|(step, _)| *step);
        if self.is_resumed && before.first().map(|(step, _)| *step) > newest_now {
            RunDir::create(&checkpoints)?;
            for (_, from) in before {
                let to = checkpoints.join(from.file_name().unwrap_or_default());
                if !to.exists() {
                    moved(&from, &to)?;
                }
            }
        }
        remove_folder(path.path())?;
        moved(self.partial.path(), path.path())?;
        RunDir::open(path.path())
    }

    /// Moves the files to the run's folder, where they replace an earlier run's, and returns the
    /// folder.
    ///
    /// # Errors
    /// `File`. Either the earlier run or this one is whole then: see [`RunDir::publish`].
    pub(super) fn publish(&self) -> Result<RunDir> {
        self.run_dir.publish(self.partial.path())?;
        if self.is_resumed {
            // The run may have resumed from these checkpoints, and now has later ones.
            drop(fs::remove_dir_all(self.run_dir.unfinished().path()));
        }
        Ok(self.run_dir.clone())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let checkpoints = checkpoints_in(&self.partial.checkpoints());
        if checkpoints.is_ok_and(|checkpoints| checkpoints.is_empty()) {
            // Files that cannot be removed are harmless.
            drop(fs::remove_dir_all(self.partial.path()));
        }
        drop(self.lock.take());
        if self.is_new {
            // Fails, as intended, if the run was published.
            drop(fs::remove_dir(self.run_dir.path()));
        }
    }
}

/// A checkpoint to resume from, and facts about its run.
pub(super) struct Origin {
    /// The folder of the run.
    pub(super) run_dir: PathBuf,
    /// The folder of the checkpoint.
    pub(super) checkpoint: PathBuf,
    /// The checkpoint before it, if there is one.
    pub(super) before: Option<PathBuf>,
    /// The metrics of the run.
    pub(super) metrics: PathBuf,
    /// True if the run has ended without an error.
    pub(super) has_ended: bool,
    /// The conditions of the run, if the checkpoint has them.
    pub(super) conditions: Option<Conditions>,
    /// The recipe in the checkpoint, once it is read.
    pub(super) recipe: Option<Recipe>,
    /// True if an unfinished epoch begins again.
    pub(super) restarts_epoch: bool,
}

impl Origin {
    /// The last checkpoint of the run in a folder. An interrupted run is searched first, then a
    /// failed run, then one that has ended. The folder of a checkpoint names this checkpoint.
    ///
    /// # Errors
    /// `Setting` if there is no checkpoint, or if it belongs to the run of another folder; `File`.
    pub(super) fn find(path: &Path) -> Result<Origin> {
        let run_dir = RunDir::open(path)?;
        let [partial, unfinished] = [run_dir.partial(), run_dir.unfinished()];
        for files in [&partial, &unfinished, &run_dir] {
            let mut found = checkpoints_in(&files.checkpoints())?.into_iter().map(|(_, path)| path);
            if let Some(checkpoint) = found.next() {
                let (metrics, run_dir) = (metrics_in(files.path()), path.to_owned());
                let before = found.next();
                let has_ended = !is_inner(files.path()) && files.summary().exists();
                let origin = Origin::new(run_dir, checkpoint, metrics, has_ended);
                return Origin { before, ..origin }.checked(files);
            }
        }
        // `RUN/checkpoints/step-N`, or `RUN/.partial/checkpoints/step-N`.
        let folders = path.ancestors().skip(2);
        let mut folders = folders.filter(|folder| !is_inner(folder));
        if let (true, Some(run_dir)) = (RunNotes::read(path).is_ok(), folders.next()) {
            let run_dir = run_dir.to_owned();
            let files = path.ancestors().nth(2).unwrap_or(path);
            let (metrics, checkpoint) = (metrics_in(files), path.to_owned());
            let has_ended = !is_inner(files) && files.join("summary.json").exists();
            return Origin::new(run_dir, checkpoint, metrics, has_ended)
                .checked(&RunDir::at(files));
        }
        Err(TrainError::Setting {
            place: path.display().to_string(),
            problem: "has no checkpoint; a run writes them with --checkpoint-every".to_owned(),
        })
    }

    fn new(run_dir: PathBuf, checkpoint: PathBuf, metrics: PathBuf, has_ended: bool) -> Origin {
        // An older checkpoint has none. A damaged one is refused by name when its recipe is read.
        let notes = RunNotes::read(&checkpoint).unwrap_or_default();
        let conditions = notes.run.and_then(|run| serde_json::from_value(run).ok());
        Origin {
            run_dir,
            checkpoint,
            before: None,
            metrics,
            has_ended,
            conditions,
            recipe: None,
            restarts_epoch: false,
        }
    }

    /// This origin, if its checkpoint is of the run whose files are in `files`.
    fn checked(self, files: &RunDir) -> Result<Origin> {
        let own = self.conditions.as_ref().map(|conditions| conditions.id.as_str());
        match (own, files.run_id()) {
            (Some(own), Some(of_folder)) if own != of_folder => Err(TrainError::Setting {
                place: self.checkpoint.display().to_string(),
                problem: format!(
                    "is of another training ({own}) than {} ({of_folder})",
                    files.path().display()
                ),
            }),
            _ => Ok(self),
        }
    }
}

/// The present metrics file of the run whose files are in this folder.
fn metrics_in(files: &Path) -> PathBuf {
    let metrics = files.join("metrics.jsonl");
    if metrics.exists() { metrics } else { partial_of(&metrics) }
}

/// True if a folder lies inside the folder of a run.
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
