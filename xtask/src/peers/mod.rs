//! `cargo xtask bench --peers`: measures operations by shape and whole steps in lowtide and in
//! PyTorch, alternately on one machine, and writes a table and a page.

mod page;
mod program;
mod programs;
mod report;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::bench::describe_machine;
use crate::python::{self, Packages, call};
use crate::workspace;

use programs::Programs;

pub use page::page;
pub use report::{Row, report, rows};

const PYTORCH: Packages = Packages {
    names: &["torch==2.15.0", "numpy==2.4.6"],
    probe: "import torch, numpy; assert torch.__version__.startswith('2.15.0')",
    size: "more than 5 GB",
};

const USAGE: &str = "bench --peers takes [--threads N] [--rounds N] [--dtype f32|bf16] \
                     [--only TEXT] [--before FILE.jsonl]";

/// The prefix of the names of whole steps.
const STEP: &str = "whole-step ";

/// One measurement of an operation or a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The program, such as `torch-eager`.
    pub peer: String,
    /// Network, layer, operation and part; or `whole-step` and the network.
    pub operation: String,
    /// Time of the fastest run.
    pub min_ms: f64,
    /// The mean magnitude of the result, or the sum of the first two losses. Equal numbers show
    /// that the programs computed the same.
    pub magnitude: f64,
    /// Memory of a step, in MB above the memory before the first step.
    pub peak_mb: Option<f64>,
}

impl Sample {
    /// Reads a line of JSON.
    pub fn parse(line: &str) -> Option<Sample> {
        Sample::of(&serde_json::from_str(line).ok()?)
    }

    fn of(value: &Value) -> Option<Sample> {
        Some(Sample {
            peer: value["peer"].as_str()?.to_owned(),
            operation: value["operation"].as_str()?.to_owned(),
            min_ms: value["min_ms"].as_f64()?,
            magnitude: value["magnitude"].as_f64()?,
            peak_mb: value["peak_mb"].as_f64(),
        })
    }

    /// The sample as a line of JSON.
    fn line(&self) -> String {
        let Sample { peer, operation, min_ms, magnitude, peak_mb } = self;
        let value = serde_json::json!({
            "peer": peer,
            "operation": operation,
            "min_ms": min_ms,
            "magnitude": magnitude,
            "peak_mb": peak_mb,
        });
        format!("{value}\n")
    }
}

struct Options {
    threads: usize,
    rounds: usize,
    dtype: String,
    only: String,
    before: Option<PathBuf>,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Options, String> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let mut options = Options {
            threads: cores,
            rounds: 3,
            dtype: "f32".to_owned(),
            only: String::new(),
            before: None,
        };
        let mut rest = arguments.iter();
        while let Some(name) = rest.next() {
            let value = rest.next().ok_or(USAGE)?;
            let count = || value.parse().ok().filter(|&count| count > 0).ok_or(USAGE);
            match name.as_str() {
                "--threads" => options.threads = count()?,
                "--rounds" => options.rounds = count()?,
                "--dtype" if ["f32", "bf16"].contains(&value.as_str()) => {
                    options.dtype.clone_from(value);
                }
                "--only" => options.only.clone_from(value),
                "--before" => options.before = Some(value.into()),
                _ => return Err(USAGE.to_owned()),
            }
        }
        Ok(options)
    }
}

/// Runs the comparison, writes `target/peers-DTYPE.md`, `.html` and `.jsonl`, and prints their
/// paths. False if programs computed different numbers somewhere.
///
/// # Errors
/// One line about arguments, about programs that are missing or fail, and about files.
pub fn run(root: &Path, arguments: &[String]) -> Result<bool, String> {
    let options = Options::parse(arguments)?;
    let before = options.before.as_deref().map(read_samples).transpose()?;
    call(workspace::cargo(root).args([
        "build",
        "--release",
        "-p",
        "lowtide-nn",
        "--example",
        "peer",
    ]))?;
    let own = workspace::target(root).join("release/examples/peer");
    let operations = programs::operations(&own, &options)?;
    if operations.is_empty() && programs::networks(&options).next().is_none() {
        return Err(format!("no operation and no step has `{}` in its name", options.only));
    }
    let programs = Programs {
        own,
        python: python::find_or_install(root, &PYTORCH)?,
        scripts: root.join("nn/examples/peer"),
        mkl_answer: programs::mkl_answer(root)?,
        options: &options,
    };
    let mut samples = Vec::new();
    for round in 1..=options.rounds {
        println!("round {round} of {}", options.rounds);
        samples.extend(programs.operations(&operations)?);
        samples.extend(programs.steps(round == 1)?);
    }
    let command = format!("cargo xtask bench --peers {}", arguments.join(" "));
    let machine = describe_machine(root, command.trim());
    let rows = rows(&samples, &options.dtype);
    let path =
        |ending: &str| workspace::target(root).join(format!("peers-{}.{ending}", options.dtype));
    let lines: String = samples.iter().map(Sample::line).collect();
    let title =
        format!("{} threads, {}, {} rounds", options.threads, options.dtype, options.rounds);
    let written = [
        ("jsonl", lines),
        ("md", report(&machine, &title, &rows, before.as_deref())),
        ("html", page(&machine, &title, &rows)),
    ];
    for (ending, text) in written {
        let path = path(ending);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        println!("{}", path.display());
    }
    let differing: Vec<&Row> = rows.iter().filter(|row| row.differs).collect();
    for row in &differing {
        println!("{}: the results differ", row.operation);
    }
    Ok(differing.is_empty())
}

fn read_samples(path: &Path) -> Result<Vec<Sample>, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(text.lines().filter_map(Sample::parse).collect())
}
