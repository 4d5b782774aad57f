//! `lowtide explain`.

use std::path::PathBuf;

use clap::Args;

use crate::Result;
use crate::command::{recording, say};

#[derive(Args)]
pub(super) struct ExplainArgs {
    /// A memory snapshot of PyTorch (.pickle, .pickle.xz), or a trace of lowtide.
    file: PathBuf,
    /// The device to explain; the one with the longest trace if absent.
    #[arg(long, allow_negative_numbers = true)]
    device: Option<usize>,
    /// Also writes FILE: .html, .pickle for PyTorch's tools, or lines of JSON.
    #[arg(long, value_name = "FILE")]
    write: Vec<PathBuf>,
}

pub(super) fn run(arguments: &ExplainArgs) -> Result<()> {
    let recorded = recording::read(&arguments.file, arguments.device)?;
    // Files first: a mistake in a name is told alone.
    for path in &arguments.write {
        recording::write(path, &recorded.recording)?;
    }
    say(recorded.recording.explain().to_string().trim_end())?;
    for path in &arguments.write {
        say(&format!("written: {}", path.display()))?;
    }
    Ok(())
}
