//! Recorded traces replay exactly from any start, and survive every format.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};

use lowtide_allocator::{Policy, torch::TorchSettings};
use lowtide_trace::{
    Action, Limits, RecordedEvent, RecordedSegment, Recording, Replay, ReplayReport, RerunOptions,
    Site, Snapshot, read_snapshot,
};

use crate::exports::pickle;
use crate::{json_lines, viewer};

/// The snapshots of PyTorch in `tests/fixtures/traces`, by name.
pub(crate) fn pytorch_snapshots() -> Vec<(String, Snapshot)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/traces");
    let entries = fs::read_dir(&folder).expect("a folder of this crate");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|suffix| suffix == "xz"));
    paths.sort();
    assert_eq!(paths.len(), 3, "{paths:?}");
    let read = |path: &PathBuf| {
        let file = BufReader::new(File::open(path).expect("a file of this crate"));
        let snapshot = read_snapshot(file, Limits::default());
        let name = path.file_name().expect("a file").to_string_lossy().into_owned();
        (name, snapshot.unwrap_or_else(|error| panic!("{path:?}: {error}")))
    };
    paths.iter().map(read).collect()
}

fn replay(snapshot: &Snapshot) -> ReplayReport {
    let device = Replay::busiest_device(snapshot);
    Replay::new(snapshot, device).expect("a start").run().expect("a run")
}

#[test]
fn recorded_traces_replay_exactly_from_wherever_they_begin() {
    for (name, whole) in pytorch_snapshots() {
        let device = Replay::busiest_device(&whole);
        let report = replay(&whole);
        println!("{name}: {report:?}");
        assert!(report.addresses_total > 0);
        assert!(report.peak_active_bytes <= report.peak_block_bytes);
        assert!(report.peak_block_bytes <= report.peak_reserved_bytes);

        let events = whole.device_traces[device].len();
        for cut in (0..events).step_by(events / 40 + 1).chain([1, 2, events - 1, events]) {
            let mut snapshot = whole.clone();
            snapshot.device_traces[device].drain(..cut);
            let report = replay(&snapshot);
            assert!(report.is_exact(), "without {cut} events: {report:?}");
        }
    }
}

/// Segments with the sites of their blocks.
fn segments(snapshot: &Snapshot) -> Vec<(RecordedSegment, Vec<Option<&Site>>)> {
    let site = |site: &Option<u32>| site.map(|site| &snapshot.sites[site as usize]);
    let segment = |segment: &RecordedSegment| {
        let sites = segment.block_sites.iter().map(site).collect();
        (RecordedSegment { block_sites: Vec::new(), ..segment.clone() }, sites)
    };
    snapshot.segments.iter().map(segment).collect()
}

/// Events with their sites. A free that completes at once has the time of its completion.
fn events(snapshot: &Snapshot, device: usize) -> Vec<(RecordedEvent, Option<&Site>)> {
    let mut events = snapshot.device_traces[device].clone();
    for index in 1..events.len() {
        let [requested, completed] = &mut events[index - 1..=index] else { unreachable!() };
        if requested.action == Action::FreeRequested
            && completed.action == Action::FreeCompleted
            && requested.address == completed.address
        {
            requested.time_us = completed.time_us;
        }
    }
    events.retain(|event| event.action != Action::Snapshot);
    let site = |event: &RecordedEvent| event.site.map(|site| &snapshot.sites[site as usize]);
    events.iter().map(|event| (RecordedEvent { site: None, ..*event }, site(event))).collect()
}

/// Converts a snapshot to a recording, and the recording to every format and back.
pub(crate) fn check_formats(first: &Snapshot, device: usize) -> Recording {
    let recording = Recording::from_snapshot(first, device).expect("a recording");
    assert_eq!(recording.check(), Ok(()));
    let lines = json_lines::write(&recording);
    assert!(json_lines::read(&lines).expect("what was written") == recording, "lines differ");

    let exported = pickle(&recording);
    viewer::check(&viewer::unpickle(&exported).expect("a pickle")).expect("a snapshot");
    let again = Snapshot::from_pickle(&exported).expect("what was exported");
    assert_eq!(events(&again, 0), events(first, device));
    let mut on_device = first.clone();
    on_device.segments.retain(|segment| segment.device == device);
    assert_eq!(segments(&again).len(), segments(&on_device).len());
    for ((segment, sites), (again, sites_again)) in
        segments(&on_device).into_iter().zip(segments(&again))
    {
        assert_eq!(again, RecordedSegment { device: 0, ..segment });
        for (site, again) in sites.into_iter().zip(sites_again) {
            // A block that was allocated in the trace has the site of its event.
            assert!(site.is_none() || again.is_some());
        }
    }
    recording
}

#[test]
fn recorded_traces_survive_every_format() {
    for (_, snapshot) in pytorch_snapshots() {
        let device = Replay::busiest_device(&snapshot);
        let recording = check_formats(&snapshot, device);
        assert!(recording.events.iter().filter(|event| event.site.is_some()).count() > 1000);
        assert!(recording.sites.iter().all(|site| site.line > 0 || !site.function.is_empty()));
        for site in recording.sites.iter().take(8) {
            println!("{}:{} {}", site.file, site.line, site.function);
        }
    }
}

#[test]
fn pages_reserve_at_most_two_percent_more_than_is_in_use() {
    for (name, snapshot) in pytorch_snapshots() {
        let device = Replay::busiest_device(&snapshot);
        let recording = Recording::from_snapshot(&snapshot, device).expect("a recording");
        let report = recording.rerun(&RerunOptions::default()).expect("a rerun");
        println!("{name}: {report:?}");
        assert_eq!(report.failure, None);
        let (active, reserved) = (report.peak_active_bytes, report.peak_reserved_bytes);
        assert!(active > 0 && reserved * 100 <= active * 102, "{reserved} of {active}");
        let theirs = replay(&snapshot);
        assert_eq!(active, theirs.peak_active_bytes, "both count what is in use alike");
        let torch = Policy::Torch(TorchSettings { limit_bytes: None, ..snapshot.settings });
        let least_bytes = recording.least_capacity_bytes(&Policy::Pages).expect("a rerun");
        assert_eq!(least_bytes, reserved, "the peak is irreducible");
        let torch_bytes = recording.least_capacity_bytes(&torch).expect("a rerun");
        println!("least capacity: pages {least_bytes}, torch {torch_bytes}");
    }
}
