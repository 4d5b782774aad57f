//! Recipes: model, data and training options in a TOML file. Everything has a default.

mod augment;
mod check;
mod data;
mod distill;
mod help;
mod kind;
mod mistakes;
mod model;
mod optimizer;
mod options;
mod overrides;
mod paths;
mod preference;
mod pretrained;
mod prune;
mod run_model;
mod schedule;
mod shipped;
mod stored;

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use lowtide_allocator::files::read_input_text;
use lowtide_data::{Loader, LoaderOptions, OnBadSample};
use lowtide_nn::Schedule;
use lowtide_nn::optim::Stateful;
use lowtide_ranks::{Collectives, Rank};
use lowtide_tensor::{CpuOptions, Device, RandomKey};
use lowtide_trainer::observers::CheckpointEvery;
use lowtide_trainer::{
    Fit, MicroBatches, NonFinite, Options, Parallelism, Precision, Result, Task, TrainError,
    Trainer,
};
use serde::{Deserialize, Serialize};
use toml::Table;

pub use augment::AugmentRecipe;
pub use data::{
    CifarRecipe, CsvRecipe, DataRecipe, DigitsRecipe, ImageFolderRecipe, JsonLinesRecipe, LineKind,
    MnistRecipe, NpyRecipe, ParquetImagesRecipe, ParquetRecipe, RandomImagesRecipe,
    RandomTokensRecipe, Samples, SegmentationFolderRecipe, TarShardsRecipe, TextRecipe,
    TokenFileRecipe,
};
pub use distill::DistillRecipe;
pub use help::help;
use model::TokenSizes;
pub use model::{
    DeepCnnRecipe, GptRecipe, LstmRecipe, MlpRecipe, ModelRecipe, PretrainedRecipe, ResNetRecipe,
    Seq2SeqRecipe, SimpleCnnRecipe, UNetRecipe, ViTRecipe,
};
use optimizer::RuleOptions;
pub use optimizer::{AdamRecipe, MuonRecipe, OPTIMIZERS, OptimizerRecipe};
pub use preference::PreferenceRecipe;
pub use pretrained::{Base, FewBits, Tuning};
pub use prune::PruneRecipe;
pub use schedule::{ScheduleRecipe, WarmUpRecipe};
pub use shipped::{SHIPPED, Shipped};
pub use stored::{StateType, StoredType};

use mistakes::{line_of_error, line_of_name, place, readable};
use options::options;
use prune::Start;

use crate::run_dir::RunDir;

/// A bound on epochs that keeps the step count of a run within 64 bits.
pub(crate) const EPOCHS_MAX: u64 = 1 << 32;
/// A number larger than any data set that fits on a machine.
pub(crate) const BATCH_SIZE_MAX: u64 = 1 << 32;
/// The largest integer of TOML, and so of a recipe's seed.
pub(crate) const INTEGER_MAX: u64 = i64::MAX as u64;
/// A number larger than the processors of any machine.
const WORKERS_MAX: usize = 1024;

/// The description of a training.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Recipe {
    /// The data; digits if its kind is absent.
    #[serde(deserialize_with = "data::or_digits")]
    pub data: DataRecipe,
    /// The augmentation of training images.
    pub augment: AugmentRecipe,
    /// The model; a simple CNN if its kind is absent.
    #[serde(deserialize_with = "model::or_simple_cnn")]
    pub model: ModelRecipe,
    /// The optimizer, which updates the parameters.
    pub optimizer: OptimizerRecipe,
    /// The change of the learning rate from step to step.
    pub schedule: ScheduleRecipe,
    /// The rise of the learning rate before the schedule begins.
    pub warm_up: WarmUpRecipe,
    /// The length of the training, its batches and its number types.
    pub train: TrainRecipe,
    /// A teacher whose outputs the model learns, besides its data; none if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distill: Option<DistillRecipe>,
    /// The options of a pretrained model that learns preferred answers. If absent,
    /// [`PreferenceRecipe::default`] is used for data with such answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preference: Option<PreferenceRecipe>,
    /// The part to remove from the model of another run, with which this model begins; nothing if
    /// absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prune: Option<PruneRecipe>,
}

