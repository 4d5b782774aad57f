//! The folder of a run's files. Files are written under temporary names and renamed. The files of a
//! finished run replace an earlier run's all at once.
//!
//! One rename decides a publication: the folder with the new files gets the name `.complete`. If a
//! process ends before this rename, the earlier run stays. If it ends after, the next process that
//! opens the run's folder moves the files.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use lowtide_allocator::files::{read_input, read_input_text};
use lowtide_trainer::{Fingerprint, Knobs, NewFile, Parallelism, Result, TrainError, sync_path};
use serde::{Deserialize, Serialize};

use crate::run_lock::RunLock;

/// The comment in a recipe before the name of its training.
const ID_MARK: &str = "# training ";

/// A size larger than any summary, and than any recipe.
pub(crate) const SUMMARY_BYTES_MAX: u64 = 1 << 24;

/// The folder of one run.
#[derive(Clone, Debug)]
pub struct RunDir(PathBuf);

/// The outcome of a run; `summary.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The knobs of the last steps: micro-batch, recomputation, offloading and fused update. The
    /// field comes before `values`, which take all remaining keys.
    #[serde(flatten)]
    pub knobs: Knobs,
    /// Changes of the recipe's numerics that let the run fit, in words: see `lowtide train
    /// --allow`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub numerics: Vec<String>,
    /// The values of the last evaluation, named after set and metric: `test_loss`, `test_accuracy`.
    /// `None` stands for NaN.
    #[serde(flatten)]
    pub values: BTreeMap<String, Option<f64>>,
    /// Mean loss of the last logical batch, before its update.
    pub train_loss_last: f64,
    /// Number of committed steps.
    pub steps: u64,
    /// Number of finished epochs.
    pub epochs: u64,
    /// Number of samples of a logical batch over all ranks.
    pub batch_size: usize,
    /// Number of ranks that trained together.
    #[serde(default = "one")]
    pub ranks: usize,
    /// The parallelism of the ranks.
    #[serde(default)]
    pub zero: Parallelism,
    /// The limit on reserved bytes; the machine's memory if none was given.
    pub budget_bytes: usize,
    /// The origin of the budget: `--budget`, or the limit of the memory; empty in older runs.
    #[serde(default)]
    pub budget_from: String,
    /// The limit on the whole process, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_budget_bytes: Option<usize>,
    /// The most memory of the whole process by the plan, if it had a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_bytes: Option<usize>,
    /// Bytes of an NVIDIA device outside the budget: its context, kernels, libraries, other
    /// programs, and a reserve. 0 on a processor.
    #[serde(default)]
    pub outside_bytes: usize,
    /// The library for matrix products, on an NVIDIA device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub products: Option<String>,
    /// The kernel that cuBLASLt chose for each product, on an NVIDIA device: the sizes, and eight
    /// words that identify the kernel to the library.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub product_kernels: Vec<String>,
    /// The peak of reserved bytes in the rehearsal.
    pub predicted_peak_bytes: usize,
    /// The peak of reserved bytes in the run.
    pub measured_peak_bytes: usize,
    /// Number of steps that were rolled back and retried.
    pub retried_steps: u64,
    /// Number of device allocations from the first step to the end of the run.
    pub allocations: u64,
    /// Wall time of training and evaluation.
    pub seconds: f64,
    /// Hash of parameters, optimizer state, step counts and loss scale.
    pub final_state_hash: String,
    /// Length and checksum of the file of the trained parameters; absent in older runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_file: Option<Fingerprint>,
    /// Samples of the weights of the base that are in no file of the run, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_files: Option<Fingerprint>,
}

/// The part of a summary that identifies the files of the model. Other members may be those of an
/// older or a later version.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct ModelFiles {
    /// [`Summary::model_file`].
    model_file: Option<Fingerprint>,
    /// [`Summary::base_files`].
    pub(crate) base_files: Option<Fingerprint>,
}

fn one() -> usize {
    1
}

impl RunDir {
    /// The folder at `path`, which is created if it does not exist.
    ///
    /// # Errors
    /// `File`.
    pub fn create(path: &Path) -> Result<Self> {
        fs::create_dir_all(path).map_err(|error| {
            let is_file = error.kind() == io::ErrorKind::AlreadyExists;
            let source = if is_file { io::ErrorKind::NotADirectory.into() } else { error };
            TrainError::File { path: path.to_owned(), source }
        })?;
        Ok(RunDir(path.to_owned()))
    }

    /// Creates the first of `runs/NAME-1`, `runs/NAME-2`, ... that does not exist yet.
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

