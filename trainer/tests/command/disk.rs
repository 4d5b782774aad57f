//! Runs whose files cannot be written: an earlier run stays whole.

#![cfg(target_os = "linux")]

use std::process::Command;

use crate::place::{FILES, Outcome, Place, skip};
use crate::train::SMALL;

/// `lowtide` in a shell that lets no file grow beyond `size_kib`.
fn limited(place: &Place, size_kib: u64, arguments: &str) -> Outcome {
    let script = format!(
        "trap '' XFSZ; ulimit -f {}; exec \"$0\" {arguments}",
        // POSIX counts in blocks of 512 bytes.
        size_kib * 2
    );
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(script).arg(env!("CARGO_BIN_EXE_lowtide")).current_dir(place.path("."));
    Outcome::of(&mut shell)
}

#[test]
fn run_that_cannot_write_leaves_the_earlier_run_whole() {
    let place = Place::new();
    place.write("small.toml", SMALL);
    place.train("small.toml --epochs 2", "run");
    let files = place.files("run");
    let check = |size_kib, epochs, words: &[&str], names: &[&str]| {
        let arguments = format!("train small.toml --epochs {epochs} --seed 1 --out run");
        limited(&place, size_kib, &arguments).check_failed(1, words);
        assert_eq!(place.files("run"), files, "{size_kib} KiB");
        assert_eq!(place.list("run"), names, "{size_kib} KiB");
    };
    check(1, 2, &["model.safetensors", "File too large"], &FILES);
    // In the middle and at the end, what has been learned is kept.
    let with_unfinished = [&FILES[..], &["unfinished"]].concat();
    for (epochs, file) in [(40, "metrics.jsonl"), (2, "report.html")] {
        check(8, epochs, &[file, "File too large"], &with_unfinished);
        place.run("eval run/unfinished").check_done();
    }
    limited(&place, 1000, "train small.toml --epochs 2 --seed 1 --out run").check_done();
    assert_ne!(place.files("run"), files);
}

#[test]
fn run_that_cannot_write_leaves_no_folder() {
    let place = Place::new();
    limited(&place, 1, "train --epochs 1 --out run").check_failed(1, &["model.safetensors"]);
    assert!(place.list(".").is_empty(), "{:?}", place.list("."));
}

#[test]
fn full_disk_leaves_the_earlier_run_whole() {
    const SCRIPT: &str = r#"
        set -e
        mount -t tmpfs -o size=512k none disk
        "$0" train --epochs 1 --out disk/run >words 2>&1
        cat disk/run/* >before
        cat /dev/zero >disk/filler 2>full || true
        code=0
        "$0" train --epochs 1 --seed 1 --out disk/run >words 2>complaint || code=$?
        cat disk/run/* >after
        cmp before after
        ls -A disk/run >names
        echo "$code"
    "#;
    let place = Place::new();
    let Some(output) = with_own_mounts(&place, SCRIPT) else {
        return skip("full disk", "this user may not mount a file system");
    };
    assert_eq!(output, "1");
    let complaint = String::from_utf8(place.read("complaint")).expect("UTF-8");
    let line = complaint.lines().next_back().expect("a line");
    assert!(line.starts_with("lowtide: disk/run/") && line.contains("No space left"), "{line}");
    let names = String::from_utf8(place.read("names")).expect("UTF-8");
    assert_eq!(names.lines().collect::<Vec<_>>(), FILES);
}

#[test]
fn metrics_that_fill_the_disk_do_not_cost_what_was_learned() {
    // What fills the disk goes first: the model needs its room.
    const SCRIPT: &str = r#"
        set -e
        mount -t tmpfs -o size=96k none disk
        code=0
        "$0" train small.toml --epochs 100000 --out disk/run >words 2>complaint || code=$?
        "$0" eval disk/run/unfinished >evaluated
        ls -A disk/run/unfinished >names
        echo "$code"
    "#;
    let place = Place::new();
    place.write("small.toml", SMALL);
    let Some(output) = with_own_mounts(&place, SCRIPT) else {
        return skip("metrics that fill the disk", "this user may not mount a file system");
    };
    assert_eq!(output, "1");
    let complaint = String::from_utf8(place.read("complaint")).expect("UTF-8");
    let line = complaint.lines().next_back().expect("a line");
    assert!(line.contains("metrics.jsonl") && line.contains("No space left"), "{line}");
    assert!(complaint.contains("is kept in disk/run/unfinished"), "{complaint}");
}

/// What a shell script prints that may mount file systems; the first is for a folder `disk`. `None`
/// if this user may mount none.
fn with_own_mounts(place: &Place, script: &str) -> Option<String> {
    std::fs::create_dir(place.path("disk")).expect("a folder");
    let run = |script: &str| {
        let mut shell = Command::new("unshare");
        shell.args(["-rm", "sh", "-c", script, env!("CARGO_BIN_EXE_lowtide")]);
        shell.current_dir(place.path(".")).output().ok()
    };
    run("mount -t tmpfs -o size=512k none disk").filter(|output| output.status.success())?;
    let output = run(script).expect("it started a moment ago");
    assert!(output.status.success(), "{output:?}");
    Some(String::from_utf8(output.stdout).expect("UTF-8").trim().to_owned())
}
