//! `lowtide recipes`, `lowtide check` and `lowtide help`.

use std::path::Path;

use clap::{Args, CommandFactory};
use lowtide_tensor::{Device, SimSpec};
use lowtide_trainer::{METRICS_HELP, Result, Task, TrainError};

use crate::command::{Cli, RecipeArgs, say};
use crate::human::format_bytes;
use crate::recipe::{RecipeData, SHIPPED, Shipped, help};

#[derive(Args)]
pub(super) struct RecipesArgs {
    /// Prints the recipe of this name.
    name: Option<String>,
}

pub(super) fn list(arguments: &RecipesArgs) -> Result<()> {
    if let Some(name) = &arguments.name {
        let shipped = Shipped::find(Path::new(name)).ok_or_else(|| TrainError::Setting {
            place: name.clone(),
            problem: "is no recipe that ships; `lowtide recipes` lists them".to_owned(),
        })?;
        return say(shipped.text.trim_end());
    }
    for shipped in SHIPPED {
        say(&format!("{:<16} {}", shipped.name, shipped.about()))?;
    }
    Ok(())
}

#[derive(Args)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    recipe: RecipeArgs,
}

/// Opens the data, and builds the model on a simulated device. Everything that a training would
/// refuse before its first step is refused here.
pub(super) fn check(arguments: &CheckArgs) -> Result<()> {
    let recipe = arguments.recipe.load()?;
    let RecipeData { samples, train, test } = recipe.open()?;
    let device = Device::sim(SimSpec::like_this_machine(usize::MAX >> 1))?;
    let mut trainer = recipe.trainer(&device, samples)?;
    let (mut count, mut bytes) = (0, 0);
    Task::parameters(trainer.task_mut()).visit(&mut |_, parameter| {
        count += parameter.value().element_count();
        bytes += parameter.value().size_bytes();
    });
    let steps = train.batches_per_epoch() as u64 * recipe.train.epochs;
    say(&format!("training         {}", recipe.title()))?;
    say(&format!(
        "samples          {} to train on, {} to test on",
        train.dataset().len(),
        test.dataset().len()
    ))?;
    say(&format!("parameters       {count} ({})", format_bytes(bytes as u64)))?;
    say(&format!("steps            {steps} in {} epochs", recipe.train.epochs))
}

#[derive(Args)]
pub(super) struct HelpArgs {
    /// The topic: the name of a command, `recipe` (all keys of a recipe), or `metrics` (all keys of
    /// `metrics.jsonl`).
    topic: Option<String>,
}

pub(super) fn explain(arguments: &HelpArgs) -> Result<()> {
    let mut cli = Cli::command();
    let topic = match arguments.topic.as_deref() {
        Some("recipe") => return say(help().trim_end()),
        Some("metrics") => return say(METRICS_HELP.trim_end()),
        Some(topic) => topic,
        None => return say(cli.render_help().to_string().trim_end()),
    };
    // `build` puts the program's name into the usage text.
    cli.build();
    let command = cli.find_subcommand_mut(topic).ok_or_else(|| TrainError::Setting {
        place: topic.to_owned(),
        problem: "is no command, and neither `recipe` nor `metrics`".to_owned(),
    })?;
    say(command.render_long_help().to_string().trim_end())
}
