//! Bytes of a stranger as a memory snapshot. They are refused, or read and imported; the imported
//! recording holds its laws, is exported, and survives as lines. Never a panic, never much memory.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lowtide_trace::{Limits, Recording, Replay, Snapshot, read_snapshot};

fuzz_target!(|bytes: &[u8]| {
    // The limits are the command's. libFuzzer's own memory limit must allow them.
    let Ok(snapshot) = read_snapshot(bytes, Limits::default()) else { return };
    let device = Replay::busiest_device(&snapshot);
    let Ok(recording) = Recording::from_snapshot(&snapshot, device) else { return };
    recording.check().expect("what was imported holds its laws");
    let mut lines = Vec::new();
    recording.write_json_lines(&mut lines).expect("memory is writable");
    let again = Recording::read_json_lines(lines.as_slice(), Limits::default());
    assert_eq!(again.expect("what was written"), recording);
    let mut pickle = Vec::new();
    if recording.write_pickle(&mut pickle).is_ok() {
        Snapshot::from_pickle(&pickle).expect("what was exported");
    }
});