    /// An existing folder. Completes a publication that was interrupted in it.
    ///
    /// # Errors
    /// `File` if the folder does not exist, or if the files of a finished run cannot be moved.
    pub fn open(path: &Path) -> Result<Self> {
        let file = |source| TrainError::File { path: path.to_owned(), source };
        if !fs::metadata(path).map_err(file)?.is_dir() {
            return Err(file(io::ErrorKind::NotADirectory.into()));
        }
        let run_dir = RunDir(path.to_owned());
        if run_dir.complete().is_dir() {
            let _lock = RunLock::wait(path)?;
            run_dir.end_publication()?;
        }
        Ok(run_dir)
    }

    /// A folder that may be missing.
    pub(crate) fn at(path: &Path) -> Self {
        RunDir(path.to_owned())
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The file of the trained parameters. The summary has its checksum.
    pub fn model(&self) -> PathBuf {
        self.0.join("model.safetensors")
    }

    /// The file of the trained parameters, after a check that it is the file that the run wrote. A
    /// folder without a summary, and the summary of an older run, have nothing to check it by.
    ///
    /// # Errors
    /// `Setting` if the file has changed, or for an unreadable summary; `File`.
    pub(crate) fn checked_model(&self) -> Result<PathBuf> {
        let path = self.model();
        let Some(written) = self.model_files()?.model_file else { return Ok(path) };
        let found = Fingerprint::of_file(&path)?;
        if found == written {
            return Ok(path);
        }
        let problem = format!(
            "is not the file that the run wrote, it has {found} instead of {written}: put a copy \
             of that file here, or use this one by removing \"model_file\" from summary.json"
        );
        Err(TrainError::Setting { place: path.display().to_string(), problem })
    }

    /// The fingerprints of the model's files; none if there is no summary.
    ///
    /// # Errors
    /// `Setting` for an unreadable summary; `File`.
    pub(crate) fn model_files(&self) -> Result<ModelFiles> {
        let path = self.summary();
        match read_input(&path, SUMMARY_BYTES_MAX) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| TrainError::Setting {
                place: path.display().to_string(),
                problem: format!("is damaged, so the model cannot be checked by it: {error}"),
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(ModelFiles::default()),
            Err(source) => Err(TrainError::File { path, source }),
        }
    }

    /// The file of metrics, one JSON object per step and evaluation.
    pub fn metrics(&self) -> PathBuf {
        self.0.join("metrics.jsonl")
    }

    /// The file of the report page.
    pub fn report(&self) -> PathBuf {
        self.0.join("report.html")
    }

    /// The file of the [`Summary`].
    pub fn summary(&self) -> PathBuf {
        self.0.join("summary.json")
    }

    /// The file of the recipe, complete with defaults.
    pub fn recipe(&self) -> PathBuf {
        self.0.join("recipe.toml")
    }

    /// Writes the recipe, with the name of the training in a comment.
    ///
    /// # Errors
    /// `File`.
    pub(crate) fn write_recipe(&self, recipe: &str, id: &str) -> Result<()> {
        NewFile::write(&self.recipe(), &format!("{ID_MARK}{id}\n{recipe}"))
    }

    /// The name of the training whose recipe is here, if the recipe says it.
    pub(crate) fn run_id(&self) -> Option<String> {
        let recipe = read_input_text(&self.recipe(), SUMMARY_BYTES_MAX).ok()?;
        Some(recipe.lines().next()?.strip_prefix(ID_MARK)?.to_owned())
    }

    /// The folder of the checkpoints, which are called `step-N`.
    pub fn checkpoints(&self) -> PathBuf {
        self.0.join("checkpoints")
    }

    /// The folder of the files of a run in progress.
    pub(crate) fn partial(&self) -> RunDir {
        RunDir(self.0.join(".partial"))
    }

    /// The folder of the files that a failed run leaves.
    pub(crate) fn unfinished(&self) -> RunDir {
        RunDir(self.0.join("unfinished"))
    }

    /// The files of a run. The summary comes last: if it exists, the others do too.
    pub(crate) fn files(&self) -> [PathBuf; 5] {
        [self.model(), self.metrics(), self.report(), self.recipe(), self.summary()]
    }

    /// Moves the remaining files of a finished run to their paths. The caller holds the lock.
    pub(crate) fn end_publication(&self) -> Result<()> {
        self.move_complete(&mut |from, to| fs::rename(from, to))
    }

    /// Replaces the files of an earlier run by the files in `partial`, a folder inside this one.
    /// The caller holds the lock.
    ///
    /// # Errors
    /// `File`. If `partial` has not become the folder `.complete`, everything is as before.
    /// Otherwise this run has replaced the earlier one, and [`RunDir::open`] moves the remaining
    /// files.
    pub(crate) fn publish(&self, partial: &Path) -> Result<()> {
        self.publish_by(partial, &mut |from, to| fs::rename(from, to))
    }

    fn publish_by(&self, partial: &Path, rename: &mut Rename<'_>) -> Result<()> {
        let partial = RunDir(partial.to_owned());
        // The files are on disk before the name `.complete` is.
        partial.files().iter().try_for_each(|file| sync_path(file))?;
        // Even an empty folder of checkpoints replaces that of an earlier run.
        RunDir::create(&partial.checkpoints())?;
        sync_path(partial.path())?;
        let complete = self.complete();
        rename(partial.path(), &complete)
            .map_err(|source| TrainError::File { path: complete, source })?;
        sync_path(self.path())?;
        self.move_complete(rename)
    }

    /// The folder in which the files of a finished run wait to be moved.
    fn complete(&self) -> PathBuf {
        self.0.join(".complete")
    }

    /// Moves the files of a finished run that are not at their paths yet.
    fn move_complete(&self, rename: &mut Rename<'_>) -> Result<()> {
        let complete = RunDir(self.complete());
        if !complete.path().is_dir() {
            return Ok(());
        }
        let file = |path: &Path| {
            let path = path.to_owned();
            move |source| TrainError::File { path, source }
        };
        // The old summary goes first: without a summary the folder does not look like a finished
        // run while files are missing.
        if complete.summary().exists() {
            unless_gone(fs::remove_file(self.summary())).map_err(file(&self.summary()))?;
        }
        let (from, to) = (complete.checkpoints(), self.checkpoints());
        if from.is_dir() {
            // Checkpoints of the earlier run do not belong to this run.
            unless_gone(fs::remove_dir_all(&to)).map_err(file(&to))?;
            unless_gone(rename(&from, &to)).map_err(file(&to))?;
        }
        for (from, to) in complete.files().iter().zip(self.files()) {
            unless_gone(rename(from, &to)).map_err(file(&to))?;
        }
        // Fails, as intended, if there are checkpoints.
        drop(fs::remove_dir(&to));
        sync_path(self.path())?;
        // Also removes other files that a killed process has left there.
        unless_gone(fs::remove_dir_all(complete.path())).map_err(file(complete.path()))
    }
}

/// A function that moves a file or folder and replaces an existing one.
type Rename<'a> = dyn FnMut(&Path, &Path) -> io::Result<()> + 'a;

/// Treats a missing file as moved or removed.
fn unless_gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with the files of a run, each with `word` in it.
    fn write_run(folder: &RunDir, word: &str) {
        for file in folder.files().iter().chain([&checkpoint_of(folder)]) {
            fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
            fs::write(file, word).expect("a folder");
        }
    }