options! {
    /// The length of the training, its batches and its number types.
    TrainRecipe {
        /// Number of passes over the training data.
        epochs: u64 = 60,
        /// Samples of a logical batch.
        batch_size: usize = 256,
        /// Seed of initial values and of the order of the data.
        seed: u64 = 0,
        /// Largest length of all gradients together; longer ones are scaled down. No limit if
        /// absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        clip_norm: Option<f64> = None,
        /// The type of operations: "f32", "bf16", or "f16" with a scaled loss.
        precision: Precision = Precision::F32,
        /// The type of parameters: "f32", or "bf16" with stochastic rounding.
        parameters: StoredType = StoredType::F32,
        /// The type of the optimizer's states: "f32", or "8bit" with a quarter of the memory.
        states: StateType = StateType::F32,
        /// True if batches may be split when memory is short.
        split_batches: bool = true,
        /// Samples of a shard. Gradients of shards are summed along a tree: the same bits on 1, 2,
        /// 4 or 8 ranks. Each rank's batch is a multiple of it; a shorter last batch is left out.
        #[serde(skip_serializing_if = "Option::is_none")]
        leaf: Option<NonZeroUsize> = None,
        /// Interval of checkpoints: "500steps", "1epoch", "10min"; none are written if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        checkpoint_every: Option<CheckpointEvery> = None,
        /// The effect of an unreadable sample: "fail", or { skip = 10 } to train on.
        bad_samples: BadSamples = BadSamples::Fail,
        /// The treatment of a step that is not finite: "stop", { skip = 10 } in a row, "ignore".
        non_finite: NonFinite = NonFinite::Stop,
    }
}

/// The effect of an unreadable sample on its epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BadSamples {
    /// The run ends with the sample's error. The state after the last step is kept.
    Fail,
    /// Unreadable training samples are left out, up to this number per epoch; metrics name them. An
    /// unreadable test sample is still an error.
    Skip(usize),
}

fn read(path: &Path) -> Result<String> {
    /// A size larger than any recipe.
    const RECIPE_BYTES_MAX: u64 = 1 << 20;
    read_input_text(path, RECIPE_BYTES_MAX)
        .map_err(|source| TrainError::File { path: path.to_owned(), source })
}

/// The opened data of a recipe.
#[derive(Debug)]
pub struct RecipeData {
    /// The form of a sample, for the model.
    pub samples: Samples,
    /// The data to train on, shuffled by the seed.
    pub train: Loader,
    /// The data to test on, in order.
    pub test: Loader,
}

/// The trainer of a recipe.
pub type RecipeTrainer = Trainer<Box<dyn Task>, Box<dyn Stateful>>;

impl Recipe {
    /// Reads a recipe and checks its numbers.
    ///
    /// # Errors
    /// `File` if it cannot be read; `Setting` with the line for anything that is not a recipe.
    pub fn load(path: &Path) -> Result<Self> {
        Recipe::parse(&read(path)?, path)
    }

    /// Parses the recipe in a text. Errors name it `path`.
    ///
    /// # Errors
    /// Errors of [`Recipe::load`] except `File`.
    pub fn parse(text: &str, path: &Path) -> Result<Self> {
        Ok(Recipe::parse_table(text, path)?.0)
    }

