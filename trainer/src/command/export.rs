//! `lowtide export`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use lowtide_nn::{Parameters, adapted, merge, save_adapters};
use lowtide_pretrained::save;
use lowtide_tensor::Device;

use crate::checkpoint::{beside, remove};
use crate::command::trained::Trained;
use crate::command::{DeviceArgs, say};
use crate::error::{Result, TrainError};
use crate::human::format_bytes;

#[derive(Args, Clone)]
pub(super) struct ExportArgs {
    /// The folder of a run of a pretrained model.
    run_dir: PathBuf,
    /// The folder to make; there must be nothing of that name.
    out: PathBuf,
    /// What is written.
    #[arg(long, value_enum, default_value = "safetensors")]
    format: Format,
    #[command(flatten)]
    device: DeviceArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// The whole model as transformers reads it, with what adapters learned in its weights.
    Safetensors,
    /// The adapters alone, as PEFT reads them.
    Peft,
}

/// Files of larger models are split, as hubs want them.
const SHARD_BYTES: u64 = 5_000_000_000;

/// What belongs to a model beside its weights and its configuration.
const COMPANIONS: [&str; 8] = [
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
];

pub(super) fn run(arguments: &ExportArgs) -> Result<()> {
    let ExportArgs { run_dir, out, format, device } = arguments;
    let file = |source| TrainError::File { path: out.clone(), source };
    if out.symlink_metadata().is_ok() {
        return Err(file(io::ErrorKind::AlreadyExists.into()));
    }
    let device = device.open(device.process_budget())?;
    let beside = beside(out).ok_or_else(|| file(io::ErrorKind::InvalidFilename.into()))?;
    // What a process that was killed has left there is of no use.
    remove(&beside).map_err(file)?;
    let written = write(run_dir, &beside, *format, &device)
        .and_then(|bytes| fs::rename(&beside, out).map_err(file).map(|()| bytes));
    if written.is_err() {
        // The first error is the one to report.
        drop(remove(&beside));
    }
    let size = format_bytes(written?);
    say(&format!("{} has the model, {size}", out.display()))
}

/// Writes everything into `folder`; its bytes.
fn write(run_dir: &Path, folder: &Path, format: Format, device: &Device) -> Result<u64> {
    let file = |source| TrainError::File { path: folder.to_owned(), source };
    fs::create_dir_all(folder).map_err(file)?;
    let Trained { config, mut model, lora, base } = match format {
        // Weights in few bits stay what they are in the files of the base.
        Format::Safetensors => Trained::of_run_in_floats(run_dir, device)?,
        Format::Peft => Trained::of_run(run_dir, device)?,
    };
    match (format, lora) {
        (Format::Peft, Some(lora)) => save_adapters(&mut model, &lora, Some(&base), folder)?,
        (Format::Peft, None) => {
            let problem = "has no adapters: every parameter was trained".to_owned();
            return Err(TrainError::Setting { place: run_dir.display().to_string(), problem });
        }
        (Format::Safetensors, _) => {
            if !adapted(&mut model).is_empty() {
                model.visit(&mut |_, parameter| parameter.unfreeze());
                merge(&mut model)?;
            }
            save(&mut model, folder, SHARD_BYTES)?;
            config.save(folder)?;
            for name in COMPANIONS {
                let from = config.folder().join(name);
                if from.is_file() {
                    fs::copy(&from, folder.join(name)).map_err(file)?;
                }
            }
        }
    }
    let entries = fs::read_dir(folder).map_err(file)?;
    let sizes = entries.map(|entry| Ok(entry?.metadata()?.len()));
    sizes.sum::<io::Result<u64>>().map_err(file)
}
