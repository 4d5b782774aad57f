//! `lowtide replay`.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use lowtide_allocator::Policy;
use lowtide_allocator::torch::TorchSettings;
use lowtide_trace::{
    Action, Replay, ReplayReport, RerunFailure, RerunOptions, RerunReport, parse_settings,
};
use lowtide_trainer::Result;
use serde_json::{Map, Value, json};

use crate::command::device::parse_budget;
use crate::command::recording::{self, Recorded, unusable};
use crate::command::say;
use crate::human::format_bytes;

#[derive(Args)]
pub(super) struct ReplayArgs {
    /// A memory snapshot of PyTorch (.pickle, .pickle.xz), or a trace of lowtide.
    file: PathBuf,
    /// The policy that places blocks; both policies side by side if absent.
    #[arg(long, value_enum)]
    policy: Option<PolicyKind>,
    /// Memory of the device, such as 16GiB; unlimited if absent.
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true)]
    #[arg(value_parser = parse_budget)]
    capacity: Option<usize>,
    /// Also finds the smallest capacity that serves every request, by bisection.
    #[arg(long)]
    least: bool,
    /// Settings in the form of PYTORCH_CUDA_ALLOC_CONF; the settings of the snapshot if absent.
    #[arg(long, value_name = "SETTINGS")]
    torch_conf: Option<String>,
    /// The device to replay; the device with the longest trace if absent.
    #[arg(long, allow_negative_numbers = true)]
    device: Option<usize>,
    /// Prints one JSON object.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PolicyKind {
    /// The policy of this workspace: whole free pages serve any large request.
    Pages,
    /// The policy of PyTorch.
    Torch,
}

impl PolicyKind {
    fn name(self) -> &'static str {
        match self {
            PolicyKind::Pages => "pages",
            PolicyKind::Torch => "torch",
        }
    }
}

/// The outcome of replaying a recording with a policy.
struct Outcome {
    kind: PolicyKind,
    report: RerunReport,
    least_bytes: Option<u64>,
    /// The comparison with a snapshot of PyTorch, event by event.
    exact: Option<ReplayReport>,
    /// The reason why an expected comparison is missing.
    no_comparison: Option<String>,
}

/// Replays the recording and prints the outcome. Returns true if every request was served.
pub(super) fn run(arguments: &ReplayArgs) -> Result<bool> {
    if arguments.torch_conf.is_some() && arguments.policy == Some(PolicyKind::Pages) {
        let problem = "is for the policy torch, and --policy is pages".to_owned();
        return Err(unusable(Path::new("--torch-conf"), problem));
    }
    let recorded = recording::read(&arguments.file, arguments.device)?;
    let kinds = match arguments.policy {
        Some(kind) => vec![kind],
        None => vec![PolicyKind::Pages, PolicyKind::Torch],
    };
    let outcomes: Result<Vec<Outcome>> =
        kinds.into_iter().map(|kind| serve(arguments, &recorded, kind)).collect();
    let outcomes = outcomes?;
    let is_served = outcomes.iter().all(|outcome| outcome.report.failure.is_none());
    if !arguments.json {
        in_words(&recorded, arguments, &outcomes)?;
        return Ok(is_served);
    }
    let mut all: Map<String, Value> = Map::new();
    for outcome in &outcomes {
        all.insert(outcome.kind.name().to_owned(), in_json(&recorded, arguments, outcome));
    }
    let single = (arguments.policy.is_some()).then(|| all.values().next().cloned()).flatten();
    say(&single.unwrap_or(Value::Object(all)).to_string())?;
    Ok(is_served)
}

