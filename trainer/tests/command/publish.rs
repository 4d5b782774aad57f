//! Runs into one folder: one at a time, and each replaces the earlier one as a whole.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::place::{FILES, Place, skip};
use crate::train::SMALL;

#[test]
fn second_run_into_a_folder_is_refused_and_the_first_is_not_disturbed() {
    let place = Place::new();
    place.write("small.toml", SMALL);
    let mut first = place.command("train small.toml --epochs 1000000 --out run");
    let mut first =
        first.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the command starts");
    let mut words = BufReader::new(first.stderr.take().expect("piped")).lines();
    let is_first_epoch = |line: &std::io::Result<String>| {
        line.as_ref().is_ok_and(|line| line.starts_with("epoch 1/"))
    };
    assert!(words.any(|line| is_first_epoch(&line)), "the run ended early");

    let process = format!("process {}", first.id());
    let second = place.run("train small.toml --epochs 1 --out run");
    second.check_refused(1, &["run", &process, "is training into this folder", "--out"]);

    #[cfg(unix)]
    {
        let pid = first.id().to_string();
        let interrupt = std::process::Command::new("kill").args(["-INT", &pid]).status();
        assert!(interrupt.expect("kill is there").success());
    }
    words.for_each(drop);
    assert!(first.wait().expect("it ends").success());
    assert_eq!(place.list("run"), [&["checkpoints"], &FILES[..]].concat());
    place.run("eval run").check_done();
    place.train("small.toml --epochs 1", "run");
}

#[cfg(unix)]
#[test]
fn folder_of_a_killed_run_is_free_again() {
    let place = Place::new();
    place.write("small.toml", SMALL);
    let mut killed = place.command("train small.toml --epochs 1000000 --out run");
    let mut killed =
        killed.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the command starts");
    let mut words = BufReader::new(killed.stderr.take().expect("piped")).lines();
    assert!(words.any(|line| line.is_ok_and(|line| line.starts_with("epoch 1/"))));
    killed.kill().expect("it runs");
    killed.wait().expect("it ends");
    place.train("small.toml --epochs 1", "run");
    assert_eq!(place.list("run"), FILES);
}

/// `strace` kills the process before its n-th rename has an effect.
#[cfg(target_os = "linux")]
#[test]
fn run_killed_at_any_rename_leaves_the_earlier_run_or_the_new_one() {
    use std::process::Command;
    let place = Place::new();
    place.write("small.toml", SMALL);
    place.write("wide.toml", "[model]\nchannels = 6\n");
    let traced = |nth: u32| {
        let inject = format!("inject=rename,renameat,renameat2:signal=KILL:when={nth}");
        let mut command = Command::new("strace");
        command.args(["-f", "-o", "/dev/null", "-e", &inject]);
        command.arg(env!("CARGO_BIN_EXE_lowtide"));
        command.args("train wide.toml --epochs 1 --out run".split(' '));
        command.current_dir(place.path(".")).stdout(Stdio::null()).stderr(Stdio::null());
        command.status()
    };
    if traced(1_000_000).is_err() {
        return skip("run killed at any rename", "there is no strace");
    }
    let mut killed = 0;
    for nth in 1.. {
        place.train("small.toml --epochs 1", "run");
        let earlier = place.files("run");
        let ended = traced(nth).expect("it started a moment ago");
        if ended.success() {
            break;
        }
        killed += 1;
        let said = place.run("eval run --json").check_done();
        let now = place.files("run");
        let is_earlier = now == earlier;
        assert!(is_earlier || now.iter().zip(&earlier).all(|(a, b)| a != b), "rename {nth}");
        let score: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        let summary = place.json("run/summary.json");
        assert_eq!(score["test_accuracy"], summary["test_accuracy"], "rename {nth}");
    }
    assert!(killed >= 6, "only {killed} renames");
}

#[test]
fn trace_that_cannot_be_written_is_told_before_the_first_step() {
    let place = Place::new();
    place.write("small.toml", SMALL);
    let refused = place.run("train small.toml --out run --trace none/such/t.jsonl");
    let line = refused.check_refused(1, &["none/such/t.jsonl", "No such file"]);
    assert!(!line.contains(".tmp"), "{line}");
    place.run("train small.toml --trace none/such/t.jsonl").check_refused(1, &["No such file"]);
    assert_eq!(place.list("."), ["small.toml"]);
}
