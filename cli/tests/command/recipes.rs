//! Shipped recipes, the commands that show them, and the commands that list and compare runs.

use std::fs;

use crate::place::{Outcome, Place};

/// The shipped recipes with built-in data.
const TRAINED: [(&str, &str, &[&str]); 8] = [
    ("digits-mlp", "", &["test_accuracy"]),
    ("digits-deep-cnn", "--set model.channels=[4,4,8]", &["test_accuracy"]),
    ("digits-resnet", "--set model.width=2 --set data.shape=[3,16,16]", &["test_accuracy"]),
    ("digits-vit", "--set model.blocks=1 --set model.width=16", &["test_accuracy"]),
    ("digits-unet", "--set model.width=2", &["test_accuracy", "test_iou"]),
    ("text-gpt", "--set model.blocks=1 --set model.width=16", &["test_perplexity"]),
    ("text-lstm", "--set model.hidden=16", &["test_perplexity"]),
    ("text-seq2seq", "--set model.width=16", &["test_accuracy", "test_perplexity"]),
];

/// Recipes whose data is not built in, and the file that is missing.
const ELSEWHERE: [(&str, &str); 4] = [
    ("mnist", "mnist/train-images-idx3-ubyte"),
    ("cifar10-resnet", "cifar-10-batches-bin/data_batch_1.bin"),
    ("folder-resnet", "images"),
    ("chat-gpt", "chats.jsonl"),
];

#[test]
fn every_recipe_of_data_that_ships_trains_and_names_its_metrics() {
    for (name, smaller, metrics) in TRAINED {
        let place = Place::new();
        let summary = place.train(&format!("{name} --epochs 1 {smaller}"), "run");
        assert_eq!(summary["predicted_peak_bytes"], summary["measured_peak_bytes"], "{name}");
        for metric in metrics {
            let value = summary[metric].as_f64().unwrap_or(f64::NAN);
            assert!(value.is_finite() && value > 0.0, "{name}: {metric} in {summary}");
        }
        let evaluated = place.run("eval run --json").check_done();
        let evaluated: serde_json::Value = serde_json::from_str(&evaluated).expect("JSON");
        for metric in metrics {
            let [a, b] = [&summary, &evaluated].map(|of| of[metric].as_f64().expect("a number"));
            assert!((a - b).abs() <= 1e-5 * a.abs(), "{name}: {metric} is {a}, evaluated {b}");
        }
    }
}

#[test]
fn every_recipe_that_ships_is_listed_checked_and_planned() {
    let place = Place::new();
    let list = place.run("recipes").check_done();
    let names: Vec<&str> = list.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(names.len() >= 16, "{list}");
    for name in names {
        let text = place.run(&format!("recipes {name}")).check_done();
        assert!(text.contains("[data]") && text.contains("[model]"), "{text}");
        if let Some((_, file)) = ELSEWHERE.iter().find(|(of, _)| *of == name) {
            place.run(&format!("check {name}")).check_refused(1, &[file, "No such file"]);
            continue;
        }
        let check = place.run(&format!("check {name}")).check_done();
        assert!(check.contains("parameters") && check.contains("samples"), "{check}");
    }
    let check = place.run("check gpt2-124m").check_done();
    assert!(check.contains("124439808"), "{check}");
    place.run("recipes none").check_refused(1, &["none", "`lowtide recipes`"]);
}

#[test]
fn folder_called_like_a_recipe_hides_it_only_if_it_is_a_model() {
    let place = Place::new();
    fs::create_dir(place.path("mnist")).expect("a folder");
    for command in ["check", "train", "plan"] {
        let missing = "mnist/train-images-idx3-ubyte";
        place.run(&format!("{command} mnist")).check_refused(1, &[missing]);
    }
    place.write("mnist/config.json", "{}");
    place.run("plan mnist").check_refused(1, &["config.json"]);
}

#[test]
fn model_that_is_not_for_the_data_is_refused_with_its_reason() {
    let place = Place::new();
    let check = |arguments: &str, words: &[&str]| {
        place.run(&format!("check {arguments}")).check_refused(1, words);
    };
    check("digits --set model.kind=gpt", &["gpt is for tokens"]);
    check("text-gpt --set model.kind=unet", &["unet is for images"]);
    check("digits-resnet --set data.shape=[1,32,32]", &["three channels", "data.shape"]);
    check("digits-resnet --set model.depth=19", &["model.depth", "18, 34 or 50"]);
    check("digits-vit --set model.heads=5", &["5 does not divide"]);
    check("digits-unet --set data.shape=[1,8,8]", &["16 divides"]);
    check("text-gpt --set data.context=100000", &["data.context", "65536"]);
    check("text-gpt --set data.file=none.txt", &["none.txt", "No such file"]);
}

#[test]
fn mistaken_keys_suggest_the_near_one() {
    let place = Place::new();
    let check = |text: &str, words: &[&str]| {
        place.write("wrong.toml", text);
        place.run("check wrong.toml").check_refused(1, words);
    };
    check("[train]\nepcohs = 3\n", &["line 2", "did you mean `epochs`?"]);
    check("[model]\nkind = \"resent\"\n", &["line 2", "did you mean `resnet`?"]);
    check("[model]\nkind = \"gpt\"\nhead = 3\n", &["line 3", "did you mean `heads`?"]);
    check("[model]\nkind = \"gpt\"\nheads = \"two\"\n", &["line 3", "a whole number"]);
}

#[test]
fn key_may_need_another_that_is_set_after_it() {
    let place = Place::new();
    let kind = "check digits --set schedule.kind=cosine";
    place.run(&format!("{kind} --set schedule.steps=9 --set train.epochs=2")).check_done();
    place.run(kind).check_refused(1, &["--set schedule.kind=cosine", "steps"]);
}

