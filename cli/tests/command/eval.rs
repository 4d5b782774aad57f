//! `lowtide eval`.

use std::fs;

use crate::place::Place;
use crate::train::SMALL;

/// A place with the trained run `run`.
fn trained() -> Place {
    let place = Place::new();
    place.write("small.toml", SMALL);
    place.train("small.toml --epochs 1", "run");
    place
}

#[test]
fn evaluation_gives_the_accuracy_of_the_summary() {
    let place = trained();
    let summary = place.json("run/summary.json");
    let words = place.run("eval run").check_done();
    let accuracy = summary["test_accuracy"].as_f64().expect("a number");
    assert!(words.contains(&format!("test accuracy    {accuracy:.4}\n")), "{words}");

    let json = place.run("eval run --json").check_done();
    assert_eq!(json.lines().count(), 1, "{json}");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["test_accuracy"], summary["test_accuracy"]);
    assert_eq!(json["test_loss"], summary["test_loss"]);
    assert_eq!(json["samples"], 360);
}

#[test]
fn small_budget_evaluates_in_smaller_parts() {
    let place = trained();
    let accuracy = place.json("run/summary.json")["test_accuracy"].clone();
    let json = place.run("eval run --json --budget 192KiB").check_done();
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["test_accuracy"], accuracy);
    place.run("eval run --budget 1KiB").check_refused(2, &["out of memory", "missing"]);
}

#[test]
fn weights_in_few_bits_are_told_with_the_bytes_of_before() {
    let place = trained();
    let bytes = |arguments: &str| {
        let json = place.run(&format!("eval run --json {arguments}")).check_done();
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        ["model_bytes", "stored_bytes"].map(|name| json[name].as_u64().expect("a number"))
    };
    let [whole, stored] = bytes("");
    assert_eq!(whole, stored);
    let [int8, before] = bytes("--bits int8");
    assert_eq!(before, whole);
    assert!(int8 < whole / 2, "{int8} of {whole}");

    let words = place.run("eval run --bits int8").check_done();
    assert!(words.contains(&format!("model bytes      {int8}, of {whole}\n")), "{words}");
    let words = place.run("eval run").check_done();
    assert!(words.contains(&format!("model bytes      {whole}\n")), "{words}");
}

#[test]
fn folders_without_a_run_are_refused() {
    let place = trained();
    fs::create_dir(place.path("empty")).expect("a folder");
    place.run("eval none").check_refused(1, &["none: No such file"]);
    place.run("eval empty").check_refused(1, &["recipe.toml: No such file"]);
    place.run("eval small.toml").check_refused(1, &["small.toml: not a directory"]);
    place.run("eval").check_refused(1, &["<RUN_DIR>"]);
}

#[test]
fn runs_with_broken_files_are_refused() {
    let place = trained();
    let (recipe, model) = (place.read("run/recipe.toml"), place.read("run/model.safetensors"));
    let check = |words: &[&str]| drop(place.run("eval run").check_refused(1, words));

    place.write("run/recipe.toml", "[train]\nepochs = 1\nx\n");
    check(&["recipe.toml, line 3 (x)"]);
    let setting = recipe.iter().position(|&byte| byte == b'=').expect("a setting");
    place.write("run/recipe.toml", &recipe[..=setting]);
    check(&["recipe.toml"]);
    place.write("run/recipe.toml", "[model]\nchannels = 8\n");
    check(&["model.safetensors", "conv.weight", "[4, 1, 3, 3]", "[8, 1, 3, 3]"]);
    place.write("run/recipe.toml", &recipe);

    for len in [0, 4, 100, model.len() / 2, model.len() - 1] {
        place.write("run/model.safetensors", &model[..len]);
        check(&["model.safetensors"]);
    }
    fs::remove_file(place.path("run/model.safetensors")).expect("it was there");
    check(&["model.safetensors: No such file"]);
    place.write("run/model.safetensors", &model);
    place.run("eval run").check_done();
}

#[test]
fn model_that_is_not_the_file_of_its_run_is_refused_wherever_it_is_read() {
    let place = trained();
    place.write("taught.toml", format!("{SMALL}\n[distill]\nteacher = \"run\"\n"));
    place.write("pruned.toml", format!("{SMALL}\n[prune]\nrun = \"run\"\n"));
    let model = place.read("run/model.safetensors");
    let mut flipped = model.clone();
    // A bit of the exponent of the last weight.
    *flipped.last_mut().expect("a weight") ^= 0x40;
    place.write("run/model.safetensors", &flipped);
    let before = place.files("run");
    for command in [
        "eval run",
        "eval run --bits int8",
        "shrink run --out x",
        "train taught.toml --out x",
        "train pruned.toml --out x",
    ] {
        let words = ["run/model.safetensors", "is not the file that the run wrote", "XXH3"];
        place.run(command).check_refused(1, &words);
        assert!(!place.path("x").exists(), "{command}");
    }
    assert_eq!(place.files("run"), before);
    place.write("run/model.safetensors", &model);
    place.run("eval run").check_done();
}

#[test]
fn model_of_a_run_that_names_no_checksum_is_read_unchecked() {
    let place = trained();
    let mut model = place.read("run/model.safetensors");
    *model.last_mut().expect("a weight") ^= 0x40;
    place.write("run/model.safetensors", model);
    place.run("eval run").check_refused(1, &["is not the file that the run wrote"]);
    // Earlier versions wrote such a summary.
    let mut summary = place.json("run/summary.json");
    let written = summary.as_object_mut().expect("an object").remove("model_file");
    assert_eq!(written.expect("of this version")["bytes"].as_u64(), Some(model_bytes(&place)));
    place.write("run/summary.json", summary.to_string());
    place.run("eval run").check_done();
    place.write("run/summary.json", "{");
    place.run("eval run").check_refused(1, &["summary.json", "is damaged"]);
    // A failed run leaves a model without a summary.
    fs::remove_file(place.path("run/summary.json")).expect("it was there");
    place.run("eval run").check_done();
}

fn model_bytes(place: &Place) -> u64 {
    place.read("run/model.safetensors").len() as u64
}
