//! Help, and readers of standard output that go away or accept nothing.

use std::process::Stdio;

use crate::place::{Outcome, Place};
use crate::train::SMALL;

#[test]
fn help_names_every_command_and_flag() {
    let place = Place::new();
    let help = place.run("--help").check_done();
    for word in ["train", "plan", "eval", "explain", "replay", "memory budget"] {
        assert!(help.contains(word), "no {word} in:\n{help}");
    }
    let help = place.run("train --help").check_done();
    for word in ["--epochs", "--batch-size", "--seed", "--budget", "--out", "--fault-at", "--trace"]
    {
        assert!(help.contains(word), "no {word} in:\n{help}");
    }
    assert!(place.run("eval --help").check_done().contains("--json"));
    for command in ["train", "plan", "eval", "explain", "replay"] {
        let help = place.run(&format!("{command} --help")).check_done();
        assert!(help.lines().all(|line| line.len() <= 100), "{help}");
    }
    let version = place.run("--version").check_done();
    assert_eq!(version, format!("lowtide {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn reader_that_has_gone_is_no_error() {
    let place = Place::new();
    place.write("small.toml", SMALL);
    place.train("small.toml --epochs 1", "run");
    for arguments in ["train small.toml --epochs 1 --out again", "plan", "eval run", "--help"] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let outcome = Outcome::of(place.command(arguments).stdout(writer));
        assert_eq!(outcome.code, Some(0), "{arguments}: {outcome:?}");
        assert!(!outcome.stderr.contains("panicked"), "{arguments}: {outcome:?}");
    }
    place.run("eval again").check_done();
}

#[test]
fn closed_standard_error_does_not_end_a_run() {
    let place = Place::new();
    place.write("small.toml", SMALL);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = place.command("train small.toml --epochs 1 --out run --fault-at 3");
    assert_eq!(Outcome::of(command.stderr(writer)).code, Some(0));
    place.run("eval run").check_done();
}

#[cfg(target_os = "linux")]
#[test]
fn full_standard_output_is_an_error() {
    let place = Place::new();
    for arguments in ["plan", "--help", "train --epochs 1 --out run"] {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("a device");
        let outcome = Outcome::of(place.command(arguments).stdout(Stdio::from(full)));
        outcome.check_failed(1, &["standard output", "No space left"]);
    }
    // Only the text is lost.
    place.run("eval run").check_done();
}
