//! Runs whose files cannot be written: an earlier run stays whole.

#![cfg(target_os = "linux")]

use std::process::Command;

use crate::place::{FILES, Outcome, Place, is_deep, skip};
use crate::resume::LONG;
use crate::train::SMALL;

/// Runs `lowtide` in a shell that limits the size of files to `size_kib`.
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
fn run_without_room_for_what_it_will_leave_is_refused_before_its_first_step() {
    let place = Place::new();
    place.write("small.toml", SMALL);
    place.train("small.toml --epochs 2", "run");
    let files = place.files("run");
    for size_kib in [0, 1, 2, 4, 8, 12] {
        let outcome = limited(&place, size_kib, "train small.toml --seed 1 --out run");
        let line = outcome.check_refused(1, &["run/", "File too large"]);
        assert!(size_kib == 0 || line.contains("have to be free for the"), "{line}");
        assert_eq!(place.files("run"), files, "{size_kib} KiB");
        assert_eq!(place.list("run"), FILES, "{size_kib} KiB");
    }
    limited(&place, 1, "train --epochs 1 --out new").check_failed(1, &["have to be free"]);
    assert_eq!(place.list("."), ["run", "small.toml"]);
}

#[test]
fn metrics_and_report_are_lost_before_the_model_and_that_is_told_once() {
    let place = Place::new();
    place.write("small.toml", SMALL);
    let whole = place.train("small.toml --epochs 20", "whole");
    let arguments = "train small.toml --epochs 20 --quiet --checkpoint-every 1epoch --out run";
    // There is room for the file of the model, but neither for all metrics nor for the report.
    let outcome = limited(&place, 20, arguments);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let notes: Vec<&str> = outcome.stderr.lines().collect();
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes[0].contains("metrics.jsonl: ends before step") && notes[0].contains("too large"));
    assert!(
        notes[1].starts_with("note: the report is not up to date")
            && notes[1].contains("too large")
    );
    let run = place.json("run/summary.json");
    assert_eq!(run["final_state_hash"], whole["final_state_hash"]);
    assert_eq!(place.read("run/model.safetensors"), place.read("whole/model.safetensors"));
    // The metrics end with a whole line, and a page says why there is no report.
    let metrics = String::from_utf8(place.read("run/metrics.jsonl")).expect("UTF-8");
    assert!(metrics.len() > 10 << 10 && metrics.ends_with("}\n"), "{} bytes", metrics.len());
    let page = String::from_utf8(place.read("run/report.html")).expect("UTF-8");
    assert!(page.contains("no room"), "{page}");
    assert_eq!(place.list("run/checkpoints").last().expect("one"), "step-00000120");
    place.run("eval run").check_done();
    place.run("train --resume run --epochs 21 --quiet").check_done();
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
fn run_that_has_begun_on_a_disk_of_any_size_ends_with_its_model_and_last_checkpoint() {
    // The metrics, checkpoints and report of the first run fill the disk. The second run goes on
    // where there is room.
    const SCRIPT: &str = r#"
        set -e
        for size in $(cat sizes); do
            mount -t tmpfs -o size=${size}k none disk
            code=0
            "$0" train small.toml --epochs 20 --checkpoint-every 7steps --quiet --out disk/run \
                >words 2>complaint || code=$?
            cp -R disk left-$size
            cp complaint left-$size/complaint
            umount disk
            echo "$code"
        done
    "#;
    let place = Place::new();
    place.write("small.toml", SMALL);
    let whole = place.train("small.toml --epochs 20", "whole");
    let longer = place.train("small.toml --epochs 21", "longer");
    let sizes: Vec<String> =
        (40..480).step_by(if is_deep() { 8 } else { 40 }).map(|size| size.to_string()).collect();
    place.write("sizes", sizes.join(" "));
    let Some(output) = with_own_mounts(&place, SCRIPT) else {
        return skip("disks of any size", "this user may not mount a file system");
    };
    let (mut begun, mut lossy) = (0, 0);
    for (size, code) in sizes.iter().zip(output.lines()) {
        let left = format!("left-{size}");
        let complaint = String::from_utf8(place.read(&format!("{left}/complaint"))).expect("UTF-8");
        if code == "1" {
            assert!(complaint.contains("No space left") && complaint.lines().count() == 1);
            assert_eq!(place.list(&left), ["complaint"], "{size} KiB: {complaint}");
            assert_eq!(begun, 0, "{size} KiB are too little, and less was not: {complaint}");
            continue;
        }
        assert_eq!(code, "0", "{size} KiB: {complaint}");
        begun += 1;
        lossy += usize::from(!complaint.is_empty());
        let run = place.json(&format!("{left}/run/summary.json"));
        assert_eq!(run["final_state_hash"], whole["final_state_hash"], "{size} KiB: {complaint}");
        let model = place.read(&format!("{left}/run/model.safetensors"));
        assert!(model == place.read("whole/model.safetensors"), "{size} KiB");
        let names = place.list(&format!("{left}/run/checkpoints"));
        assert_eq!(names.last().expect("one"), "step-00000120", "{size} KiB: {complaint}");
        place.run(&format!("train --resume {left}/run --epochs 21 --quiet")).check_done();
        let run = place.json(&format!("{left}/run/summary.json"));
        assert_eq!(run["final_state_hash"], longer["final_state_hash"], "{size} KiB");
    }
    println!("{begun} of {} disks were large enough, {lossy} not for all", sizes.len());
    assert!(begun < sizes.len() && lossy > 0 && lossy < begun, "{lossy} of {begun}: {sizes:?}");
}

