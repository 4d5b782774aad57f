//! A pretrained model for a recipe: a folder in Hugging Face's format, with or without adapters.

use std::path::Path;

use clap::ValueEnum;
use lowtide_nn::optim::AdamOptions;
use lowtide_nn::{LoraOptions, NnResult, Parameters, Targets, adapt, is_output_layer};
use lowtide_pretrained::{Config, Decoder, Positions, PretrainedError, weight_files};
use lowtide_tensor::{DType, Device, QuantFormat, RandomKey};
use lowtide_trainer::{LanguageModel, Preference, Result, Task};
use serde::{Deserialize, Serialize};

use super::data::{DataRecipe, JsonLinesRecipe, LineKind, RandomTokensRecipe};
use super::model::{ModelRecipe, PretrainedRecipe, TokenSizes};
use super::optimizer::{AdamRecipe, OptimizerRecipe};
use super::{Recipe, StoredType, TrainRecipe, setting};

/// Tokens of a row, unless the model's context is shorter.
const CONTEXT: usize = 1024;

/// The learning rate in the papers on LoRA and on instruction tuning.
const LORA_RATE: f64 = 2e-4;
const FULL_RATE: f64 = 2e-5;

impl PretrainedRecipe {
    /// The task of training the model.
    ///
    /// # Errors
    /// Errors of [`PretrainedRecipe::model`]; `Setting` if the model cannot use the samples.
    pub(super) fn task(
        &self,
        device: &Device,
        key: RandomKey,
        sizes: TokenSizes,
        stored: StoredType,
    ) -> Result<Box<dyn Task>> {
        let config = self.config_for(sizes)?;
        let task = LanguageModel::new(self.model(&config, device, key, stored)?);
        Ok(Box::new(if self.fresh { task } else { task.of_files() }))
    }

    /// The task of training the model on preferred answers. The reference of adapters is the model
    /// without them. Without adapters, the reference is a second, frozen copy.
    ///
    /// # Errors
    /// Errors of [`PretrainedRecipe::task`].
    pub(super) fn preference_task(
        &self,
        device: &Device,
        key: RandomKey,
        sizes: TokenSizes,
        stored: StoredType,
        beta: f64,
    ) -> Result<Box<dyn Task>> {
        let config = self.config_for(sizes)?;
        let model = || self.model(&config, device, key, stored);
        let task = match self.lora {
            Some(_) => Preference::of_adapters(model()?, beta)?,
            None => Preference::with_reference(model()?, model()?, beta)?,
        };
        Ok(Box::new(if self.fresh { task } else { task.of_files() }))
    }

    /// The configuration, if the model supports this vocabulary and rows of this length.
    fn config_for(&self, sizes: TokenSizes) -> Result<Config> {
        let TokenSizes { vocabulary, context } = sizes;
        let config = found(&self.folder)?;
        let shape = config.shape();
        if vocabulary > shape.vocabulary {
            let problem = format!(
                "has {vocabulary} tokens, and the model knows {}: data.tokenizer is not its own",
                shape.vocabulary
            );
            return Err(setting("data", &problem));
        }
        if context > shape.context && shape.positions == Positions::Learned {
            let problem = format!("is {context}, and the model has {} positions", shape.context);
            return Err(setting("data.context", &problem));
        }
        Ok(config)
    }

