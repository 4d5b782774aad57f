//! `lowtide shrink`.

use std::path::PathBuf;
use std::time::Instant;

use clap::{Args, ValueEnum};
use lowtide_nn::Activations;
use lowtide_trainer::{NewFile, Result, TrainError, metric_values};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::command::eval::{ActivationArgs, Evaluated};
use crate::command::train::{Ended, RunArgs};
use crate::command::{Changes, DeviceArgs, parse_number, say};
use crate::human::format_bytes;
use crate::recipe::{DistillRecipe, FewBits, PruneRecipe, Recipe};
use crate::run_dir::RunDir;

#[derive(Args, Clone)]
pub(super) struct ShrinkArgs {
    /// The folder of the run whose model is made smaller; the run does not change.
    model: PathBuf,
    /// The share of channels, hidden features and attention heads to remove; 0 removes none, and
    /// only trains and quantises.
    #[arg(long, value_name = "SHARE", default_value_t = 0.5, allow_hyphen_values = true)]
    #[arg(value_parser = |text: &str| parse_number(text, "from 0 up to 1", is_part))]
    channels: f64,
    /// The weight of the whole model's outputs in the smaller model's loss; 0 for none.
    #[arg(long, value_name = "SHARE", default_value_t = 0.5, allow_hyphen_values = true)]
    #[arg(value_parser = |text: &str| parse_number(text, "from 0 to 1", is_share))]
    teacher: f64,
    /// The type to which the smaller model's weights are quantised at the end.
    #[arg(long, value_enum, default_value = "int8")]
    bits: FewBits,
    #[command(flatten)]
    activations: ActivationArgs,
    #[command(flatten)]
    changes: Changes,
    #[command(flatten)]
    pub(super) run: RunArgs,
}

/// A row of the table, for one model.
#[derive(Clone, Debug, Serialize)]
struct Row {
    model: String,
    /// The scores on the test data.
    #[serde(flatten)]
    values: Map<String, Value>,
    /// Bytes of parameters and buffers.
    model_bytes: usize,
    /// Seconds per batch of the test data, the faster of two rounds.
    batch_seconds: f64,
}

fn is_part(share: f64) -> bool {
    (0.0..1.0).contains(&share)
}

fn is_share(share: f64) -> bool {
    (0.0..=1.0).contains(&share)
}

pub(super) fn run(arguments: &ShrinkArgs) -> Result<()> {
    let ShrinkArgs { model, channels, teacher, bits, activations, changes, run } = arguments;
    let activations = activations.beside(Some(*bits))?;
    let run_dir = RunDir::open(model)?;
    let recipe = changes.of(&smaller(Recipe::of_run(&run_dir)?, arguments), model)?;
    let place = |path: &PathBuf| path.canonicalize().ok();
    if run.out.as_ref().is_some_and(|out| place(out).is_some_and(|at| Some(at) == place(model))) {
        let problem = "is the run that is made smaller, which stays".to_owned();
        return Err(TrainError::Setting { place: "--out".to_owned(), problem });
    }
    let name = name_of(&run_dir);
    let mut rows = vec![Row::of(name, &run_dir, None, &run.device)?];

    if activations == Activations::Int8 {
        // A missing integer product is found before the training, not after it.
        Evaluated::open(&run_dir, &run.device, Some(*bits), activations)?;
    }
    let mut ended = Ended::of(recipe, None, run)?;
    if ended.was_interrupted {
        return ended.tell(run, None);
    }
    let taught = if *teacher > 0.0 { ", taught by it" } else { "" };
    let name = format!("{:.0} % of channels out{taught}", 100.0 * channels);
    rows.push(Row::of(name, &ended.run_dir, None, &run.device)?);
    let name = format!("and in {}", name_of_bits(*bits));
    let floats = Some((*bits, Activations::Float));
    rows.push(Row::of(name, &ended.run_dir, floats, &run.device)?);
    if activations == Activations::Int8 {
        let name = "and int8 activations".to_owned();
        rows.push(Row::of(name, &ended.run_dir, Some((*bits, activations)), &run.device)?);
    }

    let lines = table(&rows);
    ended.report.facts.extend(rows.iter().map(|row| (row.model.clone(), row.told())));
    NewFile::write(&ended.run_dir.report(), &ended.report.to_html())?;
    let json = serde_json::to_value(&rows).expect("rows have only plain values");
    NewFile::write(&ended.run_dir.path().join("shrink.json"), &format!("{json:#}\n"))?;
    ended.tell(run, Some(("shrink", json)))?;
    let lines = if run.json { Vec::new() } else { [vec![String::new()], lines].concat() };
    lines.iter().try_for_each(|line| say(line))
}

