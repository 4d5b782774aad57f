//! Files of a run at its end, on a disk that may be full: metrics and report are lost first, the
//! model last.

use std::fs::{self, File};
use std::io::{self, Write};

use lowtide_trainer::{NewFile, Reserve, Result, TrainError, TrainedState, partial_of};

use crate::command::staging::Staging;
use crate::recipe::{Recipe, RecipeTrainer};
use crate::run_dir::RunDir;

/// More than a summary takes, and folders that grow by a name.
const SUMMARY_BYTES: usize = 16 << 10;

/// The files of a run that it is not done without, and room for them.
pub(super) struct LastFiles<'a> {
    files: &'a RunDir,
    reserve: Option<Reserve>,
}

impl<'a> LastFiles<'a> {
    /// Sets room aside for them.
    ///
    /// # Errors
    /// `File` when there is none.
    pub(super) fn new(files: &'a RunDir, trainer: &mut RecipeTrainer) -> Result<Self> {
        let model_bytes = TrainedState::of(trainer.task_mut()).bytes().iter().sum();
        let path = files.path().join(".reserve");
        let reserve = Reserve::take(&path, &[model_bytes, SUMMARY_BYTES], "the trained model")?;
        Ok(LastFiles { files, reserve: Some(reserve) })
    }

    /// Saves the model, in place of the metrics if need be.
    ///
    /// # Errors
    /// `File` if there is no room even then; what the device says of a copy.
    pub(super) fn save_model(&mut self, trainer: &mut RecipeTrainer) -> Result<()> {
        let files = self.files;
        let mut save = || trainer.save_model(&files.model());
        let saved = Reserve::spend(&mut self.reserve, &mut save);
        match saved {
            Err(error) if error.lacks_room() => {
                note("metrics.jsonl is lost, its room is the model's", &error);
                drop(File::create(files.metrics()));
                save()
            }
            saved => saved,
        }
    }

    /// Writes a page that says why there is no report, if there is none.
    ///
    /// # Errors
    /// `File` if not even that can be written.
    pub(super) fn have_report(&mut self) -> Result<()> {
        let path = self.files.report();
        if path.exists() {
            return Ok(());
        }
        self.write(|| NewFile::write(&path, "<!doctype html>There was no room for the report.\n"))
    }

    /// Does what writes a small file.
    ///
    /// # Errors
    /// The errors of `write`.
    pub(super) fn write(&mut self, write: impl FnMut() -> Result<()>) -> Result<()> {
        Reserve::spend(&mut self.reserve, write)
    }
}

/// Goes on without what there is no room for.
///
/// # Errors
/// Any other error.
pub(super) fn unless_full(what: &str, result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.lacks_room() => {
            note(what, &error);
            Ok(())
        }
        result => result,
    }
}

fn note(what: &str, error: &TrainError) {
    drop(writeln!(io::stderr(), "note: {what}: {}", error.one_line()));
}

/// Saves what the committed steps of a failed run have learned, if it is whole. The run's error is
/// the one to report, so one in here only means that nothing is kept.
pub(super) fn rescue(trainer: &mut RecipeTrainer, recipe: &Recipe, staging: Staging) {
    let (steps, files) = (trainer.steps(), staging.partial());
    // Other ranks have the rest of divided parameters, and have ended.
    if trainer.check_alone().is_err() {
        return;
    }
    // A run that is published needs no rescue, even if some of its files are still to be moved.
    if steps == 0 || trainer.is_torn() || !files.path().is_dir() {
        return;
    }
    let mut save = || -> Result<()> {
        lowtide_nn::save(&mut TrainedState::of(trainer.task_mut()), &files.model())?;
        NewFile::write(&files.recipe(), &recipe.to_toml())
    };
    if save().is_err() {
        // On a full disk the model needs the room of everything else but the checkpoints.
        for path in [files.metrics(), partial_of(&files.metrics()), files.report()] {
            drop(fs::remove_file(path));
        }
        if save().is_err() {
            return;
        }
    }
    if let Ok(kept) = staging.keep_unfinished() {
        let place = kept.path().display();
        let line = format!("lowtide: the model after step {steps} is kept in {place}");
        drop(writeln!(io::stderr(), "{line}"));
    }
}
