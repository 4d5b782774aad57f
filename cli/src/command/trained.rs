//! A pretrained model, with the weights that a run has trained.

use std::path::Path;

use lowtide_nn::{LoraOptions, NnResult, Parameters};
use lowtide_pretrained::{Config, Decoder};
use lowtide_tensor::{DType, Device};
use lowtide_trainer::{Result, TrainError, TrainedState};

use crate::command::process::ENCODED_BYTES_PER_ELEMENT;
use crate::recipe::{ModelRecipe, Recipe};
use crate::run_dir::RunDir;

/// A model with its configuration and adapters.
pub(super) struct Trained {
    pub(super) config: Config,
    pub(super) model: Decoder,
    /// The options of the model's adapters, if it has any.
    pub(super) lora: Option<LoraOptions>,
    /// The model that the run began with, as named in its recipe.
    pub(super) base: String,
}

impl Trained {
    /// The model of a run, or the model in a folder.
    ///
    /// # Errors
    /// Errors of the files; `Setting` for a run of another model; `OutOfMemory`.
    pub(super) fn open(path: &Path, device: &Device) -> Result<Trained> {
        if Trained::is_run(path) {
            Trained::of_run(path, device)
        } else {
            Trained::of_model(path, device, |_| Ok(()))
        }
    }

    /// The model with all weights in floats, see [`Trained::of_run_in_floats`].
    ///
    /// # Errors
    /// Errors of [`Trained::open`].
    pub(super) fn open_in_floats(path: &Path, device: &Device) -> Result<Trained> {
        if Trained::is_run(path) {
            Trained::of_run_in_floats(path, device)
        } else {
            Trained::of_model(path, device, |_| Ok(()))?.in_floats()
        }
    }

    /// The model in a folder. `change` is called with each part after it was read.
    ///
    /// # Errors
    /// Errors of the files and of `change`; `OutOfMemory`.
    pub(super) fn of_model(
        path: &Path,
        device: &Device,
        change: impl FnMut(&mut dyn Parameters) -> NnResult<()>,
    ) -> Result<Trained> {
        let config = Config::open(path)?;
        let model = config.load_with(device, config.dtype().unwrap_or(DType::F32), change)?;
        Ok(Trained { config, model, lora: None, base: path.display().to_string() })
    }

    /// The configuration of the model of a run, or of the model in a folder.
    ///
    /// # Errors
    /// Errors of the files; `Setting` for a run of another model.
    pub(super) fn config_of(path: &Path) -> Result<Config> {
        if !Trained::is_run(path) {
            return Ok(Config::open(path)?);
        }
        let run_dir = RunDir::open(path)?;
        match Recipe::load(&run_dir.recipe())?.model {
            ModelRecipe::Pretrained(model) => Ok(Config::open(&model.folder)?),
            _ => Err(not_pretrained(&run_dir)),
        }
    }

    /// Bytes of the process for quantising a weight while the model is read.
    pub(super) fn encoding_bytes(&mut self) -> usize {
        let mut largest_len = 0;
        self.model.visit_linears(&mut |_, layer| {
            if layer.quantized().is_some() {
                largest_len = largest_len.max(layer.weight().value().element_count());
            }
        });
        largest_len * ENCODED_BYTES_PER_ELEMENT
    }

    /// True if a folder is the folder of a run, not of a model.
    pub(super) fn is_run(path: &Path) -> bool {
        path.join("recipe.toml").is_file()
    }

    /// The model of a run, with the trained weights.
    ///
    /// # Errors
    /// Errors of the files; `Setting` for a run of another model; `OutOfMemory`.
    pub(super) fn of_run(path: &Path, device: &Device) -> Result<Trained> {
        let run_dir = RunDir::open(path)?;
        Trained::of_recipe(&Recipe::load(&run_dir.recipe())?, &run_dir, device)
    }

    /// The model of a run with all weights in floats. If a run trained beside quantised weights,
    /// the floats in the files of its base are used. Files that are quantised themselves are
    /// decoded.
    ///
    /// # Errors
    /// Errors of [`Trained::of_run`].
    pub(super) fn of_run_in_floats(path: &Path, device: &Device) -> Result<Trained> {
        let run_dir = RunDir::open(path)?;
        let mut recipe = Recipe::load(&run_dir.recipe())?;
        if let ModelRecipe::Pretrained(model) = &mut recipe.model {
            model.base = None;
        }
        Trained::of_recipe(&recipe, &run_dir, device)?.in_floats()
    }

    /// Decodes the quantised weights of this model to floats.
    fn in_floats(mut self) -> Result<Trained> {
        let mut outcome = Ok(());
        self.model.visit_linears(&mut |_, layer| {
            let dtype = layer.weight().value().dtype();
            if outcome.is_ok() {
                outcome = layer.dequantize(dtype);
            }
        });
        outcome?;
        let config = self.config.with_quantization(None).expect("floats are in any file");
        Ok(Trained { config, ..self })
    }

    fn of_recipe(recipe: &Recipe, run_dir: &RunDir, device: &Device) -> Result<Trained> {
        let wrong = || not_pretrained(run_dir);
        let ModelRecipe::Pretrained(of_recipe) = &recipe.model else { return Err(wrong()) };
        let mut model = recipe.pretrained(device)?.ok_or_else(wrong)?;
        // A simulated device has no values.
        match (device.is_simulated(), of_recipe.fresh) {
            (true, _) => {}
            (false, true) => recipe.read_model(run_dir, &mut model)?,
            (false, false) => {
                recipe.read_model(run_dir, &mut TrainedState::without_frozen(&mut model))?;
            }
        }
        let (lora, base) = (of_recipe.lora.clone(), of_recipe.folder.display().to_string());
        Ok(Trained { config: Config::open(&of_recipe.folder)?, model, lora, base })
    }
}

fn not_pretrained(run_dir: &RunDir) -> TrainError {
    TrainError::Setting {
        place: run_dir.recipe().display().to_string(),
        problem: "its model is not a pretrained one".to_owned(),
    }
}