/// The recipe of the smaller model, which begins with the remaining channels of the whole model and
/// learns from it. Shares refer to the model in the recipe, which may have lost channels already.
fn smaller(recipe: Recipe, arguments: &ShrinkArgs) -> Recipe {
    let &ShrinkArgs { ref model, channels, teacher, .. } = arguments;
    let mut prune =
        recipe.prune.clone().unwrap_or(PruneRecipe { channels: 0.0, ..Default::default() });
    prune.channels += (1.0 - prune.channels) * channels;
    prune.run = Some(model.clone());
    let distill =
        DistillRecipe { teacher: model.clone(), weight: teacher, ..DistillRecipe::default() };
    Recipe { prune: Some(prune), distill: (teacher > 0.0).then_some(distill), ..recipe }
}

fn name_of(run_dir: &RunDir) -> String {
    let path = run_dir.path().canonicalize().unwrap_or_else(|_| run_dir.path().to_owned());
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

fn name_of_bits(bits: FewBits) -> String {
    bits.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

impl Row {
    /// Evaluates the model of a run on its test data. With `bits`, the weights are quantised, and
    /// saved beside the other files unless activations are quantised too.
    fn of(
        name: String,
        run_dir: &RunDir,
        bits: Option<(FewBits, Activations)>,
        device: &DeviceArgs,
    ) -> Result<Row> {
        let (bits, activations) = bits.unzip();
        let activations = activations.unwrap_or_default();
        let mut evaluated = Evaluated::open(run_dir, device, bits, activations)?;
        let parameters = evaluated.task.parameters();
        if let (Some(bits), Activations::Float) = (bits, activations) {
            let file = format!("model.{}.safetensors", name_of_bits(bits));
            lowtide_nn::save(parameters, &run_dir.path().join(file))?;
        }
        let model_bytes = evaluated.model_bytes();
        let (mut values, mut seconds) = (Map::new(), f64::INFINITY);
        for _ in 0..2 {
            let started = Instant::now();
            let score = evaluated.score()?;
            seconds = seconds.min(started.elapsed().as_secs_f64());
            let named = metric_values(&[("test".to_owned(), score)]);
            values = named.into_iter().map(|(name, value)| (name, value.into())).collect();
        }
        let batch_seconds = seconds / evaluated.test.batches_per_epoch().max(1) as f64;
        Ok(Row { model: name, values, model_bytes, batch_seconds })
    }

    /// The row as text, for a report.
    fn told(&self) -> String {
        let Row { values, model_bytes, batch_seconds, .. } = self;
        let values = values.iter().map(|(name, value)| format!("{name} {:.4}", number(value)));
        let values: Vec<String> = values.collect();
        format!(
            "{}, {} ({model_bytes} bytes), {:.2} ms a batch",
            values.join(", ").replace('_', " "),
            format_bytes(*model_bytes as u64),
            batch_seconds * 1e3
        )
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

/// The table as text; its head has the names of the first row.
fn table(rows: &[Row]) -> Vec<String> {
    let names: Vec<&String> = rows[0].values.keys().collect();
    let width = rows.iter().map(|row| row.model.chars().count()).max().unwrap_or(0);
    let heads = names.iter().map(|name| name.replace('_', " "));
    let heads = heads.chain(["bytes".to_owned(), "a batch".to_owned()]);
    let head: String = heads.map(|head| format!(" {head:>15}")).collect();
    let mut lines = vec![format!("{:width$}{head}", "")];
    for row in rows {
        let values = names.iter().map(|name| format!(" {:>15.4}", number(&row.values[*name])));
        let (bytes, ms) = (row.model_bytes, row.batch_seconds * 1e3);
        let values: String = values.collect();
        lines.push(format!("{:<width$}{values}{bytes:>16}{ms:>13.2} ms", row.model));
    }
    lines
}
