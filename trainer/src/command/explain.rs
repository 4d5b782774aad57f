//! `lowtide explain`.

use std::path::PathBuf;

use clap::Args;

use crate::Result;
use crate::command::{recording, say};

#[derive(Args)]
pub(super) struct ExplainArgs {
    /// A memory snapshot of PyTorch (a pickle, or one compressed with xz), or a trace of lowtide.
    file: PathBuf,
    /// The device to explain; the one with the longest trace if absent.
    #[arg(long, allow_negative_numbers = true)]
    device: Option<usize>,
    /// Also writes FILE: a page for a browser (.html), a snapshot for PyTorch's tools (.pickle), or
    /// lines of JSON (any other name). May be given several times.
    #[arg(long, value_name = "FILE")]
    write: Vec<PathBuf>,
}

pub(super) fn run(arguments: &ExplainArgs) -> Result<()> {
    let recorded = recording::read(&arguments.file, arguments.device)?;
    say(recorded.recording.explain().to_string().trim_end())?;
    for path in &arguments.write {
        recording::write(path, &recorded.recording)?;
        say(&format!("written: {}", path.display()))?;
    }
    Ok(())
}
