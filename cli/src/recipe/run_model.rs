//! The trained parameters of a run of a recipe, and the base that they were trained beside.

use std::io::{self, Write};
use std::path::Path;

use lowtide_nn::Parameters;
use lowtide_pretrained::weight_files;
use lowtide_trainer::{Fingerprint, Result};

use super::Recipe;
use super::model::ModelRecipe;
use super::pretrained::found;
use crate::run_dir::RunDir;

impl Recipe {
    /// Reads the trained parameters of a run of this recipe. Prints a note if their base has
    /// changed since.
    ///
    /// # Errors
    /// Errors of [`RunDir::checked_model`] and of the base's files; `Weights` if the file is of
    /// another model.
    pub(crate) fn read_model(&self, run_dir: &RunDir, model: &mut dyn Parameters) -> Result<()> {
        let path = run_dir.checked_model()?;
        if let (Some(folder), Some(was)) = (self.base_folder(), run_dir.model_files()?.base_files)
            && self.base_files()?.is_some_and(|now| now != was)
        {
            let (folder, run) = (folder.display(), run_dir.path().display());
            let line = format!(
                "lowtide: note: the weights in {folder} are not those that {run} was trained \
                 beside: with them it gives other results"
            );
            drop(writeln!(io::stderr(), "{line}"));
        }
        Ok(lowtide_nn::load(model, &path)?)
    }

    /// The fingerprint of the frozen weights beside which the model is trained, if it has any that
    /// are in files of its base and not in those of its runs.
    ///
    /// # Errors
    /// Errors of the base's files.
    pub(crate) fn base_files(&self) -> Result<Option<Fingerprint>> {
        let Some(folder) = self.base_folder() else { return Ok(None) };
        let files = weight_files(found(folder)?.folder())?;
        Fingerprint::of_samples(&files).map(Some)
    }

    /// The folder of the pretrained model that adapters are for, or that preferences are compared
    /// with.
    fn base_folder(&self) -> Option<&Path> {
        let ModelRecipe::Pretrained(model) = &self.model else { return None };
        let has_frozen = model.lora.is_some() || self.data.is_preferences();
        (has_frozen && !model.fresh).then_some(model.folder.as_path())
    }
}
