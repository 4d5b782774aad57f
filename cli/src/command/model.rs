//! Recipes for a pretrained model, made from its folder.

use std::path::Path;

use clap::{Args, ValueEnum};
use lowtide_nn::Targets;
use lowtide_trainer::{Result, TrainError};

use crate::command::{RecipeArgs, parse_count};
use crate::recipe::{Base, FewBits, Recipe, Shipped, StoredType, Tuning};

/// Options of training a pretrained model.
#[derive(Args, Clone)]
pub(super) struct ModelArgs {
    /// Tokens of a row, two or more; if absent 1024, or the context of the model if that is
    /// smaller.
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    #[arg(value_parser = |text: &str| parse_count(text, 2..=1 << 20))]
    seq: Option<u64>,
    /// Trains adapters of this rank (LoRA), and freezes the weights.
    #[arg(long, value_name = "RANK", allow_hyphen_values = true)]
    #[arg(value_parser = |text: &str| parse_count(text, 1..=1 << 16))]
    lora: Option<u64>,
    /// The layers that get adapters: all-linear, endings of their names (q_proj,v_proj), or a
    /// regular expression of whole names within slashes (/layers\.[0-3]\..*_proj/).
    #[arg(long, value_name = "NAMES", requires = "lora", value_parser = targets)]
    lora_targets: Option<Targets>,
    /// The type of the model's weights; if absent, the type in its configuration, or f32.
    #[arg(long, value_enum, value_name = "TYPE")]
    base: Option<Weights>,
    /// Learns preferred answers (DPO), as `finetune` does with such data.
    #[arg(long)]
    dpo: bool,
}

fn targets(text: &str) -> std::result::Result<Targets, String> {
    let pattern = text.strip_prefix('/').and_then(|rest| rest.strip_suffix('/'));
    match (text, pattern) {
        ("all-linear", _) => Ok(Targets::AllLinear),
        (_, Some("")) | ("", _) => Err("names no layer".to_owned()),
        (_, Some(pattern)) => Ok(Targets::Pattern(pattern.to_owned())),
        _ => Ok(Targets::Endings(text.split(',').map(|name| name.trim().to_owned()).collect())),
    }
}

/// [`Base`] as an argument.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Weights {
    F32,
    Bf16,
    /// Frozen, in 8 bits with a scale for each row.
    Int8,
    /// Frozen, in QLoRA's 4 bits.
    Nf4,
    /// Frozen, in GGUF's 8 bits.
    #[value(name = "q8_0")]
    Q80,
    /// Frozen, in GGUF's 4 bits.
    #[value(name = "q4_0")]
    Q40,
}

impl ModelArgs {
    /// The tuning that these arguments ask for.
    pub(super) fn tuning(&self) -> Tuning {
        // The number is at most 2^20.
        let count = |count: u64| count as usize;
        let base = self.base.map(|weights| match weights {
            Weights::F32 => Base::Floats(StoredType::F32),
            Weights::Bf16 => Base::Floats(StoredType::Bf16),
            Weights::Int8 => Base::FewBits(FewBits::Int8),
            Weights::Nf4 => Base::FewBits(FewBits::Nf4),
            Weights::Q80 => Base::FewBits(FewBits::Q80),
            Weights::Q40 => Base::FewBits(FewBits::Q40),
        });
        Tuning {
            lora: self.lora.map(count),
            context: self.seq.map(count),
            base,
            targets: self.lora_targets.clone().unwrap_or_default(),
            preference: self.dpo,
        }
    }

    /// The recipe for a model's folder, or the recipe in a file.
    ///
    /// # Errors
    /// Errors of the folder or the file; `Setting` for options of a model with a recipe file.
    pub(super) fn recipe(&self, arguments: &RecipeArgs) -> Result<Recipe> {
        self.recipe_of(arguments, None)
    }

    /// [`ModelArgs::recipe`] with rows of this number of tokens.
    ///
    /// # Errors
    /// Errors of [`ModelArgs::recipe`].
    pub(super) fn recipe_of(
        &self,
        arguments: &RecipeArgs,
        context: Option<usize>,
    ) -> Result<Recipe> {
        match arguments.recipe.as_deref().filter(|path| is_model(path)) {
            Some(folder) => {
                let given = self.tuning();
                let tuning = Tuning { context: context.or(given.context), ..given };
                let recipe = arguments.changes.of(&Recipe::of_model(folder, &tuning)?, folder)?;
                Ok(recipe.with_two_batches())
            }
            None if self.tuning() != Tuning::default() => {
                let given = [
                    ("--seq", self.seq.is_some()),
                    ("--lora", self.lora.is_some()),
                    ("--dpo", self.dpo),
                ];
                let place = given.iter().find(|(_, is_given)| *is_given);
                let place = place.map_or("--base", |(name, _)| *name);
                let problem = "is for the folder of a model; a recipe has data.context, \
                               model.lora and train.parameters, see --set";
                Err(TrainError::Setting { place: place.to_owned(), problem: problem.to_owned() })
            }
            None => arguments.load(),
        }
    }
}

impl ModelArgs {
    /// The context of a model: the longest rows that it was made for.
    ///
    /// # Errors
    /// Errors of the model's configuration; `Setting` for a recipe file.
    pub(super) fn context_max(&self, arguments: &RecipeArgs) -> Result<usize> {
        match arguments.recipe.as_deref().filter(|path| is_model(path)) {
            Some(folder) => Recipe::context_max(folder),
            None => Err(TrainError::Setting {
                place: "--longest".to_owned(),
                problem: "is for the folder of a model".to_owned(),
            }),
        }
    }
}

/// True if a path names a model (a folder or a name of the hub), not a recipe.
fn is_model(path: &Path) -> bool {
    let is_name = || {
        let mut parts = path.components();
        parts.by_ref().count() == 2 && path.extension().is_none_or(|kind| kind != "toml")
    };
    // The folder of a data set may have the name of a shipped recipe.
    let is_recipe = || Shipped::find(path).is_some() && !path.join("config.json").exists();
    if path.is_dir() { !is_recipe() } else { !path.exists() && !path.is_absolute() && is_name() }
}
