//! Runs into the same folder: one at a time, and each replaces the earlier one as a whole.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::place::{FILES, Place};
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