    fn checkpoint_of(folder: &RunDir) -> PathBuf {
        folder.checkpoints().join("checkpoint")
    }

    fn read_run(folder: &RunDir) -> Vec<String> {
        let read = |file| fs::read_to_string(file).unwrap_or_else(|error| error.to_string());
        folder.files().into_iter().chain([checkpoint_of(folder)]).map(read).collect()
    }

    /// A run that replaces an earlier one, interrupted before the `nth` rename of its publication.
    fn publish_up_to(nth: usize) -> (tempfile::TempDir, RunDir, usize) {
        let folder = tempfile::tempdir().expect("a folder");
        let run_dir = RunDir::create(folder.path()).expect("a folder");
        write_run(&run_dir, "earlier");
        let partial = RunDir::create(&folder.path().join(".partial")).expect("a folder");
        write_run(&partial, "new");
        // A process that was killed before it was resumed leaves such a file.
        fs::write(partial.path().join(".lowtide-1"), "half").expect("a folder");
        let mut renames = 0;
        let published = run_dir.publish_by(partial.path(), &mut |from, to| {
            renames += 1;
            if renames > nth { Err(io::ErrorKind::Other.into()) } else { fs::rename(from, to) }
        });
        assert_eq!(published.is_ok(), renames <= nth, "{published:?}");
        (folder, run_dir, renames)
    }

    #[test]
    fn publication_cut_off_at_any_rename_leaves_the_earlier_run_or_the_new_one() {
        let (.., renames) = publish_up_to(usize::MAX);
        assert_eq!(renames, 7);
        for nth in 0..=renames {
            let (_folder, run_dir, _) = publish_up_to(nth);
            let has_summary = run_dir.summary().exists();
            let before = read_run(&run_dir);
            let opened = RunDir::open(run_dir.path()).expect("it ends the publication");
            let files = read_run(&opened);
            let expected = if nth == 0 { "earlier" } else { "new" };
            assert_eq!(files, [expected; 6], "rename {nth}");
            // A reader who does not know about publications only sees a summary if all files are
            // there.
            assert!(!has_summary || before == files, "rename {nth}: {before:?}");
            let again = RunDir::open(run_dir.path()).expect("nothing is left to do");
            assert_eq!(read_run(&again), files);
            assert!(!run_dir.complete().exists() && !run_dir.path().join(".lock").exists());
        }
    }
}
