//! The files of a run that is not done: in a folder inside the run's own, so that a run that
//! fails before its first step leaves none, and none takes anything from an earlier run.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use crate::error::{Result, TrainError};
use crate::run_dir::RunDir;
use crate::run_lock::RunLock;

/// The folder `.partial` in a run's folder; gone, with all that is in it, when this is dropped.
pub(super) struct Staging {
    run_dir: RunDir,
    partial: RunDir,
    /// Whether the run's folder was not there before.
    is_new: bool,
    /// Until the folder itself is removed.
    lock: Option<RunLock>,
}

impl Staging {
    /// Makes the folder of a run, at `out` or the next free one in `runs`, and keeps other runs
    /// out of it.
    ///
    /// # Errors
    /// `File` if it cannot be made or something in it could not be replaced; `Setting` if another
    /// process is training into it.
    pub(super) fn new(out: Option<&Path>) -> Result<Self> {
        let is_new = out.is_none_or(|path| !path.exists());
        let run_dir = match out {
            Some(path) => RunDir::create(path)?,
            None => RunDir::create_next("digits")?,
        };
        let lock = RunLock::take(run_dir.path())?;
        // Whatever is left there now is of a run that was killed.
        run_dir.end_publication()?;
        if let Some(path) = run_dir.files().into_iter().find(|path| path.is_dir()) {
            return Err(TrainError::File { path, source: ErrorKind::IsADirectory.into() });
        }
        let path = run_dir.path().join(".partial");
        remove_folder(&path)?;
        Ok(Staging { partial: RunDir::create(&path)?, run_dir, is_new, lock: Some(lock) })
    }

    /// Where the files are to be written.
    pub(super) fn partial(&self) -> &RunDir {
        &self.partial
    }

    /// Removes every file that has been written so far.
    ///
    /// # Errors
    /// `File`.
    pub(super) fn make_room(&self) -> Result<()> {
        remove_folder(self.partial.path())?;
        RunDir::create(self.partial.path()).map(drop)
    }

    /// Keeps the files of a run that failed, in the folder `unfinished` in the run's own, in place
    /// of those of an earlier failure; that folder.
    ///
    /// # Errors
    /// `File`.
    pub(super) fn keep_unfinished(self) -> Result<RunDir> {
        let path = self.run_dir.path().join("unfinished");
        remove_folder(&path)?;
        fs::rename(self.partial.path(), &path)
            .map_err(|source| TrainError::File { path: path.clone(), source })?;
        RunDir::open(&path)
    }

    /// Makes the files those of the run's folder, in place of those of an earlier run; the folder.
    ///
    /// # Errors
    /// `File`; the earlier run is whole then, or this one is: see [`RunDir::publish`].
    pub(super) fn publish(&self) -> Result<RunDir> {
        self.run_dir.publish(self.partial.path())?;
        Ok(self.run_dir.clone())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // What cannot be removed does no harm.
        drop(fs::remove_dir_all(self.partial.path()));
        drop(self.lock.take());
        if self.is_new {
            // Fails, as it should, if the run has been published.
            drop(fs::remove_dir(self.run_dir.path()));
        }
    }
}

fn remove_folder(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(source) if source.kind() != ErrorKind::NotFound => {
            Err(TrainError::File { path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}
