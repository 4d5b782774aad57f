//! Lines of a stranger as a recording. They are refused, or give a recording that holds its laws,
//! is written back unchanged, and can be exported.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lowtide_trace::{Limits, Recording, Snapshot};

fuzz_target!(|bytes: &[u8]| {
    let Ok(recording) = Recording::read_json_lines(bytes, Limits::default()) else { return };
    recording.check().expect("what was read holds its laws");
    let mut lines = Vec::new();
    recording.write_json_lines(&mut lines).expect("memory is writable");
    let again = Recording::read_json_lines(lines.as_slice(), Limits::default());
    assert_eq!(again.expect("what was written"), recording);
    let mut pickle = Vec::new();
    if recording.write_pickle(&mut pickle).is_ok() {
        let snapshot = Snapshot::from_pickle(&pickle).expect("what was exported");
        let _ = Recording::from_snapshot(&snapshot, 0);
    }
});
