//! `lowtide replay` and `lowtide explain`.

use std::fs;

use crate::place::Place;

/// A snapshot made for the tests of trace; see `make_snapshot.py` beside it.
const SNAPSHOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../trace/tests/fixtures/mixed.pickle");

#[test]
fn recorded_snapshot_replays_address_for_address() {
    for file in [SNAPSHOT.to_owned(), format!("{SNAPSHOT}.xz")] {
        let place = Place::new();
        fs::copy(&file, place.path("snapshot")).expect("the fixture of trace");
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
    let mut bytes = fs::read(SNAPSHOT).expect("the fixture of trace");
    bytes.truncate(100);
    place.write("cut", &bytes);
    place
        .run("replay cut --policy torch")
        .check_refused(1, &["cut", "byte 88", "ends in the middle"]);
    place.write("text", "no pickle");
    place.run("replay text --policy torch").check_refused(1, &["text: not a trace", "expected"]);
    place.run("replay nothing --policy torch").check_refused(1, &["nothing", "No such file"]);
}

#[test]
fn both_policies_stand_side_by_side() {
    let place = Place::new();
    fs::copy(SNAPSHOT, place.path("snapshot")).expect("the fixture of trace");
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
    assert_eq!(short.code, Some(2), "{short:?}");
    assert!(short.stdout.contains("1 B missing"), "{short:?}");
}

#[test]
fn trace_that_is_not_served_exits_with_2_after_the_whole_table() {
    let place = Place::new();
    fs::copy(SNAPSHOT, place.path("snapshot")).expect("the fixture of trace");
    let outcome = place.run("replay snapshot --capacity 100MiB");
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(2), ""), "{outcome:?}");
    let words = outcome.stdout;
    // Even the widest cells are separated by two spaces.
    let served = words.lines().find(|line| line.starts_with("served")).expect("a row");
    let cells: Vec<&str> = served.split("  ").map(str::trim).filter(|c| !c.is_empty()).collect();
    assert_eq!(cells.len(), 3, "{served}");
    assert!(cells[1..].iter().all(|cell| cell.starts_with("up to event")), "{served}");
    assert!(cells[1..].iter().all(|cell| cell.matches("missing").count() == 1), "{served}");
    assert!(words.contains("note: missing is what one request lacks"), "{words}");
    for arguments in ["--json", "--json --policy torch", "--policy pages", "--policy pages --least"]
    {
        let outcome = place.run(&format!("replay snapshot --capacity 100MiB {arguments}"));
        assert_eq!(outcome.code, Some(2), "{arguments}: {outcome:?}");
        let is_json = serde_json::from_str::<serde_json::Value>(&outcome.stdout).is_ok();
        assert_eq!(is_json, arguments.contains("--json"), "{outcome:?}");
    }
}

#[test]
fn expandable_segments_are_replayed_by_their_own_rules() {
    let place = Place::new();
    let trace = "fixtures/traces/gpt2_medium_ctx1024_inference.pickle.xz";
    let trace = std::path::Path::new(SNAPSHOT).ancestors().nth(2).expect("a folder").join(trace);
    fs::copy(trace, place.path("snapshot")).expect("the fixture of trace");
    let reserved = |conf: &str| {
        let arguments = format!("replay snapshot --policy torch --json --torch-conf {conf}");
        let json = place.run(&arguments).check_done();
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        json["peak_reserved_bytes"].as_u64().expect("a number")
    };
    assert_eq!(reserved("expandable_segments:False"), 3_196_059_648);
    // The naive model of the policy in the tests of trace gives the same number.
    assert_eq!(reserved("expandable_segments:True"), 2_898_264_064);
}

#[test]
fn report_and_explanation_of_one_run_have_the_same_peak() {
    for budget in ["", "--budget 6MiB", "--budget 3MiB"] {
        let place = Place::new();
        place.run(&format!("train --epochs 1 --out run --trace t.jsonl {budget}")).check_done();
        let report = String::from_utf8(place.read("run/report.html")).expect("UTF-8");
        let (_, peak) = report.split_once("At the peak ").expect("a note");
        let (peak, _) = peak.split_once(" are in use").expect("its end");
        let words = place.run("explain t.jsonl").check_done();
        assert!(words.contains(&format!("Peak: {peak} in use")), "{peak}: {words}");
    }
}

#[test]
fn file_that_is_no_trace_is_told_what_was_expected() {
    let place = Place::new();
    let mut random = 1u32;
    let random: Vec<u8> = std::iter::repeat_with(|| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 24) as u8
    })
    .take(4096)
    .collect();
    let with_head = |head: &[u8]| [head, &random].concat();
    let cases: [(&str, Vec<u8>); 13] = [
        ("page.html", b"<!DOCTYPE html><p>no trace".to_vec()),
        ("image.png", with_head(b"\x89PNG\r\n\x1a\n")),
        ("model.safetensors", with_head(b"\x40\0\0\0\0\0\0\0{\"w\":{}}")),
        ("random", random.clone()),
        ("random.pickle", with_head(b"\x80")),
        ("random.pickle.xz", with_head(b"\xfd")),
        ("random.xz", with_head(b"\xfd7zXZ\0")),
        ("a.json", b"{\"a\":1}".to_vec()),
        ("lines.json", b"{\"a\":1}\n{\"b\":2}\n".to_vec()),
        ("metrics.jsonl", b"{\"step\":1,\"loss\":2.5}\n".to_vec()),
        ("words.pickle", b"\x80\x04}\x8c\x03een\x8c\x03ones.".to_vec()),
        ("list.pickle", b"\x80\x04].".to_vec()),
        ("empty", Vec::new()),
    ];
    for (name, bytes) in cases {
        place.write(name, bytes);
        for command in ["explain", "replay"] {
            let words = [name, "expected", "PyTorch (.pickle, .pickle.xz)", "JSON lines (.jsonl)"];
            place.run(&format!("{command} {name}")).check_refused(1, &words);
        }
    }
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
    // A file written for PyTorch's tools can be read again.
    place.run("explain run.pickle").check_done();
    place.run("replay run.pickle --policy torch").check_done();
}

#[test]
fn mistakes_of_replay_and_explain_are_one_line() {
    let place = Place::new();
    fs::copy(SNAPSHOT, place.path("snapshot")).expect("the fixture of trace");
    place.write("cut.jsonl", "{\"format\":\"lowtide-trace\"");
    place.run("explain cut.jsonl").check_refused(1, &["cut.jsonl", "byte"]);
    place.run("explain snapshot --device 7").check_refused(1, &["snapshot", "device 7"]);
    place.run("explain snapshot --write no/such/folder/page.html").check_refused(1, &["page.html"]);
    place
        .run("replay snapshot --torch-conf max_split_size_mb:x")
        .check_refused(1, &["--torch-conf", "max_split_size_mb"]);
    place.run("replay snapshot --capacity 0").check_refused(1, &["0"]);
    place
        .run("replay snapshot --policy pages --torch-conf max_split_size_mb:20")
        .check_refused(1, &["--torch-conf", "--policy is pages"]);
    place
        .run("explain snapshot --write page.html --write page.html")
        .check_refused(1, &["page.html", "named twice by --write"]);
}
