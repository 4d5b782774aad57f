//! `lowtide train` without errors.

use crate::place::{FILES, Place};

/// The quickest recipe that uses all parts of a run.
pub(crate) const SMALL: &str = "[model]\nchannels = 4\n";

#[test]
fn default_run_learns_the_digits_and_leaves_all_files() {
    let place = Place::new();
    let words = place.run("train").check_done();
    assert_eq!(place.list("runs"), ["digits-1"]);
    assert_eq!(place.list("runs/digits-1"), FILES);
    assert!(words.contains("runs/digits-1"), "{words}");
    let summary = place.json("runs/digits-1/summary.json");
    let accuracy = summary["test_accuracy"].as_f64().expect("a number");
    assert!(accuracy >= 0.97, "{summary}");
    assert!(words.contains(&format!("{accuracy:.4}")), "{words}");
    assert_eq!(summary["predicted_peak_bytes"], summary["measured_peak_bytes"]);
    assert_eq!(summary["retried_steps"], 0);
    assert_eq!(summary["epochs"], 60);
    assert_eq!(summary["micro_batch"], 256);
    for key in ["train_loss_last", "test_loss", "seconds"] {
        assert!(summary[key].as_f64().is_some_and(|number| number > 0.0), "{key}: {summary}");
    }
    for key in ["steps", "budget_bytes", "allocations"] {
        assert!(summary[key].as_u64().is_some_and(|number| number > 0), "{key}: {summary}");
    }
    let hash = summary["final_state_hash"].as_str().expect("a string");
    assert!(hash.len() == 16 && u64::from_str_radix(hash, 16).is_ok(), "{hash}");

    let metrics = String::from_utf8(place.read("runs/digits-1/metrics.jsonl")).expect("UTF-8");
    assert_eq!(metrics.lines().count(), 360 + 60);
    let page = String::from_utf8(place.read("runs/digits-1/report.html")).expect("UTF-8");
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains(hash), "not this run's page");
}

#[test]
fn runs_without_a_name_are_numbered() {
    let place = Place::new();
    place.write("small.toml", SMALL);
    place.run("train small.toml --epochs 1").check_done();
    place.run("train small.toml --epochs 1").check_done();
    assert_eq!(place.list("runs"), ["digits-1", "digits-2"]);
}

#[test]
fn same_command_gives_the_same_hash_and_another_seed_another() {
    let place = Place::new();
    let hash = |arguments, out| place.train(arguments, out)["final_state_hash"].clone();
    let first = hash("--epochs 1", "first");
    assert_eq!(hash("--epochs 1", "again"), first);
    assert_eq!(hash("--epochs 1 --seed 0", "default"), first);
    assert_ne!(hash("--epochs 1 --seed 1", "other"), first);
}

#[test]
fn recipe_of_a_run_with_the_largest_seed_can_be_read() {
    let place = Place::new();
    place.write("small.toml", SMALL);
    place.train("small.toml --epochs 1 --seed 9223372036854775807", "run");
    place.run("check run/recipe.toml").check_done();
    place.run("eval run").check_done();
}

#[test]
fn flags_change_the_recipe_and_the_recipe_of_a_run_repeats_it() {
    let place = Place::new();
    place.write("small.toml", SMALL);
    // 1437 samples are 15 batches of at most 100.
    let first = place.train("small.toml --epochs 2 --batch-size 100 --seed 5", "first");
    assert_eq!((&first["steps"], &first["batch_size"]), (&30.into(), &100.into()));
    let recipe = String::from_utf8(place.read("first/recipe.toml")).expect("UTF-8");
    for line in ["channels = 4", "epochs = 2", "batch_size = 100", "seed = 5"] {
        assert!(recipe.lines().any(|found| found == line), "no {line} in:\n{recipe}");
    }
    let again = place.train("first/recipe.toml", "again");
    assert_eq!(first["final_state_hash"], again["final_state_hash"]);
    assert_eq!(place.read("first/recipe.toml"), place.read("again/recipe.toml"));
}

#[test]
fn every_optimizer_of_a_recipe_trains() {
    let place = Place::new();
    let mut hashes = Vec::new();
    for kind in ["adam", "adamw", "sgd"] {
        place.write("recipe.toml", format!("[optimizer]\nkind = \"{kind}\"\n{SMALL}"));
        let summary = place.train("recipe.toml --epochs 2", kind);
        assert_eq!(summary["predicted_peak_bytes"], summary["measured_peak_bytes"], "{kind}");
        hashes.push(summary["final_state_hash"].clone());
    }
    hashes.dedup();
    assert_eq!(hashes.len(), 3, "{hashes:?}");
}

