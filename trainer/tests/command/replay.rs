//! `lowtide replay`.

use std::fs;

use crate::place::Place;

/// A snapshot made for the allocator's tests; see `make_snapshot.py` beside it.
const SNAPSHOT: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../allocator/tests/fixtures/mixed.pickle");

#[test]
fn recorded_snapshot_replays_address_for_address() {
    for file in [SNAPSHOT.to_owned(), format!("{SNAPSHOT}.xz")] {
        let place = Place::new();
        fs::copy(&file, place.path("snapshot")).expect("the allocator's fixture");
        let json = place.run("replay snapshot --policy torch --json").check_done();
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        for kind in ["addresses", "segments"] {
            let total = json[format!("{kind}_total")].as_u64().expect("a number");
            assert!(total > 0, "{json}");
            assert_eq!(json[format!("{kind}_equal")], total, "{json}");
        }
        assert_eq!(json["final_blocks_equal"], true, "{json}");
        for number in ["events", "peak_active_bytes", "peak_reserved_bytes", "source_calls"] {
            assert!(json[number].is_u64(), "{number}: {json}");
        }
        let words = place.run("replay snapshot --policy torch").check_done();
        assert!(words.contains("as recorded"), "{words}");
    }
}

#[test]
fn damaged_snapshot_is_named_with_the_byte() {
    let place = Place::new();
    let mut bytes = fs::read(SNAPSHOT).expect("the allocator's fixture");
    bytes.truncate(100);
    place.write("cut", &bytes);
    place
        .run("replay cut --policy torch")
        .check_refused(1, &["cut", "byte 88", "ends in the middle"]);
    place.write("text", "no pickle");
    place.run("replay text --policy torch").check_refused(1, &["text", "byte 0"]);
    place.run("replay nothing --policy torch").check_refused(1, &["nothing", "No such file"]);
}
