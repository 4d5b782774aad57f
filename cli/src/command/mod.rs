//! The `lowtide` command: arguments, exit codes, and one line for every mistake.
//!
//! Exit codes: 0 success; 2 a training that does not fit into memory, or a replayed trace that does
//! not fit the capacity; 1 any other error.

mod calibrate;
mod capacity;
mod device;
mod eval;
mod explain;
mod export;
mod failure;
mod finetune;
mod generate;
mod interrupt;
mod model;
mod parallelism_table;
mod plan;
mod plan_file;
mod planning;
mod process;
mod ranks;
mod rates;
mod recipes;
mod recording;
mod rehearsing;
mod replay;
mod rows;
mod runs;
mod saving;
mod shrink;
mod stages;
mod staging;
mod train;
mod trained;

use std::ffi::OsString;
use std::io::{self, Write};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};
use lowtide_trainer::{Precision, Result, RunNotes, TrainError};

use crate::command::device::DeviceArgs;
use crate::command::failure::complain;
use crate::human::visible;
use crate::recipe::{BATCH_SIZE_MAX, EPOCHS_MAX, INTEGER_MAX, Recipe};

/// Trains neural networks inside a memory budget.
#[derive(Parser)]
#[command(name = "lowtide", version, max_term_width = 100, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Trains a recipe; without one, a small convolutional network on handwritten digits.
    Train(Box<train::TrainArgs>),
    /// Trains a pretrained model further on a file of texts or chats, whole or with adapters.
    Finetune(Box<finetune::FinetuneArgs>),
    /// Predicts the memory of a training, and its plan within a budget, without running it.
    Plan(Box<plan::PlanArgs>),
    /// Measures the speed of this machine's processor, for the times of plans.
    Calibrate(calibrate::CalibrateArgs),
    /// Continues a text with a pretrained model, or with a run that trained one further.
    Generate(Box<generate::GenerateArgs>),
    /// Writes a pretrained model, or the model of a run, for other programs.
    Export(export::ExportArgs),
    /// Makes the model of a run smaller: fewer channels, more training, and fewer bits.
    Shrink(Box<shrink::ShrinkArgs>),
    /// Evaluates a trained model on its test data.
    Eval(eval::EvalArgs),
    /// Lists the shipped recipes, or prints one.
    Recipes(recipes::RecipesArgs),
    /// Checks a recipe, and says what it would train.
    Check(recipes::CheckArgs),
    /// Lists the runs in a folder.
    Runs(runs::RunsArgs),
    /// Compares two runs: recipes, values, time and memory.
    Compare(runs::CompareArgs),
    /// Explains where the memory of a recorded trace went, and what would help.
    Explain(explain::ExplainArgs),
    /// Replays a recorded memory trace with any policy and capacity, and compares.
    Replay(replay::ReplayArgs),
    /// Shows the help of a command, or every key of a recipe or of the metrics.
    Help(recipes::HelpArgs),
}

/// A recipe, and changes to it.
#[derive(Args, Clone)]
struct RecipeArgs {
    /// A recipe (TOML), or the name of a shipped one; every key has a default.
    recipe: Option<PathBuf>,
    #[command(flatten)]
    changes: Changes,
}

/// Changes to a recipe.
#[derive(Args, Clone)]
struct Changes {
    /// Number of passes over the training data.
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    #[arg(value_parser = |text: &str| parse_count(text, 1..=EPOCHS_MAX))]
    epochs: Option<u64>,
    /// Samples of a logical batch, however many fit on the device at once.
    #[arg(long, visible_alias = "batch", value_name = "N", allow_hyphen_values = true)]
    #[arg(value_parser = |text: &str| parse_count(text, 1..=BATCH_SIZE_MAX))]
    batch_size: Option<u64>,
    /// Seed of initial values and of the order of the data.
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    #[arg(value_parser = |text: &str| parse_count(text, 0..=INTEGER_MAX))]
    seed: Option<u64>,
    /// The type of operations: f32, bf16 or f16. The type of parameters does not change.
    #[arg(long, value_name = "TYPE")]
    precision: Option<Precision>,
    /// Sets a key of the recipe, such as optimizer.kind=lion; repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl RecipeArgs {
    fn load(&self) -> Result<Recipe> {
        let changes = &self.changes;
        changes.applied(Recipe::load_with(self.recipe.as_deref(), &changes.set)?)
    }

    /// The recipe that a checkpoint was saved with, as it was and with the changes to it.
    fn load_saved(&self, checkpoint: &Path) -> Result<[Recipe; 2]> {
        let saved = RunNotes::read(checkpoint)?.recipe.ok_or_else(|| TrainError::Setting {
            place: checkpoint.display().to_string(),
            problem: "does not say of what recipe it is".to_owned(),
        })?;
        let changed = Recipe::parse_with(&saved, checkpoint, &self.changes.set)?;
        Ok([Recipe::parse(&saved, checkpoint)?, self.changes.applied(changed)?])
    }
}

