//! Recipes: model, data and training options in a TOML file. Everything has a default.

mod augment;
mod data;
mod distill;
mod help;
mod kind;
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

use lowtide_data::{Loader, LoaderOptions, OnBadSample, read_input_text};
use lowtide_nn::optim::Stateful;
use lowtide_nn::{NnError, Schedule};
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

    /// `Ok` if every number is in its range.
    ///
    /// # Errors
    /// `Setting` that names the first number out of its range.
    pub fn check(&self) -> Result<()> {
        let wrong = |name: &str, problem: String| Err(setting(name, &problem));
        let counts = [
            ("train.epochs", self.train.epochs, 1..=EPOCHS_MAX),
            ("train.batch_size", self.train.batch_size as u64, 1..=BATCH_SIZE_MAX),
            ("train.seed", self.train.seed, 0..=INTEGER_MAX),
        ];
        let of_tables = [self.model.counts(), self.data.counts()].concat();
        let of_tables = of_tables
            .into_iter()
            .map(|(name, count, [min, max])| (name, count as u64, min as u64..=max as u64));
        for (name, count, range) in counts.into_iter().chain(of_tables) {
            if !range.contains(&count) {
                let (min, max) = range.into_inner();
                return wrong(name, format!("must be {min} to {max}"));
            }
        }
        if let Some(leaf) = self.train.leaf {
            let batch_size = self.train.batch_size;
            if !batch_size.is_multiple_of(leaf.get()) {
                let problem = format!("batches of {batch_size} are not made of leaves of {leaf}");
                return wrong("train.leaf", problem);
            }
            if !self.train.split_batches {
                let problem = "splits batches, which train.split_batches forbids".to_owned();
                return wrong("train.leaf", problem);
            }
        }
        self.augment.check()?;
        self.distill.iter().try_for_each(DistillRecipe::check)?;
        self.prune.iter().try_for_each(PruneRecipe::check)?;
        self.preference.iter().try_for_each(PreferenceRecipe::check)?;
        if self.preference.is_some() && !self.data.is_preferences() {
            let problem = "is for data of answers that are preferred to others, see data.format";
            return wrong("preference", problem.to_owned());
        }
        if let Some((at, dropout)) = self.model.dropout().filter(|(_, p)| !(0.0..1.0).contains(p)) {
            return wrong(at, format!("{dropout} is not from 0 up to 1"));
        }
        if let Some(norm) = self.train.clip_norm.filter(|norm| norm.is_nan() || *norm <= 0.0) {
            return wrong("train.clip_norm", format!("{norm} is not above 0"));
        }
        if self.train.parameters != StoredType::F32 && self.train.precision == Precision::F16 {
            let problem = "cannot be bf16 where train.precision is f16: scaled gradients are f32";
            return wrong("train.parameters", problem.to_owned());
        }
        let in_table = |table: &str, error| match error {
            NnError::Option { name, value, range } => {
                let name = match name {
                    "beta" => "betas",
                    "coefficient" => "coefficients",
                    "milestone" => "at",
                    name => name,
                };
                let (place, problem) =
                    (format!("{table}.{name}"), format!("{value} is not in {range}"));
                TrainError::Setting { place, problem }
            }
            other => other.into(),
        };
        let warm_up = ScheduleRecipe::default().after(self.warm_up);
        warm_up.check().map_err(|error| in_table("warm_up", error))?;
        let schedule = self.schedule.after(WarmUpRecipe::default());
        schedule.check().map_err(|error| in_table("schedule", error))?;
        let how = RuleOptions { schedule, rounding: None, states: StateType::F32 };
        let built = self.optimizer.build(how);
        built.map(drop).map_err(|error| in_table("optimizer", error))
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

/// The parser's message in one line, without names of Rust types, and with the nearest known name.
fn readable(message: &str) -> String {
    if is_beyond_integers(message) {
        return format!("whole numbers are {} to {}", i64::MIN, i64::MAX);
    }
    let problem = message.lines().collect::<Vec<_>>().join(" ");
    let problem = problem.replace("expected usize", "expected u64") + &near(message);
    let problem = problem.replace("expected u64", "expected a whole number, 0 or more");
    problem.replace("expected f64", "expected a number")
}

/// True for a parser's message about an integer that does not fit TOML's 64 bits with a sign.
fn is_beyond_integers(message: &str) -> bool {
    let marks = ["u64 value was too large", "` as i128", "` as u128", "number overflowed"];
    marks.iter().any(|mark| message.contains(mark))
}

/// The nearest known name, to be added to a parser's message about an unknown name.
fn near(message: &str) -> String {
    let is_unknown = message.contains("unknown field `") || message.contains("unknown variant `");
    let mut names = message.split('`').skip(1).step_by(2);
    let Some(wrong) = names.next().filter(|_| is_unknown) else { return String::new() };
    let distance = |name: &str| strsim::damerau_levenshtein(wrong, name);
    let nearest = names.min_by_key(|name| distance(name));
    // A third of the letters may be wrong; in a short name, two.
    let is_near = |name: &&str| distance(name) <= (wrong.chars().count() / 3).max(2);
    let suggestion = nearest.filter(is_near).map(|name| format!("; did you mean `{name}`?"));
    suggestion.unwrap_or_default()
}

/// A place in a recipe: the file, the line's number and the line itself.
fn place(path: &Path, text: &str, line: Option<usize>) -> String {
    let Some(line) = line else { return path.display().to_string() };
    let source = text.lines().nth(line - 1).unwrap_or_default().trim();
    let source = if source.is_empty() { String::new() } else { format!(" ({source})") };
    format!("{}, line {line}{source}", path.display())
}

/// The line of an error that begins at `start`. For an unknown key the parser points at the table's
/// header, so the key is searched below the header.
fn line_of_error(text: &str, start: usize, message: &str) -> usize {
    let start = text.floor_char_boundary(start);
    let first = text[..start].matches('\n').count() + 1;
    let after = |mark| message.strip_prefix(mark).and_then(|rest: &str| rest.split('`').next());
    let key = after("unknown field `").or_else(|| after("unfit value of `"));
    let key = key.or_else(|| message.starts_with("unknown variant").then_some("kind"));
    key.and_then(|key| line_of_key(text, first, key)).unwrap_or(first)
}

/// The line that sets `table.key`.
fn line_of_name(text: &str, name: &str) -> Option<usize> {
    let (table, key) = name.split_once('.')?;
    let header = text.lines().position(|line| line.trim() == format!("[{table}]"))?;
    line_of_key(text, header + 1, key)
}

/// The line, from `first` on and counted from 1, that sets `key` in the same table.
fn line_of_key(text: &str, first: usize, key: &str) -> Option<usize> {
    let sets = |line: &str| line.split_once('=').is_some_and(|(left, _)| left.trim() == key);
    let lines = text.lines().enumerate().skip(first - 1);
    lines
        .take_while(|(index, line)| *index < first || !line.trim_start().starts_with('['))
        .find(|(_, line)| sets(line))
        .map(|(index, _)| index + 1)
}
