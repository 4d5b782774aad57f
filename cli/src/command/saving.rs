//! Files at the end of a run, on a disk that may be full. Metrics and report are given up first,
//! the model last.

use std::fs::{self, File};
use std::io::{self, Write};

use lowtide_trainer::{NewFile, Reserve, Result, TrainError, TrainedState, partial_of};

use crate::command::staging::Staging;
use crate::recipe::{Recipe, RecipeTrainer};
use crate::run_dir::RunDir;

/// Bytes larger than a summary, and than the growth of folders by a name.
const SUMMARY_BYTES: usize = 16 << 10;

/// The files that every run writes at its end, and the room set aside for them.
pub(super) struct LastFiles<'a> {
    files: &'a RunDir,
    reserve: Option<Reserve>,
}

impl<'a> LastFiles<'a> {
    /// Sets room aside for the files.
    ///
    /// # Errors
    /// `File` if there is no room.
    pub(super) fn new(files: &'a RunDir, trainer: &mut RecipeTrainer) -> Result<Self> {
        let model_bytes = TrainedState::of(trainer.task_mut()).bytes().iter().sum();
        let path = files.path().join(".reserve");
        let reserve = Reserve::take(&path, &[model_bytes, SUMMARY_BYTES], "the trained model")?;
        Ok(LastFiles { files, reserve: Some(reserve) })
    }

    /// Saves the model. If there is no room, deletes the metrics first.
    ///
    /// # Errors
    /// `File` if there is still no room; errors of the device.
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

    /// Writes a page with the reason why there is no report, if the report is missing.
    ///
    /// # Errors
    /// `File` if there is no room even for this page.
    pub(super) fn have_report(&mut self) -> Result<()> {
        let path = self.files.report();
        if path.exists() {
            return Ok(());
        }
        self.write(|| NewFile::write(&path, "<!doctype html>There was no room for the report.\n"))
    }

    /// Calls `write`, which writes a small file.
    ///
    /// # Errors
    /// Errors of `write`.
    pub(super) fn write(&mut self, write: impl FnMut() -> Result<()>) -> Result<()> {
        Reserve::spend(&mut self.reserve, write)
    }
}

/// Ignores an error for lack of room, and prints a note.
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

/// Saves the model after the committed steps of a failed run, if it is whole. Errors are dropped,
/// because the run's own error is the one to report.
pub(super) fn rescue(trainer: &mut RecipeTrainer, recipe: &Recipe, staging: Staging) {
    let (steps, files) = (trainer.steps(), staging.partial());
    // Other ranks have the rest of the divided parameters, and have ended.
    if trainer.check_alone().is_err() {
        return;
    }
    // A published run needs no rescue, even if some of its files are not moved yet.
    if steps == 0 || trainer.is_torn() || !files.path().is_dir() {
        return;
    }
    let mut save = || -> Result<()> {
        lowtide_nn::save(&mut TrainedState::of(trainer.task_mut()), &files.model())?;
        // The recipe is written at the beginning, with the name of the training.
        if files.recipe().exists() {
            Ok(())
        } else {
            NewFile::write(&files.recipe(), &recipe.to_toml())
        }
    };
    if save().is_err() {
        // On a full disk the model needs the room of all other files except checkpoints.
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
