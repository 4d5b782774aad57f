//! `lowtide eval`.

use std::path::PathBuf;

use clap::Args;
use lowtide_tensor::Device;

use crate::command::process::{Process, Work};
use crate::command::{DeviceArgs, say};
use crate::error::Result;
use crate::evaluation::evaluate;
use crate::knobs::Knobs;
use crate::learned::Learned;
use crate::metrics::metric_values;
use crate::outline::Fit;
use crate::page_lock::lock_pages;
use crate::recipe::{Recipe, RecipeData};
use crate::run_dir::RunDir;

#[derive(Args)]
pub(super) struct EvalArgs {
    /// The folder of a run.
    run_dir: PathBuf,
    #[command(flatten)]
    device: DeviceArgs,
    /// Prints one JSON object instead of words.
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) fn run(arguments: &EvalArgs) -> Result<()> {
    let run_dir = RunDir::open(&arguments.run_dir)?;
    // A teacher has no part in scores.
    let recipe = Recipe { distill: None, ..Recipe::load(&run_dir.recipe())? };
    let process_budget = arguments.device.process_budget();
    let device: Device = arguments.device.open(process_budget)?;
    let RecipeData { samples, mut test, .. } = recipe.open()?;
    lock_pages(&mut test, &device)?;
    let mut task = recipe.task(&device, samples)?;
    if let Some(budget) = process_budget {
        let copied_bytes = Learned::of(&mut task).bytes().iter().sum();
        let fit = Fit::new(&test);
        let work = Work { device: &device, fit: &fit, copied_bytes, steps: 0, offload_bytes: 0 };
        let process = Process::divide(budget, &work, arguments.device.budget())?;
        process.check_room(Knobs { micro_batch: 1, ..Knobs::default() })?;
        if let Some(bytes) = process.training_bytes() {
            device.allocator().set_capacity(bytes);
        }
    }
    lowtide_nn::load(&mut Learned::of(&mut task), &run_dir.model())?;
    let score = evaluate(&task, &device, &test, recipe.train.batch_size)?;
    let (count, scores) = (score.count, [("test".to_owned(), score)]);
    if arguments.json {
        let mut numbers = serde_json::json!(metric_values(&scores));
        numbers["samples"] = (count as u64).into();
        return say(&numbers.to_string());
    }
    for (name, value) in metric_values(&scores) {
        say(&format!("{:<16} {value:.4}", name.replace('_', " ")))?;
    }
    say(&format!("{:<16} {count}", "samples"))
}
