//! `lowtide finetune`.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use lowtide_allocator::files::open_input;
use lowtide_trainer::{Result, TrainError};
use serde_json::Value;

use crate::command::Changes;
use crate::command::model::ModelArgs;
use crate::command::train::{RunArgs, run_recipe};
use crate::recipe::{LineKind, Recipe};

#[derive(Args, Clone)]
pub(super) struct FinetuneArgs {
    /// The folder of a model with its tokenizer, or its name in the hub's local cache.
    model: PathBuf,
    /// A file with a JSON object on each line: {"text"}, {"prompt", "completion"}, {"messages"}, or
    /// {"prompt", "chosen", "rejected"} of texts or messages, for learning preferences by DPO.
    data: PathBuf,
    /// The kind of the lines; guessed from the first line if absent.
    #[arg(long, value_enum)]
    format: Option<Format>,
    #[command(flatten)]
    tuning: ModelArgs,
    #[command(flatten)]
    changes: Changes,
    #[command(flatten)]
    pub(super) run: RunArgs,
}

/// [`LineKind`] as an argument.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Text,
    Completion,
    Chat,
    Preference,
    ChatPreference,
}

pub(super) fn run(arguments: &FinetuneArgs) -> Result<()> {
    let FinetuneArgs { model, data, format, tuning, changes, run } = arguments;
    let format = match format {
        Some(Format::Text) => LineKind::Text,
        Some(Format::Completion) => LineKind::Completion,
        Some(Format::Chat) => LineKind::Chat,
        Some(Format::Preference) => LineKind::Preference,
        Some(Format::ChatPreference) => LineKind::ChatPreference,
        None => format_of(data)?,
    };
    let tuning = tuning.tuning();
    if tuning.preference && !format.is_preference() {
        let problem = format!("{} has no answers that are preferred to others", data.display());
        return Err(TrainError::Setting { place: "--dpo".to_owned(), problem });
    }
    let recipe = Recipe::of_model_and_lines(model, data, format, &tuning)?;
    run_recipe(changes.of(&recipe, model)?, None, run)
}

/// The kind of a file's lines, guessed from the first line.
fn format_of(path: &Path) -> Result<LineKind> {
    /// Largest size of a line, far above any line of training data.
    const LINE_BYTES_MAX: u64 = 1 << 26;
    let file = |source| TrainError::File { path: path.to_owned(), source };
    let mut line = String::new();
    let opened = open_input(path).map_err(file)?;
    BufReader::new(opened.take(LINE_BYTES_MAX)).read_line(&mut line).map_err(file)?;
    let keys: Value = serde_json::from_str(&line).unwrap_or_default();
    let of_chosen = match keys.get("chosen") {
        Some(Value::Array(_)) => LineKind::ChatPreference,
        _ => LineKind::Preference,
    };
    let kinds = [
        ("chosen", of_chosen),
        ("messages", LineKind::Chat),
        ("completion", LineKind::Completion),
        ("text", LineKind::Text),
    ];
    let kind = kinds.iter().find(|(key, _)| keys.get(key).is_some());
    kind.map(|(_, kind)| *kind).ok_or_else(|| TrainError::Setting {
        place: format!("{}, line 1", path.display()),
        problem: "has none of \"text\", \"completion\", \"messages\" and \"chosen\"".to_owned(),
    })
}