fn serve(arguments: &ReplayArgs, recorded: &Recorded, kind: PolicyKind) -> Result<Outcome> {
    let path = &arguments.file;
    let settings = torch_settings(arguments, recorded)?;
    let is_own = arguments.torch_conf.is_none() && arguments.capacity.is_none();
    let compared = recorded.snapshot.as_ref().filter(|_| kind == PolicyKind::Torch && is_own);
    let compared = compared
        .map(|snapshot| Replay::new(snapshot, recorded.device).and_then(|mut replay| replay.run()));
    // If another allocator than PyTorch's made the snapshot, it is replayed without a comparison.
    let (exact, no_comparison) = match compared {
        Some(Ok(exact)) => (Some(exact), None),
        Some(Err(error)) => (None, Some(error.to_string())),
        None => (None, None),
    };
    let policy = match kind {
        PolicyKind::Pages => Policy::Pages,
        PolicyKind::Torch => Policy::Torch(settings),
    };
    let least_bytes = if arguments.least {
        let least = recorded.recording.least_capacity_bytes(&policy);
        Some(least.map_err(|error| unusable(path, error.to_string()))?)
    } else {
        None
    };
    let capacity_bytes = arguments.capacity.map(|bytes| bytes as u64);
    let options = RerunOptions { policy, capacity_bytes, page_bytes: None };
    let report = recorded.recording.rerun(&options);
    let report = report.map_err(|error| unusable(path, error.to_string()))?;
    Ok(Outcome { kind, report, least_bytes, exact, no_comparison })
}

/// The settings for PyTorch's policy, without the memory limit of the recorded device.
fn torch_settings(arguments: &ReplayArgs, recorded: &Recorded) -> Result<TorchSettings> {
    let settings = match (&arguments.torch_conf, &recorded.snapshot) {
        (Some(text), _) => parse_settings(text)
            .map_err(|error| unusable(Path::new("--torch-conf"), error.to_string()))?,
        (None, Some(snapshot)) => {
            // Old snapshots do not contain the setting, but their events show it.
            let mut events = snapshot.device_traces[recorded.device].iter();
            let maps = events.any(|event| event.action == Action::SegmentMap);
            let settings = snapshot.settings.clone();
            let expandable_segments = settings.expandable_segments || maps;
            TorchSettings { expandable_segments, ..settings }
        }
        (None, None) => TorchSettings::default(),
    };
    Ok(TorchSettings { limit_bytes: None, ..settings })
}

fn in_json(recorded: &Recorded, arguments: &ReplayArgs, outcome: &Outcome) -> Value {
    let report = &outcome.report;
    let mut json = json!({
        "policy": outcome.kind.name(),
        "device": recorded.device,
        "recorded_by": recorded.recording.policy,
        "capacity_bytes": arguments.capacity,
        "events": report.events,
        "addresses_total": report.addresses_total,
        "addresses_equal": report.addresses_equal,
        "segments_total": report.segments_total,
        "segments_equal": report.segments_equal,
        "final_blocks_equal": report.final_blocks_equal,
        "peak_active_bytes": report.peak_active_bytes,
        "peak_reserved_bytes": report.peak_reserved_bytes,
        "source_calls": report.source_calls,
        "waits": report.waits,
        "stitches": report.stitches,
        "ns_per_op": report.ns_per_op,
        "least_capacity_bytes": outcome.least_bytes,
        "no_comparison": outcome.no_comparison,
        "failure": report.failure.map(|failure| json!({
            "event": failure.event,
            "requested_bytes": failure.requested_bytes,
            "missing_bytes": failure.missing_bytes,
        })),
    });
    if let (Some(exact), Value::Object(json)) = (&outcome.exact, &mut json) {
        // The comparison with the snapshot, event by event, from the snapshot's own start and
        // settings.
        for (name, value) in [
            ("addresses_total", json!(exact.addresses_total)),
            ("addresses_equal", json!(exact.addresses_equal)),
            ("segments_total", json!(exact.segments_total)),
            ("segments_equal", json!(exact.segments_equal)),
            ("final_blocks_equal", json!(exact.final_blocks_equal)),
            ("peak_active_bytes", json!(exact.peak_active_bytes)),
            ("peak_block_bytes", json!(exact.peak_block_bytes)),
            ("peak_reserved_bytes", json!(exact.peak_reserved_bytes)),
            ("source_calls", json!(exact.source_calls)),
            ("inferred_blocks", json!(exact.inferred_blocks)),
            ("first_difference", json!(exact.first_difference)),
        ] {
            json.insert(name.to_owned(), value);
        }
    }
    json
}