    /// Parses the recipe in a text, and returns it with the table of the keys that the text sets.
    ///
    /// # Errors
    /// Errors of [`Recipe::parse`].
    fn parse_table(text: &str, path: &Path) -> Result<(Self, Table)> {
        let place = |line| place(path, text, line);
        let wrong = |error: toml::de::Error| {
            let line = error.span().map(|span| line_of_error(text, span.start, error.message()));
            TrainError::Setting { place: place(line), problem: readable(error.message()) }
        };
        // The table comes first: it refuses integers that a field of 64 bits alone would take.
        let table: Table = toml::from_str(text).map_err(wrong)?;
        let recipe: Recipe = toml::from_str(text).map_err(wrong)?;
        recipe.check().map_err(|error| match error {
            TrainError::Setting { place: name, problem } => match line_of_name(text, &name) {
                Some(line) => TrainError::Setting { place: place(Some(line)), problem },
                None => {
                    TrainError::Setting { place: format!("{}, {name}", path.display()), problem }
                }
            },
            other => other,
        })?;
        Ok((recipe, table))
    }

    /// The recipe of a run, for loading the trained model. The teacher, and the larger model that
    /// this one was pruned from, are left out.
    ///
    /// # Errors
    /// Errors of [`Recipe::load`].
    pub fn of_run(run_dir: &RunDir) -> Result<Self> {
        let mut recipe = Recipe { distill: None, ..Recipe::load(&run_dir.recipe())? };
        if let Some(prune) = &mut recipe.prune {
            prune.run = None;
        }
        Ok(recipe)
    }

