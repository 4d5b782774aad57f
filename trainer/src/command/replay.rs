//! `lowtide replay`.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use lowtide_allocator::trace::{Limits, Replay, ReplayReport, read_snapshot};
use serde_json::json;

use crate::command::say;
use crate::human::format_bytes;
use crate::{Result, TrainError};

#[derive(Args)]
pub(super) struct ReplayArgs {
    /// A memory snapshot of PyTorch: a pickle, or one compressed with xz.
    file: PathBuf,
    /// The rules by which blocks are placed.
    #[arg(long, value_enum)]
    policy: PolicyKind,
    /// The device to replay; the one with the longest trace if absent.
    #[arg(long)]
    device: Option<usize>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum PolicyKind {
    /// PyTorch's own.
    Torch,
}

pub(super) fn run(arguments: &ReplayArgs) -> Result<()> {
    let ReplayArgs { file, policy: PolicyKind::Torch, device, json } = arguments;
    let (device, report) = replay(file, *device)?;
    if *json { say(&in_json(device, &report)) } else { in_words(device, &report) }
}

fn replay(path: &PathBuf, device: Option<usize>) -> Result<(usize, ReplayReport)> {
    let file =
        File::open(path).map_err(|source| TrainError::File { path: path.clone(), source })?;
    let unusable =
        |problem: String| TrainError::Setting { place: path.display().to_string(), problem };
    let snapshot = read_snapshot(BufReader::new(file), Limits::default())
        .map_err(|error| unusable(error.to_string()))?;
    let device = device.unwrap_or_else(|| Replay::busiest_device(&snapshot));
    let replay = Replay::new(&snapshot, device).and_then(|mut replay| replay.run());
    Ok((device, replay.map_err(|error| unusable(error.to_string()))?))
}

fn in_json(device: usize, report: &ReplayReport) -> String {
    json!({
        "policy": "torch",
        "device": device,
        "events": report.events,
        "addresses_total": report.addresses_total,
        "addresses_equal": report.addresses_equal,
        "segments_total": report.segments_total,
        "segments_equal": report.segments_equal,
        "final_blocks_equal": report.final_blocks_equal,
        "peak_active_bytes": report.peak_active_bytes,
        "peak_block_bytes": report.peak_block_bytes,
        "peak_reserved_bytes": report.peak_reserved_bytes,
        "source_calls": report.source_calls,
        "ns_per_op": report.ns_per_op,
        "inferred_blocks": report.inferred_blocks,
        "first_difference": report.first_difference,
    })
    .to_string()
}

fn in_words(device: usize, report: &ReplayReport) -> Result<()> {
    let exact = |bytes: u64| format!("{} ({bytes} bytes)", format_bytes(bytes));
    let of = |equal: u64, total: u64| format!("{equal} of {total} as recorded");
    let blocks = if report.final_blocks_equal { "as recorded" } else { "not as recorded" };
    let rows = [
        ("device", device.to_string()),
        ("events", report.events.to_string()),
        ("addresses", of(report.addresses_equal, report.addresses_total)),
        ("segments", of(report.segments_equal, report.segments_total)),
        ("final blocks", blocks.to_owned()),
        ("peak active", exact(report.peak_active_bytes)),
        ("peak in blocks", exact(report.peak_block_bytes)),
        ("peak reserved", exact(report.peak_reserved_bytes)),
        ("source calls", report.source_calls.to_string()),
        ("placement", format!("{:.0} ns per request or free", report.ns_per_op)),
    ];
    for (name, value) in rows {
        say(&format!("{name:<16}{value}"))?;
    }
    if report.inferred_blocks > 0 {
        let count = report.inferred_blocks;
        say(&format!("{:<16}{count} blocks at the start, sizes inferred", "note"))?;
    }
    if let Some(event) = report.first_difference {
        say(&format!("{:<16}the first difference is at event {event}", "note"))?;
    }
    Ok(())
}