#[test]
fn disk_that_something_else_fills_costs_no_checkpoint_that_is_there() {
    // The first time, the run goes on to its end; the second time it is killed later. Inspections
    // stop the run, so that it does not end between two of them on a busy machine.
    const SCRIPT: &str = r#"
        set -e
        mount -t tmpfs -o size=1m none disk
        checkpoints=disk/run/.partial/checkpoints
        stop_at_step() {
            until ls $checkpoints 2>none | grep -q $1; do
                kill -CONT $!
                sleep 0.01
                kill -STOP $!
            done
        }
        begin() {
            "$0" train long.toml --quiet --out disk/run >words 2>$1 &
            stop_at_step step-
            cat /dev/zero >disk/filler 2>full || true
            kill -CONT $!
        }
        begin complaint
        wait $!
        cp -R disk/run ended
        rm -R disk/run disk/filler
        begin notes
        stop_at_step 'step-00000[12]'
        kill -KILL $!
        wait $! || true
        ls $checkpoints >names
        rm disk/filler
        "$0" train --resume disk/run --quiet >words
        cp -R disk/run resumed
    "#;
    let place = Place::new();
    place.write("long.toml", LONG);
    place.train("long.toml", "whole");
    let whole = place.json("whole/summary.json");
    let Some(_) = with_own_mounts(&place, SCRIPT) else {
        return skip("disk that something else fills", "this user may not mount a file system");
    };
    for run in ["ended", "resumed"] {
        let summary = place.json(&format!("{run}/summary.json"));
        assert_eq!(summary["final_state_hash"], whole["final_state_hash"], "{run}");
        let names = place.list(&format!("{run}/checkpoints"));
        assert_eq!(names.last().expect("one"), "step-00000240", "{run}: {names:?}");
    }
    let complaint = String::from_utf8(place.read("complaint")).expect("UTF-8");
    assert!(complaint.contains("metrics.jsonl: ends before step"), "{complaint}");
    assert!(complaint.contains("No space left"), "{complaint}");
    let names = String::from_utf8(place.read("names")).expect("UTF-8");
    assert!(names.contains("step-000001") || names.contains("step-000002"), "{names}");
}

/// The output of a shell script that may mount file systems, with a folder `disk` for them. `None`
/// if this user may not mount.
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
