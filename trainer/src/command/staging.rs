//! The files of a run that is not done: in a folder inside the run's own, so that a run that
//! fails before its first step leaves none, and none takes anything from an earlier run.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::{Result, RunDir, TrainError};

/// The folder `.partial` in a run's folder; gone, with all that is in it, when this is dropped.
pub(super) struct Staging {
    run_dir: RunDir,
    partial: RunDir,
    /// Whether the run's folder was not there before.
    is_new: bool,
}

impl Staging {
    /// Makes the folder of a run, at `out` or the next free one in `runs`.
    ///
    /// # Errors
    /// `File` if it cannot be made or something in it could not be replaced.
    pub(super) fn new(out: Option<&Path>) -> Result<Self> {
        let is_new = out.is_none_or(|path| !path.exists());
        let run_dir = match out {
            Some(path) if !is_new => RunDir::open(path)?,
            Some(path) => RunDir::create(path)?,
            None => RunDir::create_next("digits")?,
        };
        if let Some(path) = files(&run_dir).into_iter().find(|path| path.is_dir()) {
            return Err(TrainError::File { path, source: ErrorKind::IsADirectory.into() });
        }
        let path = run_dir.path().join(".partial");
        // A run that was killed may have left one.
        match fs::remove_dir_all(&path) {
            Err(source) if source.kind() != ErrorKind::NotFound => {
                Err(TrainError::File { path, source })
            }
            _ => Ok(Staging { partial: RunDir::create(&path)?, run_dir, is_new }),
        }
    }

    /// Where the files are to be written.
    pub(super) fn partial(&self) -> &RunDir {
        &self.partial
    }

    /// Keeps the files of a run that failed, in the folder `unfinished` in the run's own, in place
    /// of those of an earlier failure; that folder.
    ///
    /// # Errors
    /// `File`.
    pub(super) fn keep_unfinished(self) -> Result<RunDir> {
        let path = self.run_dir.path().join("unfinished");
        let moved = match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => fs::rename(self.partial.path(), &path),
        };
        moved.map_err(|source| TrainError::File { path: path.clone(), source })?;
        RunDir::open(&path)
    }

    /// Moves the files to their places, over those of an earlier run; the run's folder.
    ///
    /// # Errors
    /// `File`.
    pub(super) fn publish(self) -> Result<RunDir> {
        for (from, to) in files(&self.partial).into_iter().zip(files(&self.run_dir)) {
            fs::rename(from, &to).map_err(|source| TrainError::File { path: to, source })?;
        }
        Ok(self.run_dir.clone())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // What cannot be removed is in nobody's way.
        drop(fs::remove_dir_all(self.partial.path()));
        if self.is_new {
            // Fails, as it should, if the run has been published.
            drop(fs::remove_dir(self.run_dir.path()));
        }
    }
}

fn files(run_dir: &RunDir) -> [PathBuf; 5] {
    // The summary comes last: where it is, the others are.
    [run_dir.model(), run_dir.metrics(), run_dir.report(), run_dir.recipe(), run_dir.summary()]
}
