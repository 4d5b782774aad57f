//! Recipes with a teacher, which is the model of another run.

use crate::place::Place;
use crate::train::SMALL;

/// A place with the run `teacher` and a recipe for its student.
fn taught() -> Place {
    let place = Place::new();
    place.write("small.toml", SMALL);
    place.train("small.toml --epochs 2 --set model.channels=32", "teacher");
    let student = format!("{SMALL}\n[distill]\nteacher = \"teacher\"\nweight = 0.7\n");
    place.write("student.toml", student);
    place
}

#[test]
fn student_is_trained_with_the_teacher_of_a_run_and_evaluated_without_it() {
    let place = taught();
    let teacher = place.files("teacher");
    let summary = place.train("student.toml --epochs 2", "student");
    assert_eq!(place.files("teacher"), teacher);
    assert!(String::from_utf8(place.read("student/recipe.toml")).unwrap().contains("[distill]"));
    // The file has only the student.
    place.train("small.toml --epochs 2", "alone");
    let [student, alone] =
        ["student", "alone"].map(|run| place.read(&format!("{run}/model.safetensors")));
    assert_eq!(student.len(), alone.len());
    assert_ne!(student, alone);
    place.train("student.toml --epochs 2 --set distill.weight=0.0", "none");
    assert_eq!(place.read("none/model.safetensors"), alone);
    // The student is evaluated without the teacher.
    std::fs::rename(place.path("teacher"), place.path("gone")).expect("a folder");
    let json = place.run("eval student --json").check_done();
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["test_accuracy"], summary["test_accuracy"]);
    place.run("train student.toml --out x").check_refused(1, &["teacher", "No such file"]);
}

#[test]
fn run_with_a_teacher_goes_on_from_a_checkpoint_to_the_same_bits() {
    let place = taught();
    place.train("student.toml --epochs 4", "whole");
    place.train("student.toml --epochs 2 --checkpoint-every 1epoch", "cut");
    place.run("train --resume cut --epochs 4 --quiet").check_done();
    let [whole, cut] = ["whole", "cut"].map(|run| place.json(&format!("{run}/summary.json")));
    assert_eq!(cut["final_state_hash"], whole["final_state_hash"]);
    assert_eq!(cut["predicted_peak_bytes"], cut["measured_peak_bytes"]);
}

#[test]
fn plan_counts_the_teacher() {
    let place = taught();
    let peak = |recipe: &str| {
        let json = place.run(&format!("plan {recipe} --json")).check_done();
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        json["predicted_peak_bytes"].as_u64().unwrap_or_else(|| panic!("{json}"))
    };
    assert!(peak("student.toml") > peak("small.toml"));
}

#[test]
fn numbers_out_of_their_range_are_refused_with_their_line() {
    let place = taught();
    let refused = |set: &str, words: &[&str]| {
        place.run(&format!("train student.toml --out x --set {set}")).check_refused(1, words);
    };
    refused("distill.weight=2.0", &["distill.weight", "2 is not from 0 to 1"]);
    refused("distill.temperature=0.0", &["distill.temperature", "0 is not above 0"]);
    refused("distill.teachr=x", &["teachr"]);
}
