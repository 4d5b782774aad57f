//! `lowtide calibrate`.

use std::io::{self, IsTerminal};
use std::time::Instant;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use lowtide_tensor::{OpClass, Rates};
use lowtide_trainer::{Result, TrainError, measure_rates};
use serde_json::json;

use crate::command::device::{THREADS_MAX, threads_of};
use crate::command::rates::{Calibration, Machine};
use crate::command::{parse_count, say};
use crate::human::format_seconds;

#[derive(Args)]
pub(super) struct CalibrateArgs {
    /// Number of threads that compute; one per core if absent. Each number of threads has its own
    /// rates.
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    #[arg(value_parser = |text: &str| parse_count(text, 1..=THREADS_MAX))]
    threads: Option<u64>,
    /// Prints the stored rates, and the path of their file, as one JSON object.
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) fn run(arguments: &CalibrateArgs) -> Result<()> {
    let threads = threads_of(arguments.threads);
    let machine = Machine::this(threads);
    let file = machine.file().ok_or_else(|| TrainError::Setting {
        place: "LOWTIDE_RATES".to_owned(),
        problem: "names no file to keep the rates in, and there is no XDG_CACHE_HOME or HOME"
            .to_owned(),
    })?;
    let started = Instant::now();
    let bar = io::stderr().is_terminal().then(|| ProgressBar::new(100).with_style(style()));
    let measured = measure_rates(Some(threads), &mut |part| {
        if let Some(bar) = &bar {
            bar.set_position((part * 100.0) as u64);
        }
    });
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let rates = measured?;
    let calibration = Calibration::new(machine, &rates);
    calibration.write(&file)?;
    if arguments.json {
        let mut object = json!(calibration);
        object["file"] = file.display().to_string().into();
        return say(&object.to_string());
    }
    let Machine { processor, threads, instruction_set, .. } = &calibration.machine;
    say(&format!("processor       {processor}, {threads} threads, {instruction_set}"))?;
    say("")?;
    tell(&rates)?;
    say("")?;
    say(&format!(
        "measured in {:.1} s; kept in {}",
        started.elapsed().as_secs_f64(),
        file.display()
    ))
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{bar:32.cyan/blue} {pos} %").expect("a valid template")
}

/// Prints a row for each class.
fn tell(rates: &Rates) -> Result<()> {
    say("operations      Gflop/s    GB/s   launch")?;
    for class in OpClass::ALL {
        let rate = rates.of(class);
        let [flops, bytes] = [rate.flops_per_second, rate.bytes_per_second].map(|rate| rate / 1e9);
        let (name, launch) = (class.to_string(), format_seconds(rate.launch_seconds));
        say(&format!("{name:<15} {flops:>7.1} {bytes:>7.1}   {launch}"))?;
    }
    Ok(())
}
