//! `lowtide explain`.

use std::path::{Path, PathBuf};

use clap::Args;
use lowtide_trainer::Result;

use crate::command::recording::{self, Output, Target, unusable};
use crate::command::say;

#[derive(Args)]
pub(super) struct ExplainArgs {
    /// A memory snapshot of PyTorch (.pickle, .pickle.xz), or a trace of lowtide.
    file: PathBuf,
    /// The device to explain; the device with the longest trace if absent.
    #[arg(long, allow_negative_numbers = true)]
    device: Option<usize>,
    /// Also writes FILE: .html, .pickle for PyTorch's tools, or .jsonl.
    #[arg(long, value_name = "FILE", value_parser = Target::parser())]
    write: Vec<Target>,
}

pub(super) fn run(arguments: &ExplainArgs) -> Result<()> {
    let paths: Vec<&Path> = arguments.write.iter().map(Target::path).collect();
    if let Some(index) = (0..paths.len()).find(|&index| paths[..index].contains(&paths[index])) {
        return Err(unusable(paths[index], "is named twice by --write".to_owned()));
    }
    // Files are opened first, so that a wrong name is reported alone.
    let outputs: Result<Vec<Output>> = arguments.write.iter().map(Output::open).collect();
    let outputs = outputs?;
    let recorded = recording::read(&arguments.file, arguments.device)?;
    for output in outputs {
        output.write(&recorded.recording)?;
    }
    say(recorded.recording.explain().to_string().trim_end())?;
    for target in &arguments.write {
        say(&format!("written: {}", target.path().display()))?;
    }
    Ok(())
}
