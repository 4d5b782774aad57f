//! `lowtide shrink`, and recipes that begin with a part of another run's model.

use std::fs;

use serde_json::Value;

use crate::place::Place;
use crate::train::SMALL;

/// A place with the run `whole`, of eight channels.
fn whole() -> Place {
    let place = Place::new();
    place.write("small.toml", SMALL);
    place.train("small.toml --epochs 4 --set model.channels=8", "whole");
    place
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn run_is_made_smaller_trained_on_and_put_in_8_bits_with_a_table_of_it() {
    let place = whole();
    let before = place.files("whole");
    let command = "shrink whole --epochs 3 --out half --quiet --int8-activations";
    let words = place.run(command).check_done();
    assert_eq!(place.files("whole"), before, "the whole model stays as it is");
    for part in [
        "test accuracy",
        "bytes",
        "whole",
        "50 % of channels out",
        "and in int8",
        "and int8 activations",
    ] {
        assert!(words.contains(part), "{part} in:\n{words}");
    }
    let summary = place.json("half/summary.json");
    assert_eq!(summary["predicted_peak_bytes"], summary["measured_peak_bytes"]);
    let rows = place.json("half/shrink.json");
    let row = |at: usize, key: &str| rows[at][key].as_f64().unwrap_or_else(|| panic!("{rows}"));
    // Eight filters of ten parameters, ten outputs of 128 and a bias.
    assert_eq!(row(0, "model_bytes"), 4.0 * (80 + 1290) as f64);
    assert_eq!(row(1, "model_bytes"), 4.0 * (40 + 650) as f64);
    assert!(row(2, "model_bytes") < 0.4 * row(1, "model_bytes"), "{rows}");
    assert_eq!(rows[1]["test_accuracy"], summary["test_accuracy"]);
    assert!(row(2, "test_accuracy") > row(1, "test_accuracy") - 0.02, "{rows}");
    assert_eq!(row(3, "model_bytes"), row(2, "model_bytes"));
    assert!(row(3, "test_accuracy") > row(1, "test_accuracy") - 0.02, "{rows}");
    assert_ne!(rows[3]["test_loss"], rows[2]["test_loss"]);
    let report = String::from_utf8(place.read("half/report.html")).expect("a page");
    for part in ["and in int8", "and int8 activations"] {
        assert!(report.contains(part), "the report has the table");
    }

    // `eval` computes the losses of the table again, without the whole model.
    fs::rename(place.path("whole"), place.path("gone")).expect("a folder");
    let eval = |more: &str| parse(&place.run(&format!("eval half --json {more}")).check_done());
    assert_eq!(eval("")["test_loss"], rows[1]["test_loss"]);
    assert_eq!(eval("--bits int8")["test_loss"], rows[2]["test_loss"]);
    let integers = eval("--bits int8 --int8-activations");
    assert_eq!(integers["test_loss"], rows[3]["test_loss"]);
    let file = place.read("half/model.int8.safetensors");
    assert!(file.len() < place.read("half/model.safetensors").len());
}

#[test]
fn smaller_model_begins_with_what_is_left_of_the_whole_one() {
    let place = whole();
    let json = |arguments: &str| {
        parse(
            &place.run(&format!("shrink whole --epochs 1 --quiet --json {arguments}")).check_done(),
        )
    };
    // If no channels are removed and nothing is learned, the scores stay the same.
    let same = json("--channels 0 --teacher 0 --set optimizer.learning_rate=0.0 --out same");
    assert_eq!(same["shrink"][0]["test_loss"], same["shrink"][1]["test_loss"]);
    assert_eq!(same["shrink"][0]["model_bytes"], same["shrink"][1]["model_bytes"]);
    // A run that was made smaller can be made smaller again.
    json("--out half");
    let quarter = place.run("shrink half --epochs 1 --quiet --json --out quarter").check_done();
    let quarter = parse(&quarter);
    assert_eq!(quarter["shrink"][1]["model_bytes"], 4 * (20 + 330), "{quarter}");
}

#[test]
fn smaller_run_goes_on_from_a_checkpoint_to_the_same_bits_and_is_planned_without_files() {
    let place = whole();
    place.run("shrink whole --epochs 4 --quiet --out through").check_done();
    place.run("shrink whole --epochs 2 --quiet --out cut --checkpoint-every 1epoch").check_done();
    place.run("train --resume cut --epochs 4 --quiet").check_done();
    let [through, cut] = ["through", "cut"].map(|run| place.json(&format!("{run}/summary.json")));
    assert_eq!(cut["final_state_hash"], through["final_state_hash"]);

    place.write("pruned.toml", format!("{SMALL}\n[prune]\nchannels = 0.75\n"));
    let plan = parse(&place.run("plan pruned.toml --json").check_done());
    let summary = place.train("pruned.toml --epochs 1", "pruned");
    assert_eq!(summary["measured_peak_bytes"], plan["predicted_peak_bytes"]);
}

#[test]
fn what_cannot_be_made_smaller_is_refused_and_nothing_is_lost() {
    let place = whole();
    let before = place.files("whole");
    let refused = |arguments: &str, words: &[&str]| {
        place.run(&format!("shrink {arguments} --quiet")).check_refused(1, words);
    };
    refused("none", &["none", "No such file"]);
    refused("whole --out whole", &["--out", "is the run that is made smaller"]);
    refused("whole --out ./whole/../whole", &["--out", "is the run that is made smaller"]);
    refused("whole --out x --channels 1", &["--channels", "1 is not from 0 up to 1"]);
    refused("whole --out x --channels -0.5", &["--channels", "-0.5 is not from 0 up to 1"]);
    refused("whole --out x --teacher 2", &["--teacher", "2 is not from 0 to 1"]);
    refused("whole --out x --teacher nan", &["--teacher", "nan is not from 0 to 1"]);
    refused("whole --out x --set prune.groups=[]", &["prune.groups", "names no layer"]);
    refused("whole --out x --bits int7", &["int7"]);
    let words = ["--int8-activations", "--bits int8"];
    refused("whole --out x --bits nf4 --int8-activations", &words);
    for bits in ["", "--bits q8_0"] {
        place.run(&format!("eval whole {bits} --int8-activations")).check_refused(1, &words);
    }
    refused("whole --out x --set prune.groups=[\"cnov\"]", &["cnov", "conv"]);
    assert_eq!(place.files("whole"), before);
    assert!(!place.path("x").exists());
    let unet = "train digits-unet --set data.shape=[1,16,16] --set prune.channels=0.5 --out x";
    place.run(unet).check_refused(1, &["prune", "simple-cnn"]);
}

#[test]
fn model_without_linear_layers_has_no_int8_activations() {
    let place = Place::new();
    let unet = "digits-unet --set data.shape=[1,16,16] --set model.width=2 --epochs 1";
    place.train(unet, "unet");
    place.run("eval unet --bits int8").check_done();
    let refused = place.run("eval unet --bits int8 --int8-activations");
    refused.check_refused(1, &["--int8-activations", "no linear layer in int8"]);
}
