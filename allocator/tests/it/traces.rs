//! Recorded traces replay exactly, from wherever they begin.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};

use lowtide_allocator::trace::{Limits, Replay, ReplayReport, Snapshot, read_snapshot};

fn read(path: &Path) -> Snapshot {
    let file = BufReader::new(File::open(path).expect("the trace"));
    read_snapshot(file, Limits::default()).unwrap_or_else(|error| panic!("{path:?}: {error}"))
}

/// Traces of PyTorch that are not part of the repository; none, with a word, if they are not there.
fn shared_traces(law: &str) -> Vec<PathBuf> {
    let folder = std::env::var_os("LOWTIDE_TRACES").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/traces"),
        PathBuf::from,
    );
    let Ok(entries) = fs::read_dir(&folder) else {
        println!("skipped: {law}: no traces in {}", folder.display());
        return Vec::new();
    };
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.to_string_lossy().contains(".pickle"));
    paths.sort();
    paths
}

fn replay(snapshot: &Snapshot) -> ReplayReport {
    let device = Replay::busiest_device(snapshot);
    Replay::new(snapshot, device).expect("a start").run().expect("a run")
}

#[test]
fn recorded_traces_replay_exactly_from_wherever_they_begin() {
    for path in shared_traces("recorded_traces_replay_exactly_from_wherever_they_begin") {
        let whole = read(&path);
        let device = Replay::busiest_device(&whole);
        let report = replay(&whole);
        println!("{}: {report:?}", path.display());
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