    /// The model with the weights of its folder, or fresh ones, and new adapters. On a simulated
    /// device the folder needs no weights; if it has some, the memory for reading them is simulated
    /// too.
    ///
    /// # Errors
    /// Errors of the folder; `OutOfMemory`.
    fn model(
        &self,
        config: &Config,
        device: &Device,
        key: RandomKey,
        stored: StoredType,
    ) -> Result<Decoder> {
        let dtype = match stored {
            StoredType::F32 => DType::F32,
            StoredType::Bf16 => DType::BF16,
        };
        let quantize = |part: &mut dyn Parameters| match self.base {
            Some(bits) => bits.quantize(part),
            None => Ok(()),
        };
        let of_files = config.quantization().filter(|_| !self.fresh);
        if (self.base.is_some() || of_files.is_some()) && self.lora.is_none() {
            let problem = "weights in few bits are not trained: model.lora says what is";
            return Err(setting("model.base", problem));
        }
        if of_files.is_some() && self.base.is_some() {
            let problem = "the files of the model have its weights in few bits already";
            return Err(setting("model.base", problem));
        }
        let has_files = || {
            let files = weight_files(config.folder());
            files.is_ok_and(|files| files.iter().all(|file| file.is_file()))
        };
        let is_made = self.fresh || (device.is_simulated() && of_files.is_none() && !has_files());
        let mut model = if is_made {
            config.decoder_with(device, key, dtype, quantize)?
        } else {
            // Opening the folder again gives the error if only the configuration is known.
            match Config::open(&self.folder)?.load_with(device, dtype, quantize) {
                // A plan needs no weights: files of a half-finished download are left alone.
                Err(PretrainedError::Format { .. } | PretrainedError::Weights { .. })
                    if device.is_simulated() && of_files.is_none() =>
                {
                    config.decoder_with(device, key, dtype, quantize)?
                }
                loaded => loaded?,
            }
        };
        if let Some(lora) = &self.lora {
            adapt(&mut model, key.op("lora"), lora)?;
        }
        Ok(model)
    }
}

/// A format for frozen weights with fewer bits than floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum FewBits {
    /// 8 bits, with a scale for each row.
    #[serde(rename = "int8")]
    Int8,
    /// QLoRA's 4 bits with scales in 8 bits: 4.127 bits an element.
    #[serde(rename = "nf4")]
    Nf4,
    /// GGUF's 8 bits: 8.5 an element.
    #[serde(rename = "q8_0")]
    #[value(name = "q8_0")]
    Q80,
    /// GGUF's 4 bits: 4.5 an element.
    #[serde(rename = "q4_0")]
    #[value(name = "q4_0")]
    Q40,
}

impl FewBits {
    /// Quantises the weights of linear layers to these bits, except for output layers.
    pub(crate) fn quantize(self, part: &mut dyn Parameters) -> NnResult<()> {
        let mut outcome = Ok(());
        part.visit_linears(&mut |name, layer| {
            if outcome.is_ok() && !is_output_layer(name) {
                outcome = layer.quantize(self.format());
            }
        });
        outcome
    }

    pub(crate) fn format(self) -> QuantFormat {
        match self {
            FewBits::Int8 => QuantFormat::Int8Rows,
            FewBits::Nf4 => QuantFormat::Nf4 { double: true },
            FewBits::Q80 => QuantFormat::Q8_0,
            FewBits::Q40 => QuantFormat::Q4_0,
        }
    }
}

/// The type of a model's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// Floats, which may be trained.
    Floats(StoredType),
    /// Few bits; all other parameters are bf16.
    FewBits(FewBits),
}

/// Options for a recipe that is made for a model's folder.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tuning {
    /// Rank of adapters; every parameter is trained if absent.
    pub lora: Option<usize>,
    /// Tokens of a row; if absent 1024, or the context of the model if that is smaller.
    pub context: Option<usize>,
    /// The type of weights; if absent, the type in the configuration, or f32.
    pub base: Option<Base>,
    /// The layers that get adapters, if [`Tuning::lora`] has a rank.
    pub targets: Targets,
    /// True if the plan is for learning preferred answers.
    pub preference: bool,
}

impl Recipe {
    /// The model before its first step, if it is pretrained.
    ///
    /// # Errors
    /// Errors of the model's folder; `OutOfMemory`.
    pub fn pretrained(&self, device: &Device) -> Result<Option<Decoder>> {
        let ModelRecipe::Pretrained(model) = &self.model else { return Ok(None) };
        let config = found(&model.folder)?;
        let key = RandomKey::new(self.train.seed);
        model.model(&config, device, key, self.train.parameters).map(Some)
    }