#[test]
fn run_folder_is_made_with_its_parents_and_replaced_by_the_next_run() {
    let place = Place::new();
    place.write("small.toml", SMALL);
    let first = place.train("small.toml --epochs 1", "deep/er/run");
    place.write("deep/er/run/notes.txt", "mine");
    let second = place.train("small.toml --epochs 1 --seed 1", "deep/er/run");
    assert_ne!(first["final_state_hash"], second["final_state_hash"]);
    let mut names = place.list("deep/er/run");
    names.retain(|name| name != "notes.txt");
    assert_eq!(names, FILES);
    assert_eq!(place.read("deep/er/run/notes.txt"), b"mine");
}

#[cfg(unix)]
#[test]
fn files_of_a_run_are_as_readable_as_the_user_wants() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    place.write("small.toml", SMALL);
    place.train("small.toml --epochs 1", "run");
    let mode = |name: &str| {
        let metadata = std::fs::metadata(place.path(name)).expect("a file");
        metadata.permissions().mode()
    };
    for name in FILES {
        assert_eq!(mode(&format!("run/{name}")), mode("small.toml"), "{name}");
    }
}

#[cfg(unix)]
#[test]
fn interrupted_run_ends_in_good_order_and_keeps_what_it_has() {
    use std::io::{BufRead, BufReader, Read};
    use std::process::{Command, Stdio};
    let place = Place::new();
    place.write("small.toml", SMALL);
    // A number of epochs that takes longer than any test waits.
    let mut command = place.command("train small.toml --epochs 1000000 --out run");
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts");
    let mut words = BufReader::new(child.stderr.take().expect("piped")).lines();
    let first_epoch =
        words.find(|line| line.as_ref().is_ok_and(|line| line.starts_with("epoch 1/")));
    assert!(first_epoch.is_some(), "the run ended early: {:?}", child.wait());
    let interrupt = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(interrupt.expect("kill is there").success());
    words.for_each(drop);
    let mut said = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut said).expect("UTF-8");
    assert!(child.wait().expect("it ends").success(), "{said}");
    assert!(said.starts_with("interrupted: "), "{said}");
    assert_eq!(place.list("run"), [&["checkpoints"], &FILES[..]].concat());
    let summary = place.json("run/summary.json");
    let steps = summary["steps"].as_u64().expect("a number");
    assert!((6..6_000_000).contains(&steps), "{summary}");
    // An epoch ends with its evaluation, which the last epoch may not have reached.
    let metrics = String::from_utf8(place.read("run/metrics.jsonl")).expect("UTF-8");
    let over = metrics.matches("\"test_accuracy\":").count() as u64;
    assert_eq!(summary["epochs"], over, "{summary}");
    assert!(over == steps / 6 || steps.is_multiple_of(6) && over + 1 == steps / 6, "{summary}");
    place.run("eval run").check_done();
}

#[test]
fn run_that_is_not_finite_ends_at_once_and_leaves_the_earlier_run() {
    let place = Place::new();
    place.write("small.toml", SMALL);
    place.train("small.toml --epochs 1", "run");
    let earlier = place.files("run");
    let optimizer = "[optimizer]\nkind = \"adam\"\nlearning_rate = 1e30\n";
    place.write("wild.toml", format!("{SMALL}{optimizer}"));
    let wild = place.run("train wild.toml --epochs 3 --out run --json");
    let answer: serde_json::Value = serde_json::from_str(&wild.stdout).expect("JSON");
    assert_eq!(answer["not_finite"]["step"], 2, "{answer}");
    let layer = answer["not_finite"]["began_at"].as_str().expect("found");
    assert!(layer.contains(" at nn/src/") && layer.ends_with("the result is NaN"), "{layer}");
    wild.check_failed(1, &["step 2 was not committed", "the loss is"]);
    assert_eq!(place.files("run"), earlier);

    place.write("skip.toml", format!("{SMALL}{optimizer}[train]\nnon_finite = {{ skip = 2 }}\n"));
    let skipped = place.run("train skip.toml --epochs 3 --out run");
    assert!(skipped.stderr.contains("step 3: skipped, it was not finite"), "{skipped:?}");
    skipped.check_failed(1, &["step 4 was not committed", "3 steps in a row"]);
    place.write("ignore.toml", format!("{SMALL}{optimizer}[train]\nnon_finite = \"ignore\"\n"));
    place.run("train ignore.toml --epochs 3 --out other").check_done();
}