#[test]
fn help_knows_commands_and_every_key_of_a_recipe() {
    let place = Place::new();
    let help = place.run("help recipe").check_done();
    for word in ["[train]", "epochs = 60", "kind = \"seq2seq\"", "checkpoint_every", "betas"] {
        assert!(help.contains(word), "no {word} in {help}");
    }
    assert!(place.run("help").check_done().contains("compare"));
    assert!(place.run("help train").check_done().contains("--resume"));
    place.run("help nothing").check_refused(1, &["nothing"]);

    let help = place.run("help metrics").check_done();
    place.train("digits --epochs 1 --set model.channels=4 --fault-at 40", "run");
    let metrics = fs::read_to_string(place.path("run/metrics.jsonl")).expect("metrics");
    for line in metrics.lines() {
        let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
        for key in line.as_object().expect("an object").keys() {
            let of_set = format!("`{}_", key.split('_').next().unwrap_or_default());
            let is_named = help.contains(&format!("`{key}`"));
            assert!(is_named || of_set == "`test_", "no word on {key}");
        }
    }
}

#[test]
fn runs_are_listed_and_compared() {
    let place = Place::new();
    assert!(place.run("runs .").check_done().contains("no run in"));
    place.run("runs none").check_refused(1, &["none", "No such file"]);
    place.train("digits --epochs 1 --set model.channels=4", "all/run-9");
    place.train("digits --epochs 1 --set model.channels=5 --seed 3", "all/run-10");
    let runs = place.run("runs all").check_done();
    let lines: Vec<&str> = runs.lines().collect();
    assert_eq!(lines.len(), 3, "{runs}");
    assert!(lines[1].starts_with("run-9 ") && lines[2].starts_with("run-10 "), "{runs}");
    assert!(lines[1].contains("simple-cnn on digits") && lines[1].contains("test accuracy 0."));
    let table = place.run("compare all/run-9 all/run-10").check_done();
    for word in ["model.channels", "train.seed", "Test accuracy, best", "Measured peak"] {
        assert!(table.contains(word), "no {word} in {table}");
    }
    assert!(!table.contains("train.epochs"), "{table}");
    let json = place.run("compare all/run-9 all/run-10 --json").check_done();
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["recipe"]["model.channels"], serde_json::json!(["4", "5"]));
    assert_eq!(json["values"][1]["steps"], serde_json::json!(6));
    place.run("compare all/run-9 all/none").check_refused(1, &["all/none", "No such file"]);
    for again in ["all/run-9", "all/../all/run-9/"] {
        let words = [again, "is named twice"];
        place.run(&format!("compare all/run-9 all/run-10 {again}")).check_refused(1, &words);
    }
    place.run("compare all/run-9 all").check_refused(1, &["all/metrics.jsonl", "No such file"]);

    let said = place.run("compare all/run-9 all/run-10 --page both.html").check_done();
    assert!(said.contains("both.html"), "{said}");
    let page = fs::read_to_string(place.path("both.html")).expect("a page");
    assert!(page.contains("all/run-9") && page.contains("model.channels"), "{page}");
}

/// Writes the files of a run of a stranger whose metric has this name.
fn write_run(place: &Place, folder: &str, metric: &str) {
    fs::create_dir_all(place.path(folder)).expect("a folder");
    let file = |name: &str| format!("{folder}/{name}");
    place.write(&file("recipe.toml"), "[train]\nepochs = 1\n");
    let evaluation = serde_json::json!({ "epoch": 1, "step": 1, metric: 0.5 });
    place.write(&file("metrics.jsonl"), format!("{evaluation}\n"));
    let summary = serde_json::json!({ "steps": 1, metric: 0.5, "budget_from": metric });
    place.write(&file("summary.json"), summary.to_string());
}

#[test]
fn names_of_any_length_are_listed_and_compared_in_lines_that_can_be_read() {
    let place = Place::new();
    write_run(&place, "all/short", "test_loss");
    write_run(&place, "all/long", &format!("test_{}", "x".repeat(70_000)));
    for arguments in ["runs all", "compare all/short all/long"] {
        let table = place.run(arguments).check_done();
        assert!(table.contains("xxx…"), "{arguments}");
        let longest = table.lines().map(|line| line.chars().count()).max().unwrap_or_default();
        assert!(longest < 1000, "{arguments}: a line of {longest} characters");
    }
    let json = place.run("runs all --json").check_done();
    assert!(json.contains(&"x".repeat(70_000)), "programs read the whole name");
}

#[test]
fn names_of_a_stranger_do_not_control_the_terminal() {
    let place = Place::new();
    write_run(&place, "all/plain", "test_loss");
    write_run(&place, "all/\u{1b}[31mred", "test_\u{9b}32mgreen\u{202e}");
    let red = place.path("all/\u{1b}[31mred");
    for command in ["runs all", "compare all/plain"] {
        for (flags, escape) in [("", "\\u{9b}32m"), (" --json", "\\u009b32m")] {
            let (first, rest) = command.split_once(' ').expect("two words");
            let mut command_line = place.command(&format!("{first}{flags} {rest}"));
            if first == "compare" {
                command_line.arg(&red);
            }
            let shown = Outcome::of(&mut command_line).check_done();
            let has_control = shown.chars().any(|char| char.is_control() && char != '\n');
            assert!(!has_control, "{command}{flags}: {shown:?}");
            assert!(shown.contains(escape) && shown.contains("[31mred"), "{shown}");
        }
    }
    place.run("runs \u{1b}[31mnone").check_refused(1, &["[31mnone", "No such file"]);
}
