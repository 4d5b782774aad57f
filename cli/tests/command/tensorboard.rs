//! Event files, checked with TensorBoard's own reader if it is installed.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::place::{Place, skip};

#[test]
fn event_files_have_every_number_of_the_metrics() {
    const NAME: &str = "event_files_have_every_number_of_the_metrics";
    let place = Place::new();
    place.train("digits --epochs 2 --set model.channels=4 --tensorboard logs/a", "run");
    let files: Vec<PathBuf> = fs::read_dir(place.path("logs/a"))
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    assert_eq!(files.len(), 1);
    let lines = fs::read_to_string(place.path("run/metrics.jsonl")).expect("metrics");
    let lines: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let bytes = fs::read(&files[0]).expect("an event file");
    // One record for the head, one for the plan, and one for each line.
    assert_eq!(records(&bytes), 2 + lines.len());

    let python = std::env::var_os("LOWTIDE_PYTHON").unwrap_or_else(|| "python3".into());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/command/read_events.py");
    let has_reader = Command::new(&python).args(["-c", "import tensorboard"]).output();
    if !has_reader.is_ok_and(|output| output.status.success()) {
        return skip(NAME, "no Python with tensorboard; LOWTIDE_PYTHON names one");
    }
    let output = Command::new(&python)
        .arg(script)
        .arg(place.path("logs/a"))
        .output()
        .expect("Python starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let expected = |key: &str| -> Vec<(u64, f64)> {
        let with = lines.iter().filter(|line| line.get(key).is_some());
        with.map(|line| (line["step"].as_u64().expect("a step"), line[key].as_f64().expect("f64")))
            .collect()
    };
    for (tag, key) in [
        ("train/loss", "loss"),
        ("train/learning_rate", "learning_rate"),
        ("memory/reserved_peak_bytes", "reserved_peak_bytes"),
        ("test/loss", "test_loss"),
        ("test/accuracy", "test_accuracy"),
    ] {
        let found = read[tag].as_array().unwrap_or_else(|| panic!("no {tag} in {read}"));
        let expected = expected(key);
        assert_eq!(found.len(), expected.len(), "{tag}");
        for (found, (step, value)) in found.iter().zip(expected) {
            assert_eq!(found[0].as_u64(), Some(step), "{tag}");
            let found = found[1].as_f64().expect("a number");
            assert!((found - value).abs() <= 1e-6 * value.abs(), "{tag}: {found} for {value}");
        }
    }
}

/// Number of records of an event file. The lengths of records must lead exactly to its end.
fn records(bytes: &[u8]) -> usize {
    let (mut rest, mut count) = (bytes, 0);
    while !rest.is_empty() {
        let length = u64::from_le_bytes(rest[..8].try_into().expect("eight bytes")) as usize;
        rest = &rest[8 + 4 + length + 4..];
        count += 1;
    }
    count
}

#[test]
fn folder_that_cannot_be_made_is_refused_before_the_first_step() {
    let place = Place::new();
    fs::write(place.path("file"), "").expect("room");
    let refused = place.run("train digits --epochs 1 --tensorboard file/logs --out run");
    refused.check_refused(1, &["file/logs", "Not a directory"]);
    assert!(!place.path("run").exists());
}
