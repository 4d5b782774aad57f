//! The folder that a run leaves behind. Files are written beside their place and renamed, so an
//! earlier run's files stay whole until they are replaced.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{Result, TrainError};

/// The folder of one run.
#[derive(Clone, Debug)]
pub struct RunDir(PathBuf);

/// What a run came to; `summary.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Fraction of the test samples predicted right, after the last epoch.
    pub test_accuracy: f64,
    /// Mean loss of the test samples, after the last epoch.
    pub test_loss: f64,
    /// Mean loss of the last logical batch, before its update.
    pub train_loss_last: f64,
    /// Steps committed.
    pub steps: u64,
    /// Epochs trained to their end.
    pub epochs: u64,
    /// Samples of a logical batch.
    pub batch_size: usize,
    /// Samples on the device at once, at the end.
    pub micro_batch: usize,
    /// The limit on reserved bytes; the machine's memory if none was given.
    pub budget_bytes: usize,
    /// The peak of reserved bytes that the rehearsal showed.
    pub predicted_peak_bytes: usize,
    /// The peak of reserved bytes of the run.
    pub measured_peak_bytes: usize,
    /// Steps that were rolled back and tried again.
    pub retried_steps: u64,
    /// Device allocations from the first step to the end of the run.
    pub allocations: u64,
    /// Wall time of training and evaluation.
    pub seconds: f64,
    /// Hash of parameters, optimizer state, step counts and loss scale.
    pub final_state_hash: String,
}

impl RunDir {
    /// The folder at `path`, made if it is not there.
    ///
    /// # Errors
    /// `File`.
    pub fn create(path: &Path) -> Result<Self> {
        fs::create_dir_all(path)
            .map_err(|source| TrainError::File { path: path.to_owned(), source })?;
        Ok(RunDir(path.to_owned()))
    }

    /// The first of `runs/NAME-1`, `runs/NAME-2`, ... that does not exist yet, made.
    ///
    /// # Errors
    /// `File`.
    pub fn create_next(name: &str) -> Result<Self> {
        let runs = Path::new("runs");
        RunDir::create(runs)?;
        for number in 1u32.. {
            let path = runs.join(format!("{name}-{number}"));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(RunDir(path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => return Err(TrainError::File { path, source }),
            }
        }
        unreachable!("four billion runs")
    }

    /// A folder that is already there.
    ///
    /// # Errors
    /// `File` when it is not.
    pub fn open(path: &Path) -> Result<Self> {
        let file = |source| TrainError::File { path: path.to_owned(), source };
        if !fs::metadata(path).map_err(file)?.is_dir() {
            return Err(file(io::ErrorKind::NotADirectory.into()));
        }
        Ok(RunDir(path.to_owned()))
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The trained parameters.
    pub fn model(&self) -> PathBuf {
        self.0.join("model.safetensors")
    }

    /// One JSON object per step and epoch.
    pub fn metrics(&self) -> PathBuf {
        self.0.join("metrics.jsonl")
    }

    /// The page to look at.
    pub fn report(&self) -> PathBuf {
        self.0.join("report.html")
    }

    /// The [`Summary`].
    pub fn summary(&self) -> PathBuf {
        self.0.join("summary.json")
    }

    /// What was trained, complete with defaults.
    pub fn recipe(&self) -> PathBuf {
        self.0.join("recipe.toml")
    }

    /// Writes `text` to `path`, beside it first.
    ///
    /// # Errors
    /// `File`; what was at `path` is untouched.
    pub fn write(path: &Path, text: &str) -> Result<()> {
        let file = |source| TrainError::File { path: path.to_owned(), source };
        let folder = path.parent().expect("a file in a run folder");
        let mut beside = beside().tempfile_in(folder).map_err(file)?;
        beside.write_all(text.as_bytes()).map_err(file)?;
        beside.as_file().sync_all().map_err(file)?;
        beside.persist(path).map_err(|error| file(error.error))?;
        Ok(())
    }
}

/// Makes files that are as readable as any other file of the user, which temporary ones are not.
fn beside() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    builder
}