/// Prints a row for each compared quantity, and a column for each policy.
fn in_words(recorded: &Recorded, arguments: &ReplayArgs, outcomes: &[Outcome]) -> Result<()> {
    let of = |equal: u64, total: u64| format!("{equal} of {total}");
    let yes = |is: bool| if is { "as recorded" } else { "not as recorded" }.to_owned();
    let bytes = |bytes: u64| format_bytes(bytes);
    let mut rows: Vec<(&str, Vec<String>)> = Vec::new();
    let mut row = |name: &'static str, value: &dyn Fn(&Outcome) -> String| {
        rows.push((name, outcomes.iter().map(value).collect()));
    };
    row("policy", &|outcome| outcome.kind.name().to_owned());
    row("events", &|outcome| outcome.report.events.to_string());
    row("addresses as recorded", &|outcome| match &outcome.exact {
        Some(exact) => of(exact.addresses_equal, exact.addresses_total),
        None => of(outcome.report.addresses_equal, outcome.report.addresses_total),
    });
    row("segments as recorded", &|outcome| match &outcome.exact {
        Some(exact) => of(exact.segments_equal, exact.segments_total),
        None => of(outcome.report.segments_equal, outcome.report.segments_total),
    });
    row("final blocks", &|outcome| match &outcome.exact {
        Some(exact) => yes(exact.final_blocks_equal),
        None => yes(outcome.report.final_blocks_equal),
    });
    row("peak active", &|outcome| bytes(peaks(outcome).0));
    row("peak reserved", &|outcome| bytes(peaks(outcome).1));
    row("reserved / active", &|outcome| {
        let (active, reserved) = peaks(outcome);
        format!("{:.4}", reserved as f64 / (active as f64).max(1.0))
    });
    if arguments.least {
        row("least capacity", &|outcome| {
            outcome.least_bytes.map_or_else(|| "none".to_owned(), bytes)
        });
    }
    row("source calls", &|outcome| match &outcome.exact {
        Some(exact) => exact.source_calls.to_string(),
        None => outcome.report.source_calls.to_string(),
    });
    row("stitched blocks", &|outcome| outcome.report.stitches.to_string());
    row("stream waits", &|outcome| outcome.report.waits.to_string());
    row("time per request", &|outcome| format!("{:.0} ns", outcome.report.ns_per_op));
    row("served", &|outcome| match outcome.report.failure {
        None => "every request".to_owned(),
        Some(RerunFailure { event: Some(event), missing_bytes, .. }) => {
            format!("up to event {event}: {} missing", format_bytes(missing_bytes))
        }
        Some(RerunFailure { event: None, .. }) => "not what is there at the start".to_owned(),
    });
    let width = |column: usize| rows.iter().map(|(_, values)| values[column].len()).max();
    let widths: Vec<usize> = (0..outcomes.len()).filter_map(width).collect();
    for (name, values) in &rows {
        let cells = values.iter().zip(&widths).map(|(value, width)| format!("  {value:<width$}"));
        say(format!("{name:<20}{}", cells.collect::<String>()).trim_end())?;
    }
    if !arguments.least && outcomes.iter().any(|outcome| outcome.report.failure.is_some()) {
        say("note: missing is what one request lacks; --least finds what serves them all")?;
    }
    notes(recorded, outcomes)
}

fn peaks(outcome: &Outcome) -> (u64, u64) {
    match &outcome.exact {
        Some(exact) => (exact.peak_active_bytes, exact.peak_reserved_bytes),
        None => (outcome.report.peak_active_bytes, outcome.report.peak_reserved_bytes),
    }
}

fn notes(recorded: &Recorded, outcomes: &[Outcome]) -> Result<()> {
    if recorded.recording.lost_events > 0 {
        let lost = recorded.recording.lost_events;
        say(&format!("note: {lost} earlier events are not in the file"))?;
    }
    for reason in outcomes.iter().filter_map(|outcome| outcome.no_comparison.as_ref()) {
        say(&format!("note: not compared event by event with PyTorch's rules: {reason}"))?;
    }
    for exact in outcomes.iter().filter_map(|outcome| outcome.exact.as_ref()) {
        if exact.inferred_blocks > 0 {
            let count = exact.inferred_blocks;
            say(&format!("note: {count} blocks at the start, sizes inferred"))?;
        }
        if let Some(event) = exact.first_difference {
            say(&format!("note: torch differs first at event {event}"))?;
        }
    }
    Ok(())
}