#[test]
fn run_that_ends_with_a_loss_that_is_nan_leaves_the_earlier_run() {
    let place = Place::new();
    place.write("small.toml", SMALL);
    place.train("small.toml --epochs 1", "run");
    let earlier = place.files("run");
    // All steps but the first are skipped, fewer than the loss scaler allows in a row.
    let optimizer = "[optimizer]\nkind = \"adam\"\nlearning_rate = 1e30\n";
    place.write("half.toml", format!("{SMALL}{optimizer}[train]\nprecision = \"f16\"\n"));
    let half = "train half.toml --epochs 3 --checkpoint-every 6steps --out run --json";
    let words = ["the loss of the evaluation after step 18 is NaN", "learning rate"];
    place.run(half).check_failed(1, &words);
    assert_eq!(place.files("run"), earlier);
    // The checkpoint of the last step is no way around it.
    place.run("train --resume run --quiet").check_failed(1, &words);
    assert_eq!(place.files("run"), earlier);
    place.run(&format!("{half} --set train.non_finite=ignore")).check_done();
}

#[test]
fn keys_set_on_the_command_line_are_those_of_a_file() {
    let place = Place::new();
    let optimizer = "[optimizer]\nkind = \"sgd\"\nlearning_rate = 0.1\nmomentum = 0.5\n";
    place.write("both.toml", format!("{SMALL}{optimizer}[train]\nepochs = 2\n"));
    place.write("part.toml", format!("{SMALL}{optimizer}"));
    let whole = place.train("both.toml", "whole");
    let sets = "--set optimizer.momentum=0.5 --set train.epochs=2";
    place.write("part.toml", format!("{SMALL}[optimizer]\nkind = \"sgd\"\nlearning_rate = 0.1\n"));
    let set = place.train(&format!("part.toml {sets}"), "set");
    assert_eq!(set["final_state_hash"], whole["final_state_hash"]);
    assert_eq!(place.read("set/recipe.toml"), place.read("whole/recipe.toml"));

    // Without a file, a set key keeps the defaults of its table; a kind resets the table.
    place.train("--set model.channels=4 --set optimizer.learning_rate=0.02 --epochs 1", "small");
    let recipe = String::from_utf8(place.read("small/recipe.toml")).expect("UTF-8");
    assert!(recipe.contains("channels = 4\n") && recipe.contains("learning_rate = 0.02\n"));
    place.train("--set model.channels=4 --set optimizer.kind=lion --epochs 1", "lion");
}

#[test]
fn report_is_written_where_it_is_asked_for_and_in_the_folder() {
    let place = Place::new();
    place.write("small.toml", SMALL);
    place.train("small.toml --epochs 1 --report page.html", "run");
    let page = String::from_utf8(place.read("page.html")).expect("UTF-8");
    assert_eq!(page.as_bytes(), place.read("run/report.html"));
    assert!(page.contains("finished: step 6 of 6, epoch 1 of 1"));
    assert!(page.contains("channels = 4") && page.contains("small.toml --epochs 1"));
    assert!(page.contains("State hash") && page.contains(" UTC</dd>"));
    let words = ["missing/page.html", "No such file"];
    place.run("train small.toml --out other --report missing/page.html").check_failed(1, &words);
    assert_eq!(place.list("."), ["page.html", "run", "small.toml"]);
}

#[test]
fn quiet_run_says_nothing_on_its_way_and_has_the_same_bits_with_other_threads() {
    let place = Place::new();
    place.write("small.toml", SMALL);
    let loud = place.run("train small.toml --epochs 2 --out loud");
    assert!(loud.stderr.contains("epoch 2/2"), "{loud:?}");
    let quiet = place.run("train small.toml --epochs 2 --out quiet --quiet --threads 3");
    assert_eq!(quiet.stderr, "");
    assert!(quiet.check_done().contains("state hash"));
    let hash = |out: &str| place.json(&format!("{out}/summary.json"))["final_state_hash"].clone();
    assert_eq!(hash("loud"), hash("quiet"));
    let page = String::from_utf8(place.read("quiet/report.html")).expect("UTF-8");
    assert!(page.contains("on 3 threads"), "the report says how many computed");
}
