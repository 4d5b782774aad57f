//! The files of `--trace` and `explain --write`: they are known to be writable before any work.

use std::fs;

use crate::place::Place;
use crate::train::SMALL;

/// A snapshot made for the tests of trace; see `make_snapshot.py` beside it.
const SNAPSHOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../trace/tests/fixtures/mixed.pickle");

fn place_with_snapshot() -> Place {
    let place = Place::new();
    fs::copy(SNAPSHOT, place.path("snapshot")).expect("the fixture of trace");
    place
}

#[test]
fn unknown_suffixes_are_refused_with_the_known_ones() {
    let place = place_with_snapshot();
    for name in ["p.svg", "p", "p.json", ".", "p.jsonl.gz"] {
        let words = [name, ".html", ".pickle", ".pkl", ".jsonl"];
        let explain = place.run(&format!("explain snapshot --write {name}"));
        explain.check_refused(1, &[&words[..], &["--write"]].concat());
        let train = place.run(&format!("train --out run --trace {name}"));
        train.check_refused(1, &[&words[..], &["--trace"]].concat());
    }
    assert_eq!(place.list("."), ["snapshot"]);
}

#[test]
fn every_known_suffix_is_written() {
    let place = place_with_snapshot();
    for name in ["a.html", "a.pickle", "a.pkl", "a.jsonl"] {
        place.run(&format!("explain snapshot --write {name}")).check_done();
        let bytes = place.read(name);
        let begins = |head: &[u8]| bytes.starts_with(head);
        assert!(match name {
            "a.html" => begins(b"<!doctype html>") || begins(b"<!DOCTYPE html>"),
            "a.jsonl" => begins(b"{\"format\":\"lowtide-trace\""),
            _ => begins(b"\x80"),
        });
    }
    assert_eq!(place.list("."), ["a.html", "a.jsonl", "a.pickle", "a.pkl", "snapshot"]);
}

#[test]
fn outputs_that_cannot_be_are_named_as_the_user_named_them() {
    let place = place_with_snapshot();
    fs::create_dir(place.path("folder.html")).expect("a folder");
    for (name, problem) in
        [("no/such/t.jsonl", "No such file"), ("folder.html", "directory"), ("/proc/t.pkl", "")]
    {
        let explained = place.run(&format!("explain snapshot --write {name}"));
        let trained = place.run(&format!("train --out run --trace {name}"));
        // The line must not contain the name of a temporary file.
        for refused in [explained, trained] {
            let line = refused.check_refused(1, &[&format!("lowtide: {name}: "), problem]);
            assert!(!line.contains(".tmp") && !line.contains(".lowtide"), "{line}");
            assert!(!line.contains(" at path"), "{line}");
        }
    }
    assert_eq!(place.list("."), ["folder.html", "snapshot"]);
    assert!(place.list("folder.html").is_empty());
}

#[test]
fn file_that_cannot_be_explained_leaves_the_earlier_output() {
    let place = Place::new();
    place.write("no-trace", "text");
    place.write("page.html", "mine");
    place.run("explain no-trace --write page.html").check_refused(1, &["no-trace"]);
    assert_eq!(place.read("page.html"), b"mine");
    assert_eq!(place.list("."), ["no-trace", "page.html"]);
}

#[cfg(unix)]
#[test]
fn traces_have_the_mode_of_any_new_file() {
    use std::os::unix::fs::PermissionsExt;
    let place = place_with_snapshot();
    place.write("plain", "");
    place.write("small.toml", SMALL);
    place.run("explain snapshot --write page.html --write lines.jsonl").check_done();
    place.run("train small.toml --epochs 1 --out run --trace trace.pickle").check_done();
    let mode = |name| fs::metadata(place.path(name)).expect("there").permissions().mode();
    for name in ["page.html", "lines.jsonl", "trace.pickle"] {
        assert_eq!(mode(name), mode("plain"), "{name}");
    }
}

#[cfg(unix)]
#[test]
fn links_to_outputs_stay_and_their_targets_are_replaced() {
    let place = place_with_snapshot();
    place.write("small.toml", SMALL);
    fs::create_dir(place.path("kept")).expect("a folder");
    let names = ["page.html", "trace.jsonl", "written.pickle", "both.html"];
    for name in names {
        let target = format!("kept/{name}");
        std::os::unix::fs::symlink(target, place.path(name)).expect("a link");
    }
    for _ in 0..2 {
        place.train("small.toml --epochs 1 --report page.html --trace trace.jsonl", "run");
        place.run("explain snapshot --write written.pickle").check_done();
        place.train("small.toml --epochs 1", "other");
        place.run("compare run other --page both.html").check_done();
        for name in names {
            assert!(place.path(name).is_symlink(), "{name}");
            assert!(place.read(&format!("kept/{name}")).len() > 100, "{name}");
        }
        assert_eq!(place.list("kept").len(), names.len(), "{:?}", place.list("kept"));
    }
}

#[cfg(unix)]
#[test]
fn pipes_get_each_output_once_and_stay() {
    use std::os::unix::fs::FileTypeExt;
    let place = Place::new();
    place.write("small.toml", SMALL);
    let readers = ["page.html", "trace.jsonl"].map(|name| {
        place.make_pipe(name);
        let path = place.path(name);
        (name, std::thread::spawn(move || fs::read(path)))
    });
    place.train("small.toml --epochs 2 --report page.html --trace trace.jsonl", "run");
    for (name, reader) in readers {
        // If the pipe was replaced, the reader would wait for ever.
        let metadata = fs::symlink_metadata(place.path(name)).expect("there");
        assert!(metadata.file_type().is_fifo(), "{name}");
        let read = reader.join().expect("no panic").expect("readable");
        match name {
            "page.html" => assert!(read == place.read("run/report.html"), "{} bytes", read.len()),
            _ => assert!(read.starts_with(b"{\"format\":\"lowtide-trace\"")),
        }
    }
}
