//! Loads that PyTorch has recorded: the memory snapshots in `trace/tests/fixtures/traces`.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::BufReader;
use std::path::Path;

use lowtide_allocator::torch::{BlockState, StreamId};
use lowtide_trace::{Action, Limits, Replay, Snapshot, read_snapshot};

use crate::load::{Load, Script};

/// A load of each snapshot.
pub(crate) fn loads() -> Vec<Load> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../trace/tests/fixtures/traces");
    let entries = fs::read_dir(&folder).expect("a folder of the workspace");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|suffix| suffix == "xz"));
    paths.sort();
    paths.iter().map(|path| load(path)).collect()
}

fn load(path: &Path) -> Load {
    let file = BufReader::new(File::open(path).expect("the trace"));
    let snapshot = read_snapshot(file, Limits::default())
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let name = path.file_name().expect("a file").to_string_lossy();
    let name = name.split('.').next().unwrap_or_default();
    script(&snapshot).finish(format!("trace_{name}"))
}

/// Allocates the blocks that were live before the first event, by address, and then replays every
/// request and free.
fn script(snapshot: &Snapshot) -> Script {
    let device = Replay::busiest_device(snapshot);
    let events = &snapshot.device_traces[device];
    let mut streams = Streams::default();
    let mut script = Script::new();
    let mut live: BTreeMap<u64, u32> = BTreeMap::new();
    for (address, (size_bytes, stream)) in live_at_start(snapshot, device) {
        live.insert(address, script.allocate_on(streams.number(stream), size_bytes));
    }
    script.start_the_clock();
    for event in events {
        match event.action {
            Action::Alloc => {
                let stream = streams.number(event.stream);
                live.insert(event.address, script.allocate_on(stream, event.size_bytes));
            }
            Action::FreeCompleted => {
                let block = live.remove(&event.address);
                script.free(block.expect("a block is freed after it was allocated"));
            }
            _ => {}
        }
    }
    script
}

/// The blocks that are live at the start, by address: requested bytes and stream. Undoes the events
/// from the last to the first.
fn live_at_start(snapshot: &Snapshot, device: usize) -> BTreeMap<u64, (u64, StreamId)> {
    let mut live = BTreeMap::new();
    for segment in snapshot.segments.iter().filter(|segment| segment.device == device) {
        let taken = segment.layout.blocks.iter().filter(|b| b.state != BlockState::Free);
        let stream = segment.layout.stream;
        live.extend(taken.map(|block| (block.address, (block.requested_bytes, stream))));
    }
    for event in snapshot.device_traces[device].iter().rev() {
        match event.action {
            Action::Alloc => drop(live.remove(&event.address)),
            Action::FreeCompleted => {
                live.insert(event.address, (event.size_bytes, event.stream));
            }
            _ => {}
        }
    }
    live
}

/// Numbers for streams, in the order of their first use.
#[derive(Default)]
struct Streams(HashMap<StreamId, u8>);

impl Streams {
    fn number(&mut self, stream: StreamId) -> u8 {
        let next = u8::try_from(self.0.len()).expect("few streams");
        *self.0.entry(stream).or_insert(next)
    }
}
