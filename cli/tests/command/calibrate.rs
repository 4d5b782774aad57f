//! `lowtide calibrate`, and the use of the rates that it stores.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::place::{Outcome, Place};
use crate::train::SMALL;

/// A folder with a small recipe, and a cache with a calibration of one thread.
struct Calibrated {
    place: Place,
    kept: Value,
}

/// The command with a separate cache, which has no calibration at first.
fn command(place: &Place, arguments: &str) -> Command {
    let mut command = place.command(arguments);
    command.env_remove("LOWTIDE_RATES").env("XDG_CACHE_HOME", place.path("cache"));
    command
}

fn run(place: &Place, arguments: &str) -> Outcome {
    Outcome::of(&mut command(place, arguments))
}

impl Calibrated {
    fn new() -> Calibrated {
        let place = Place::new();
        place.write("small.toml", SMALL);
        let said = run(&place, "calibrate --threads 1 --json").check_done();
        let kept = serde_json::from_str(&said).expect("JSON");
        Calibrated { place, kept }
    }

    fn plan(&self) -> Outcome {
        run(&self.place, "plan small.toml --threads 1 --budget 1MiB")
    }

    /// Checks that the plan uses nominal rates, and that a line gives the reason.
    #[track_caller]
    fn check_nominal(&self, words: &[&str]) {
        let outcome = self.plan();
        for word in words {
            assert!(outcome.stderr.contains(word), "no {word:?} in {outcome:?}");
        }
        assert_eq!(outcome.stderr.lines().count(), usize::from(!words.is_empty()), "{outcome:?}");
        assert!(outcome.check_done().contains("by nominal rates"));
    }
}

#[test]
fn rates_are_kept_for_the_plans_of_this_machine() {
    let Calibrated { place, kept } = &Calibrated::new();
    let file = kept["file"].as_str().expect("a path");
    assert!(Path::new(file).starts_with(place.path("cache/lowtide")), "{file}");
    let mut object: Value = serde_json::from_slice(&place.read(file)).expect("JSON");
    object["file"] = kept["file"].clone();
    assert_eq!(object, *kept);
    let classes = kept["classes"].as_object().expect("classes");
    assert_eq!(classes.len(), 13);
    let rates = classes.values().flat_map(|class| class.as_object().expect("rates").values());
    assert!(rates.into_iter().all(|rate| rate.as_f64() > Some(0.0)), "{kept}");

    let day = kept["measured_on"].as_str().expect("a day");
    let arguments = "plan small.toml --threads 1 --budget 1MiB";
    let words = run(place, arguments).check_done();
    assert!(words.contains(&format!("times           by the rates measured on {day}")), "{words}");
    let said = run(place, &format!("{arguments} --json")).check_done();
    let plan: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(plan["rates_measured_on"], day);
    assert!(plan["step_seconds"].as_f64() > Some(0.0), "{plan}");
    assert!(plan["survey"][0]["step_seconds"].as_f64() > Some(0.0), "{plan}");
    let words = run(place, "plan small.toml --threads 1 --budget 1MiB,2MiB").check_done();
    assert!(words.contains(&format!("time of a step by the rates measured on {day}")), "{words}");
    // Two plans with the same file of rates print the same text.
    assert_eq!(run(place, arguments).check_done(), run(place, arguments).check_done());

    let summary =
        run(place, "train small.toml --threads 1 --budget 1MiB --epochs 1 --out run --json");
    let summary: Value = serde_json::from_str(&summary.check_done()).expect("JSON");
    assert_eq!(summary["micro_batch"], plan["micro_batch"]);
    run(place, "eval run --threads 1").check_done();
}

#[test]
fn rates_of_other_threads_are_not_used() {
    let calibrated = Calibrated::new();
    let other = run(&calibrated.place, "plan small.toml --threads 2 --budget 1MiB");
    assert_eq!(other.stderr, "");
    assert!(other.check_done().contains("by nominal rates"));
}

#[test]
fn file_that_cannot_be_used_is_named_and_times_are_nominal() {
    let calibrated = Calibrated::new();
    let Calibrated { place, kept } = &calibrated;
    let file = kept["file"].as_str().expect("a path");
    let name = file.rsplit('/').next().expect("a name");
    let mut foreign = kept.clone();
    foreign["processor"] = "Z80".into();
    place.write(file, foreign.to_string());
    calibrated.check_nominal(&["lowtide: note: ", name, "Z80", "`lowtide calibrate`"]);
    place.write(file, "{\"processor\": ");
    calibrated.check_nominal(&["lowtide: note: ", name, "holds no rates", "`lowtide calibrate`"]);
    std::fs::remove_file(file).expect("there it is");
    calibrated.check_nominal(&[]);
}

#[test]
fn variable_names_another_file_or_none() {
    let place = Place::new();
    place.write("small.toml", SMALL);
    let with = |file: &str, arguments: &str| {
        Outcome::of(command(&place, arguments).env("LOWTIDE_RATES", file))
    };
    let words = with("mine/rates.json", "calibrate --threads 1").check_done();
    assert!(words.contains("kept in mine/rates.json"), "{words}");
    assert!(words.contains("convolution") && words.contains("launch"), "{words}");
    assert!(!place.path("cache").exists());
    let plan = "plan small.toml --threads 1 --budget 1MiB";
    assert!(with("mine/rates.json", plan).check_done().contains("by the rates measured on"));
    assert!(with("", plan).check_done().contains("by nominal rates"));
    let missing = with("none.json", plan);
    assert!(missing.stderr.contains("none.json"), "{missing:?}");
    assert!(missing.check_done().contains("by nominal rates"));
    with("", "calibrate --threads 1").check_refused(1, &["LOWTIDE_RATES"]);
}