    /// A recipe that trains the model in `folder` on random tokens, for plans: in the type of its
    /// configuration, with AdamW, in batches of eight rows.
    ///
    /// # Errors
    /// Errors of the model's configuration.
    pub fn of_model(folder: &Path, tuning: &Tuning) -> Result<Recipe> {
        let config = found(folder)?;
        let (vocabulary, context) = (config.shape().vocabulary, context_of(&config, tuning));
        let batch_size = 8;
        // Two batches: the second one shows the state that the first leaves.
        let data = RandomTokensRecipe {
            vocabulary,
            context,
            samples: 2 * batch_size,
            preference: tuning.preference,
            workers: 0,
        };
        let lora = tuning.lora.map(|rank| LoraOptions {
            rank,
            alpha: 2.0 * rank as f64,
            targets: tuning.targets.clone(),
            ..LoraOptions::default()
        });
        let learning_rate = if lora.is_some() { LORA_RATE } else { FULL_RATE };
        let weight_decay = Some(0.0);
        let AdamOptions { betas, eps, .. } = AdamOptions::default();
        let (parameters, base) = match tuning.base {
            Some(Base::Floats(stored)) => (stored, None),
            Some(Base::FewBits(bits)) => (StoredType::Bf16, Some(bits)),
            None => match config.dtype() {
                Some(DType::BF16 | DType::F16) => (StoredType::Bf16, None),
                _ => (StoredType::F32, None),
            },
        };
        let folder = folder.to_owned();
        Ok(Recipe {
            data: DataRecipe::RandomTokens(data),
            model: ModelRecipe::Pretrained(PretrainedRecipe { folder, fresh: false, base, lora }),
            optimizer: OptimizerRecipe::Adamw(AdamRecipe {
                learning_rate,
                betas,
                eps,
                weight_decay,
            }),
            train: TrainRecipe { epochs: 1, batch_size, parameters, ..TrainRecipe::default() },
            ..Recipe::default()
        })
    }

    /// Extends random tokens to at least two batches, after the batch size has changed.
    pub(crate) fn with_two_batches(mut self) -> Recipe {
        if let DataRecipe::RandomTokens(data) = &mut self.data {
            data.samples = data.samples.max(2 * self.train.batch_size);
        }
        self
    }

    /// The longest rows for the model in `folder`: the context of the model, or the limit of
    /// recipes.
    ///
    /// # Errors
    /// Errors of the model's configuration.
    pub fn context_max(folder: &Path) -> Result<usize> {
        Ok(found(folder)?.shape().context.min(super::data::CONTEXT_MAX))
    }

    /// [`Recipe::of_model`] on a file of JSON lines, with the model's own tokenizer.
    ///
    /// # Errors
    /// Errors of [`Recipe::of_model`]; `Setting` for a model without a `tokenizer.json`.
    pub fn of_model_and_lines(
        folder: &Path,
        file: &Path,
        format: LineKind,
        tuning: &Tuning,
    ) -> Result<Recipe> {
        let config = Config::open(folder)?;
        let tokenizer = config.folder().join("tokenizer.json");
        if !tokenizer.is_file() {
            let problem = "is not there: it says what the model's tokens are";
            return Err(setting(&tokenizer.display().to_string(), problem));
        }
        let data = JsonLinesRecipe {
            file: file.to_owned(),
            format,
            tokenizer: tokenizer.display().to_string(),
            context: context_of(&config, tuning),
            ..JsonLinesRecipe::default()
        };
        let data = DataRecipe::JsonLines(data);
        Ok(Recipe { data, ..Recipe::of_model(folder, tuning)? })
    }
}

/// The configuration in a folder, or of a published model whose files are not here.
pub(super) fn found(folder: &Path) -> Result<Config> {
    match Config::open(folder) {
        Err(error @ PretrainedError::NotFound { .. }) => {
            let published = folder.to_str().map(Config::published).transpose()?.flatten();
            Ok(published.ok_or(error)?)
        }
        opened => Ok(opened?),
    }
}

fn context_of(config: &Config, tuning: &Tuning) -> usize {
    tuning.context.unwrap_or_else(|| config.shape().context.min(CONTEXT))
}