impl Changes {
    /// Applies all changes to a recipe that this program has made.
    fn of(&self, made: &Recipe, place: &Path) -> Result<Recipe> {
        self.applied(Recipe::parse_with(&made.to_toml(), place, &self.set)?)
    }

    /// Applies the other changes to a recipe whose keys are already set.
    fn applied(&self, mut recipe: Recipe) -> Result<Recipe> {
        let train = &mut recipe.train;
        train.epochs = self.epochs.unwrap_or(train.epochs);
        // The number is at most `BATCH_SIZE_MAX`.
        train.batch_size = self.batch_size.map_or(train.batch_size, |size| size as usize);
        train.seed = self.seed.unwrap_or(train.seed);
        train.precision = self.precision.unwrap_or(train.precision);
        // A batch may have to be made of leaves, and a type may be wrong beside another.
        recipe.check()?;
        Ok(recipe)
    }
}

fn parse_count(text: &str, range: RangeInclusive<u64>) -> std::result::Result<u64, String> {
    let count = text.parse().ok().filter(|count| range.contains(count));
    let (min, max) = (range.start(), range.end());
    count.ok_or_else(|| format!("expected a whole number from {min} to {max}"))
}

/// Parses a number that is in a range, which `range` tells in words.
fn parse_number(
    text: &str,
    range: &str,
    is_in_range: impl Fn(f64) -> bool,
) -> std::result::Result<f64, String> {
    let number = text.parse().ok().filter(|&number| is_in_range(number));
    number.ok_or_else(|| format!("{text} is not {range}"))
}

/// The exit code of a training or a trace that does not fit.
const DOES_NOT_FIT: u8 = 2;

/// Runs the command with these arguments. The first one is the program's name.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let (done, json) = match &cli.command {
        Command::Train(arguments) => (train::run(arguments), arguments.run.json),
        Command::Finetune(arguments) => (finetune::run(arguments), arguments.run.json),
        Command::Plan(arguments) => match plan::run(arguments) {
            Ok(false) => return ExitCode::from(DOES_NOT_FIT),
            planned => (planned.map(drop), arguments.json),
        },
        Command::Calibrate(arguments) => (calibrate::run(arguments), arguments.json),
        Command::Generate(arguments) => (generate::run(arguments), arguments.json),
        Command::Export(arguments) => (export::run(arguments), false),
        Command::Shrink(arguments) => (shrink::run(arguments), arguments.run.json),
        Command::Eval(arguments) => (eval::run(arguments), arguments.json),
        Command::Recipes(arguments) => (recipes::list(arguments), false),
        Command::Check(arguments) => (recipes::check(arguments), false),
        Command::Runs(arguments) => (runs::list(arguments), arguments.json),
        Command::Compare(arguments) => (runs::compare(arguments), arguments.json),
        Command::Help(arguments) => (recipes::explain(arguments), false),
        Command::Explain(arguments) => (explain::run(arguments), false),
        Command::Replay(arguments) => match replay::run(arguments) {
            Ok(false) => return ExitCode::from(DOES_NOT_FIT),
            served => (served.map(drop), arguments.json),
        },
    };
    done.map_or_else(|error| failure::tell(&error, json), |()| ExitCode::SUCCESS)
}

/// Prints help on standard output, or a mistake in one line without clap's usage text.
fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        let printed = say(error.to_string().trim_end());
        return printed.map_or_else(|error| failure::tell(&error, false), |()| ExitCode::SUCCESS);
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let cli = Cli::command();
        let names: Vec<&str> = cli.get_subcommands().map(clap::Command::get_name).collect();
        complain(&format!("a command is missing: {} (see lowtide --help)", names.join(", ")));
        return ExitCode::FAILURE;
    }
    let text = error.to_string();
    let mistake = text.lines().take_while(|line| !line.starts_with("Usage:"));
    let mistake =
        mistake.map(str::trim).filter(|line| !line.is_empty() && !line.contains("--help"));
    let mistake = mistake.collect::<Vec<_>>().join(" ").replace(" tip: ", "; ");
    let mistake = mistake.strip_prefix("error: ").unwrap_or(&mistake);
    complain(&format!("{mistake} (see lowtide --help)"));
    ExitCode::FAILURE
}

/// Writes a line to standard output. A reader that has gone, such as `head`, is not an error.
fn say(line: &str) -> Result<()> {
    write_out(&format!("{line}\n")).map(drop)
}

/// Writes to standard output at once, with [visible] control characters. Returns false if the
/// reader has gone.
fn write_out(text: &str) -> Result<bool> {
    let mut out = io::stdout();
    match out.write_all(visible(text).as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(source) => Err(TrainError::File { path: "standard output".into(), source }),
    }
}
