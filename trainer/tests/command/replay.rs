//! `lowtide replay` and `lowtide explain`.

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

#[test]
fn both_policies_stand_side_by_side() {
    let place = Place::new();
    fs::copy(SNAPSHOT, place.path("snapshot")).expect("the allocator's fixture");
    let json = place.run("replay snapshot --least --json").check_done();
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let number = |policy: &str, name: &str| json[policy][name].as_u64().expect("a number");
    for policy in ["pages", "torch"] {
        assert!(number(policy, "peak_reserved_bytes") >= number(policy, "peak_active_bytes"));
        assert!(number(policy, "least_capacity_bytes") <= number(policy, "peak_reserved_bytes"));
        assert_eq!(json[policy]["failure"], serde_json::Value::Null);
    }
    let words = place.run("replay snapshot --least").check_done();
    for row in ["pages", "torch", "peak reserved", "least capacity", "every request"] {
        assert!(words.contains(row), "{row}: {words}");
    }
    let least = number("pages", "least_capacity_bytes");
    let within = place.run(&format!("replay snapshot --policy pages --capacity {least}B --json"));
    assert!(within.check_done().contains("\"failure\":null"));
    let short = place.run(&format!("replay snapshot --policy pages --capacity {}B", least - 1));
    let words = short.check_done();
    assert!(words.contains("1 B missing"), "{words}");
}

#[test]
fn trace_of_a_training_is_explained_and_served_again() {
    let place = Place::new();
    place.run("train --epochs 1 --trace run.jsonl --out run").check_done();
    let words = place.run("explain run.jsonl --write page.html --write run.pickle").check_done();
    for part in ["activation", "parameter", "written: page.html", "written: run.pickle"] {
        assert!(words.contains(part), "{part}: {words}");
    }
    let page = fs::read_to_string(place.path("page.html")).expect("the page");
    assert!(page.starts_with("<!doctype html>") || page.starts_with("<!DOCTYPE html>"));
    let json = place.run("replay run.jsonl --policy pages --json").check_done();
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["addresses_equal"], json["addresses_total"], "{json}");
    assert_eq!(json["final_blocks_equal"], true, "{json}");
    // What was written for PyTorch's tools can be read again.
    place.run("explain run.pickle").check_done();
    place.run("replay run.pickle --policy torch").check_done();
}

#[test]
fn mistakes_of_replay_and_explain_are_one_line() {
    let place = Place::new();
    fs::copy(SNAPSHOT, place.path("snapshot")).expect("the allocator's fixture");
    place.write("cut.jsonl", "{\"format\":\"lowtide-trace\"");
    place.run("explain cut.jsonl").check_refused(1, &["cut.jsonl", "byte"]);
    place.run("explain snapshot --device 7").check_refused(1, &["snapshot", "device 7"]);
    place.run("explain snapshot --write no/such/folder/page.html").check_refused(1, &["page.html"]);
    place
        .run("replay snapshot --torch-conf max_split_size_mb:x")
        .check_refused(1, &["--torch-conf", "max_split_size_mb"]);
    place.run("replay snapshot --capacity 0").check_refused(1, &["0"]);
}
