//! A pretrained model with what a run of it has learned.

use std::path::Path;

use lowtide_nn::LoraOptions;
use lowtide_pretrained::{Config, Decoder};
use lowtide_tensor::{DType, Device};

use crate::error::{Result, TrainError};
use crate::learned::Learned;
use crate::recipe::{ModelRecipe, Recipe};
use crate::run_dir::RunDir;

/// A model with its configuration.
pub(super) struct Trained {
    pub(super) config: Config,
    pub(super) model: Decoder,
    /// How it was adapted, if it was.
    pub(super) lora: Option<LoraOptions>,
    /// What the run began with, as its recipe calls it.
    pub(super) base: String,
}

impl Trained {
    /// The model of a run, or of a folder of a model.
    ///
    /// # Errors
    /// Those of the files; `Setting` for a run of another model; `OutOfMemory`.
    pub(super) fn open(path: &Path, device: &Device) -> Result<Trained> {
        if path.join("recipe.toml").is_file() {
            return Trained::of_run(path, device);
        }
        let config = Config::open(path)?;
        let model = config.load(device, config.dtype().unwrap_or(DType::F32))?;
        Ok(Trained { config, model, lora: None, base: path.display().to_string() })
    }

    /// The model of a run as it was trained.
    ///
    /// # Errors
    /// Those of the files; `Setting` for a run of another model; `OutOfMemory`.
    pub(super) fn of_run(path: &Path, device: &Device) -> Result<Trained> {
        let run_dir = RunDir::open(path)?;
        Trained::of_recipe(&Recipe::load(&run_dir.recipe())?, &run_dir, device)
    }

    /// The same with the floats of its files where it was trained beside weights in few bits.
    ///
    /// # Errors
    /// Those of [`Trained::of_run`].
    pub(super) fn of_run_in_floats(path: &Path, device: &Device) -> Result<Trained> {
        let run_dir = RunDir::open(path)?;
        let mut recipe = Recipe::load(&run_dir.recipe())?;
        if let ModelRecipe::Pretrained(model) = &mut recipe.model {
            model.base = None;
        }
        Trained::of_recipe(&recipe, &run_dir, device)
    }

    fn of_recipe(recipe: &Recipe, run_dir: &RunDir, device: &Device) -> Result<Trained> {
        let wrong = || TrainError::Setting {
            place: run_dir.recipe().display().to_string(),
            problem: "its model is not a pretrained one".to_owned(),
        };
        let ModelRecipe::Pretrained(of_recipe) = &recipe.model else { return Err(wrong()) };
        let mut model = recipe.pretrained(device)?.ok_or_else(wrong)?;
        lowtide_nn::load(&mut Learned::without_frozen(&mut model), &run_dir.model())?;
        let (lora, base) = (of_recipe.lora.clone(), of_recipe.folder.display().to_string());
        Ok(Trained { config: Config::open(&of_recipe.folder)?, model, lora, base })
    }
}