    /// The recipe as TOML, complete with defaults.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a recipe has only plain values")
    }

    /// True if a step of this recipe takes the memory of a step of `other`: they differ at most in
    /// the length of the training and in its data.
    pub(crate) fn has_steps_of(&self, other: &Recipe) -> bool {
        let alike = |recipe: &Recipe| {
            let mut alike = Recipe { data: DataRecipe::default(), ..recipe.clone() };
            (alike.train.epochs, alike.train.checkpoint_every) = (0, None);
            alike
        };
        alike(self) == alike(other)
    }

    /// Opens the data once for loaders and model, because files may be large and texts have to be
    /// encoded.
    ///
    /// # Errors
    /// Errors of the data set; `Setting` for data that the model cannot use.
    pub fn open(&self) -> Result<RecipeData> {
        self.open_share(Rank::ALONE)
    }

    /// [`Recipe::open`] with this rank's share of each training batch.
    ///
    /// # Errors
    /// Errors of [`Recipe::open`]; `Setting` for batches that cannot be shared evenly.
    pub fn open_share(&self, rank: Rank) -> Result<RecipeData> {
        let (batch_size, count) = (self.train.batch_size, rank.count);
        if !batch_size.is_multiple_of(count) {
            let problem = format!("{batch_size} samples have no equal shares for {count} ranks");
            return Err(setting("train.batch_size", &problem));
        }
        let options = LoaderOptions {
            batch_size: batch_size / count,
            drop_last: self.train.leaf.is_some(),
            seed: self.train.seed,
            workers: self.data.workers(),
            on_bad_sample: match self.train.bad_samples {
                BadSamples::Fail => OnBadSample::Fail,
                BadSamples::Skip(count) => OnBadSample::Skip(count),
            },
            ..Default::default()
        };
        let opened = self.data.open(self.model.wants(), &self.augment)?;
        let samples = opened.samples;
        let (train, test) = opened.loaders(options, rank)?;
        Ok(RecipeData { samples, train, test })
    }

    /// A short name, for folders of runs.
    pub fn name(&self) -> &'static str {
        self.data.name()
    }

    /// The model and its data, in words.
    pub fn title(&self) -> String {
        format!("{} on {}", self.model.name(), self.data.name())
    }

    /// The data and the epochs of a run.
    pub fn fit<'a>(&self, train: &'a Loader, test: &'a Loader) -> Fit<'a> {
        Fit::new(train).evaluate("test", test).epochs(self.train.epochs)
    }

    /// The task: the model with its initial values, and its loss on these samples, with a teacher
    /// if there is one.
    ///
    /// # Errors
    /// `Setting` for a model that cannot use the samples; errors of the teacher's files;
    /// `OutOfMemory`.
    pub fn task(&self, device: &Device, samples: Samples) -> Result<Box<dyn Task>> {
        let key = RandomKey::new(self.train.seed);
        let start = Start {
            stored: self.train.parameters,
            prune: self.prune.as_ref(),
            is_simulated: device.is_simulated(),
        };
        let task = match (&self.model, samples) {
            (ModelRecipe::Pretrained(model), Samples::Preferences { vocabulary, context }) => {
                start.check_whole()?;
                let preference = self.preference.clone().unwrap_or_default();
                let sizes = TokenSizes { vocabulary, context };
                model.preference_task(device, key, sizes, start.stored, preference.beta)?
            }
            _ => self.model.task(device, key, samples, start)?,
        };
        match &self.distill {
            Some(distill) => distill.task(task, device, samples),
            None => Ok(task),
        }
    }

    /// The optimizer with its schedule, without state yet.
    ///
    /// # Errors
    /// `Option` for a number out of its range.
    pub fn optimizer(&self) -> Result<Box<dyn Stateful>> {
        let rounding = match self.train.parameters {
            StoredType::F32 => None,
            StoredType::Bf16 => Some(RandomKey::new(self.train.seed).op("rounding")),
        };
        let (schedule, states) = (self.schedule(), self.train.states);
        Ok(self.optimizer.build(RuleOptions { schedule, rounding, states })?)
    }

    /// The learning rate by step, with the warm-up.
    pub fn schedule(&self) -> Schedule {
        self.schedule.after(self.warm_up)
    }

    /// A trainer for these samples, before its first step.
    ///
    /// # Errors
    /// `OutOfMemory` if not even the model fits; an error for a number out of its range.
    pub fn trainer(&self, device: &Device, samples: Samples) -> Result<RecipeTrainer> {
        self.trainer_of(self.task(device, samples)?, device)
    }

    /// The trainer of a rank with the parallelism `zero`. A model that ranks divide or cut is first
    /// built on a host with room for all of it.
    ///
    /// # Errors
    /// Errors of [`Recipe::trainer`].
    pub(crate) fn trainer_among(
        &self,
        ranks: Option<Arc<dyn Collectives>>,
        zero: Parallelism,
        device: &Device,
        samples: Samples,
    ) -> Result<RecipeTrainer> {
        let place =
            if is_made_beside(ranks.as_deref(), zero) { host_of(device)? } else { device.clone() };
        let mut trainer = self.trainer_of(self.task(&place, samples)?, device)?;
        trainer.set_ranks(ranks);
        trainer.set_parallelism(zero);
        trainer.divide()?;
        Ok(trainer)
    }

    fn trainer_of(&self, task: Box<dyn Task>, device: &Device) -> Result<RecipeTrainer> {
        let optimizer = self.optimizer()?;
        let options = Options {
            seed: self.train.seed,
            clip_norm: self.train.clip_norm,
            micro_batches: match (self.train.leaf, self.train.split_batches) {
                (Some(leaf), _) => MicroBatches::Shards(leaf),
                (None, true) => MicroBatches::AsNeeded,
                (None, false) => MicroBatches::Never,
            },
            precision: self.train.precision,
            non_finite: self.train.non_finite,
            background_checkpoints: self.train.checkpoint_every.is_some(),
            ..Default::default()
        };
        Ok(Trainer::new(device, task, optimizer, options))
    }
}

/// True if each rank keeps a part of the model, which is then first built beside the training
/// device.
fn is_made_beside(ranks: Option<&dyn Collectives>, zero: Parallelism) -> bool {
    zero.divides_model() && ranks.is_some_and(|ranks| ranks.rank().count > 1)
}

/// A device with room for a whole model, besides the memory of the training on `device`.
///
/// # Errors
/// Errors of opening the device.
fn host_of(device: &Device) -> Result<Device> {
    if !device.is_simulated() {
        return Ok(Device::cpu(CpuOptions::default())?);
    }
    let host = device.simulate();
    host.allocator().set_capacity(usize::MAX);
    Ok(host)
}

fn setting(place: &str, problem: &str) -> TrainError {
    TrainError::Setting { place: place.to_owned(), problem: problem.to_owned() }
}
