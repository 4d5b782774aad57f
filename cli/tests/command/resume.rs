//! Interrupted runs resume from their checkpoints to the bits of an uninterrupted run.

use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use crate::place::{FILES, Place, is_deep};
use crate::train::SMALL;

/// A recipe of 240 steps with momentum, a schedule and clipping.
pub(crate) const LONG: &str = "\
[model]
channels = 4
[optimizer]
kind = \"sgd\"
learning_rate = 0.05
momentum = 0.9
[schedule]
kind = \"cosine\"
steps = 240
[train]
epochs = 40
clip_norm = 1.0
checkpoint_every = \"7steps\"
";

/// Metrics without the values that depend on the process: its time, and its peak so far.
fn metrics(place: &Place, run: &str) -> Vec<serde_json::Value> {
    let text = String::from_utf8(place.read(&format!("{run}/metrics.jsonl"))).expect("UTF-8");
    let line = |line: &str| {
        let mut line: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let object = line.as_object_mut().expect("an object");
        object.retain(|name, _| name != "seconds" && name != "reserved_peak_bytes");
        line
    };
    text.lines().map(line).collect()
}

/// Checks that the run `cut` is finished with the results of the run `whole`.
#[track_caller]
fn check_same(place: &Place, what: &str) {
    let [whole, cut] = ["whole", "cut"].map(|run| place.json(&format!("{run}/summary.json")));
    assert_eq!(cut["final_state_hash"], whole["final_state_hash"], "{what}");
    assert_eq!(cut["steps"], whole["steps"], "{what}");
    let [cut, whole] = ["cut", "whole"].map(|run| metrics(place, run));
    let differing = cut.iter().zip(&whole).find(|(cut, whole)| cut != whole);
    assert_eq!((differing, cut.len()), (None, whole.len()), "{what}");
    assert_eq!(place.read("cut/model.safetensors"), place.read("whole/model.safetensors"));
}

#[cfg(unix)]
#[test]
fn run_that_is_killed_at_any_instant_goes_on_to_the_same_bits() {
    let place = Place::new();
    place.write("long.toml", LONG);
    place.train("long.toml", "whole");
    // Many times more in the deep tests.
    let kills = if is_deep() { 200 } else { 8 };
    let mut resumed = 0;
    for kill in 0..kills {
        drop(fs::remove_dir_all(place.path("cut")));
        let mut child = place.command("train long.toml --out cut --quiet");
        let mut child =
            child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        sleep(Duration::from_millis(40 + (kill * 37) % 400));
        child.kill().expect("it is there");
        child.wait().expect("it ends");
        // The run may have ended before the kill, or had no checkpoint yet.
        let is_one = |name: &String| name.starts_with("step-");
        if place.path("cut/.partial/checkpoints").is_dir()
            && place.list("cut/.partial/checkpoints").iter().any(is_one)
        {
            resumed += 1;
            // The number of threads may change.
            let threads = 1 + kill % 2;
            place.run(&format!("train --resume cut --quiet --threads {threads}")).check_done();
            check_same(&place, &format!("killed after {} ms", 40 + (kill * 37) % 400));
        }
    }
    assert!(resumed > kills / 8, "only {resumed} of {kills} runs were cut off after a checkpoint");
}

#[cfg(unix)]
#[test]
fn run_that_is_asked_to_end_saves_and_goes_on() {
    let place = Place::new();
    place.write("long.toml", LONG.replace("checkpoint_every = \"7steps\"\n", ""));
    place.train("long.toml", "whole");
    for signal in ["-INT", "-TERM"] {
        drop(fs::remove_dir_all(place.path("cut")));
        let mut child = place.command("train long.toml --out cut --quiet");
        let mut child =
            child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        sleep(Duration::from_millis(150));
        let kill = Command::new("kill").args([signal, &child.id().to_string()]).status();
        assert!(kill.expect("kill is there").success());
        assert!(child.wait().expect("it ends").success(), "{signal}");
        if place.json("cut/summary.json")["steps"] != 240 {
            assert_eq!(place.list("cut"), [&["checkpoints"], &FILES[..]].concat());
            place.run("train --resume cut --quiet").check_done();
            // The checkpoint of the interrupt is not left beside a later model.
            let last = place.list("cut/checkpoints").pop();
            assert_eq!(last.as_deref(), Some("step-00000240"), "{signal}");
            place.run("train --resume cut").check_refused(1, &["40 epochs", "--epochs 41"]);
        }
        let [whole, cut] = ["whole", "cut"].map(|run| place.json(&format!("{run}/summary.json")));
        assert_eq!(cut["final_state_hash"], whole["final_state_hash"], "{signal}");
    }
}

#[test]
fn finished_run_goes_on_for_more_epochs() {
    let place = Place::new();
    place.write("small.toml", SMALL);
    place.train("small.toml --epochs 4", "whole");
    place.train("small.toml --epochs 2 --checkpoint-every 1epoch", "cut");
    let line = place.run("train --resume cut").check_refused(1, &["2 epochs", "--epochs 3"]);
    assert!(!line.contains("panicked"));
    place.run("train --resume cut --epochs 4 --quiet").check_done();
    let [whole, cut] = ["whole", "cut"].map(|run| place.json(&format!("{run}/summary.json")));
    assert_eq!(cut["final_state_hash"], whole["final_state_hash"]);
    // With fewer samples at once, the numbers are the same up to the order of additions.
    place.train("small.toml --epochs 2 --checkpoint-every 1epoch", "again");
    place.run("train --resume again --epochs 4 --budget 512KiB --quiet").check_done();
    let again = place.json("again/summary.json");
    assert!(again["micro_batch"].as_u64() < whole["micro_batch"].as_u64(), "{again}");
    let [a, b] = [&whole, &again].map(|s| s["test_loss"].as_f64().expect("a number"));
    assert!((a - b).abs() < 1e-4 * a, "{a} and {b}");
}

#[test]
fn run_with_damaged_metrics_goes_on_with_the_lines_that_can_be_read() {
    let place = Place::new();
    place.write("small.toml", SMALL);
    place.train("small.toml --epochs 3", "whole");
    place.train("small.toml --epochs 2 --checkpoint-every 1epoch", "cut");
    let mut lines: Vec<Vec<u8>> =
        place.read("cut/metrics.jsonl").split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
    lines[2] = b"\xff\xfe".to_vec();
    lines[4] = b"{\"step\":".to_vec();
    place.write("cut/metrics.jsonl", lines.join(&b'\n'));
    let words = ["cut/metrics.jsonl:3", "not a JSON object"];
    place.run("compare whole cut").check_refused(1, &words);
    let resumed = place.run("train --resume cut --epochs 3 --quiet");
    assert_eq!(resumed.stderr, "note: cut/metrics.jsonl: 2 damaged lines are left out\n");
    resumed.check_done();
    let [mut whole, cut] = ["whole", "cut"].map(|run| metrics(&place, run));
    whole.remove(4);
    whole.remove(2);
    assert_eq!(cut, whole);
    let [whole, cut] = ["whole", "cut"].map(|run| place.json(&format!("{run}/summary.json")));
    assert_eq!(cut["final_state_hash"], whole["final_state_hash"]);
}

#[test]
fn damaged_checkpoint_is_refused_by_name_and_the_one_before_offered() {
    let place = Place::new();
    place.write("small.toml", SMALL);
    place.train("small.toml --epochs 3", "whole");
    place.train("small.toml --epochs 3 --checkpoint-every 5steps --keep 2", "run");
    let names = place.list("run/checkpoints");
    assert!(names.iter().filter(|name| name.starts_with("step-")).count() >= 2, "{names:?}");
    let last = names.iter().rfind(|name| name.starts_with("step-")).expect("one").clone();
    let mut offered = String::new();
    for name in ["checkpoint.json", "model.safetensors", "optimizer.safetensors"] {
        let file = format!("run/checkpoints/{last}/{name}");
        let whole = place.read(&file);
        let mut damages: Vec<Option<usize>> =
            [0, 9, whole.len() / 2, whole.len() - 1].map(Some).to_vec();
        damages.push(None);
        for damage in damages {
            let mut bytes = whole.clone();
            match damage {
                Some(position) => {
                    bytes[position] ^= 1;
                    place.write(&file, bytes);
                }
                None => fs::remove_file(place.path(&file)).expect("it is there"),
            }
            let words = [file.as_str(), "--resume run/checkpoints/step-", "the one before"];
            let line = place.run("train --resume run --epochs 4").check_refused(1, &words);
            let (_, path) = line.split_once("--resume ").expect("it is offered");
            offered = path.split('`').next().expect("a path").to_owned();
            place.write(&file, &whole);
        }
    }
    assert!(!offered.ends_with(&last), "{offered}");
    place.run(&format!("train --resume {offered} --quiet")).check_done();
    let [whole, run] = ["whole", "run"].map(|run| place.json(&format!("{run}/summary.json")));
    assert_eq!(run["final_state_hash"], whole["final_state_hash"]);
}

#[cfg(unix)]
#[test]
fn new_run_does_not_take_the_checkpoints_of_one_that_was_cut_off() {
    let place = Place::new();
    place.write("long.toml", LONG.replace("epochs = 40", "epochs = 100000"));
    let mut child = place.command("train long.toml --out cut --quiet");
    let mut child = child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    let checkpoints = place.path("cut/.partial/checkpoints/step-00000014");
    while !checkpoints.is_dir() && child.try_wait().expect("its own").is_none() {
        sleep(Duration::from_millis(10));
    }
    child.kill().expect("it is there");
    child.wait().expect("it ends");
    let before = place.list("cut/.partial/checkpoints");
    place.run("train long.toml --out cut --quiet").check_refused(1, &["cut off", "--resume cut"]);
    assert_eq!(place.list("cut/.partial/checkpoints"), before);
    place.run("runs .").check_done();
    let runs = place.run("runs . --json").check_done();
    assert!(runs.contains("cut off after step"), "{runs}");
}

#[test]
fn what_is_no_checkpoint_or_interval_is_refused() {
    let place = Place::new();
    place.run("train --resume nothing").check_refused(1, &["nothing", "No such file"]);
    place.write("small.toml", SMALL);
    place.train("small.toml --epochs 1", "run");
    place.run("train --resume run").check_refused(1, &["run", "no checkpoint"]);
    for wrong in ["0steps", "5parsecs", "often"] {
        let outcome = place.run(&format!("train --checkpoint-every {wrong}"));
        assert_ne!(outcome.code, Some(0), "{outcome:?}");
        assert!(outcome.stderr.contains(wrong), "{outcome:?}");
    }
}

/// A model of text with two heads and two blocks, which any division can divide.
const TEXT: &str = "\
[data]
kind = \"text\"
file = \"text.txt\"
context = 12
[model]
kind = \"gpt\"
width = 16
heads = 2
blocks = 2
dropout = 0.1
[train]
epochs = 1
batch_size = 16
checkpoint_every = \"5steps\"
";

/// Sentences that differ, so that halves of the text are not alike.
fn text(sentences: usize) -> String {
    (0..sentences).map(|n| format!("Sentence {n} has {} letters or so. ", n * n % 97)).collect()
}

/// Moves the files of a finished run to where those of a run lie that was cut off.
fn cut_off(place: &Place, run: &str) {
    let partial = place.path(&format!("{run}/.partial"));
    fs::create_dir(&partial).expect("a folder");
    for name in ["checkpoints", "metrics.jsonl", "recipe.toml"] {
        fs::rename(place.path(&format!("{run}/{name}")), partial.join(name)).expect("a file");
    }
    for name in ["model.safetensors", "report.html", "summary.json"] {
        fs::remove_file(place.path(&format!("{run}/{name}"))).expect("a file");
    }
}

const DIVISIONS: [&str; 7] = [
    "",
    "--ranks 2 --zero 0",
    "--ranks 2 --zero 1",
    "--ranks 2 --zero 2",
    "--ranks 2 --zero 3",
    "--ranks 2 --pipeline",
    "--ranks 2 --tensor-parallel",
];

#[test]
fn run_of_any_division_goes_on_as_it_was_without_its_options_also_from_its_last_step() {
    let place = Place::new();
    place.write("text.txt", text(60));
    place.write("text.toml", TEXT);
    for division in DIVISIONS {
        drop(fs::remove_dir_all(place.path("run")));
        let whole = place.train(&format!("text.toml {division}"), "run");
        let first = place.list("run/checkpoints").into_iter().find(|name| name.contains("step-"));
        let first = format!("run/checkpoints/{}", first.expect("two are kept"));
        for from in [first.as_str(), "run"] {
            if from == "run" {
                cut_off(&place, "run");
            }
            let outcome = place.run(&format!("train --resume {from} --out run --quiet"));
            assert_eq!(outcome.stderr, "", "{division}");
            outcome.check_done();
            let resumed = place.json("run/summary.json");
            for key in ["final_state_hash", "test_loss", "micro_batch", "ranks", "zero", "steps"] {
                assert_eq!(resumed[key], whole[key], "{key} after {from}, {division}");
            }
        }
    }
}

#[test]
fn resumed_run_keeps_its_budget_and_its_plan_and_tells_what_is_changed() {
    let place = Place::new();
    place.write("small.toml", SMALL);
    let budget = "--budget 512KiB";
    let whole = place.train(&format!("small.toml --epochs 4 {budget}"), "whole");
    place.train(&format!("small.toml --epochs 2 --checkpoint-every 1epoch {budget}"), "run");
    let outcome = place.run("train --resume run --epochs 4 --out same --quiet");
    assert_eq!(outcome.stderr, "");
    outcome.check_done();
    let same = place.json("same/summary.json");
    for key in ["final_state_hash", "micro_batch", "budget_bytes"] {
        assert_eq!(same[key], whole[key], "{key}");
    }
    let outcome = place.run("train --resume run --epochs 4 --out other --budget 8MiB --quiet");
    assert!(outcome.stderr.contains("note: --budget is 8 MiB, and was 512 KiB"), "{outcome:?}");
    outcome.check_done();
    assert_ne!(place.json("other/summary.json")["micro_batch"], whole["micro_batch"]);
}

#[test]
fn data_that_has_changed_is_told_or_refused() {
    let place = Place::new();
    let before = text(60);
    place.write("text.txt", &before);
    place.write("text.toml", TEXT);
    place.train("text.toml", "run");
    let first = place.list("run/checkpoints").into_iter().find(|name| name.contains("step-"));
    let from = format!("run/checkpoints/{}", first.expect("two are kept"));
    let resume = |more: &str| place.run(&format!("train --resume {from} --out new --quiet {more}"));

    let mut other = before.clone().into_bytes();
    let half = other.len() / 2;
    other[half..].reverse();
    place.write("text.txt", &other);
    let outcome = resume("");
    let told = "note: text.txt is not what the run began with: ";
    assert!(outcome.stderr.starts_with(told), "{outcome:?}");
    assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
    outcome.check_done();

    place.write("text.txt", &before[..before.len() / 2]);
    let outcome = resume("");
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(outcome.stderr.contains("note: text.txt is not what"), "{outcome:?}");
    outcome.check_failed(1, &["--resume", "sample_count", "--restart-epoch"]);
    resume("--restart-epoch").check_done();

    place.write("text.txt", &before);
    resume("--batch-size 8").check_failed(1, &["--resume", "batch_size 16", "--restart-epoch"]);
    resume("--batch-size 8 --restart-epoch").check_done();
    resume("--seed 9").check_failed(1, &["its seed is 0"]);
}

#[test]
fn checkpoint_of_another_training_is_refused() {
    let place = Place::new();
    place.write("small.toml", SMALL);
    place.train("small.toml --epochs 2 --checkpoint-every 5steps", "run");
    place.train("small.toml --epochs 2 --checkpoint-every 5steps --seed 9", "other");
    let last = |run: &str| {
        let names = place.list(&format!("{run}/checkpoints"));
        names.into_iter().rfind(|name| name.contains("step-")).expect("one")
    };
    let (own, foreign) = (last("run"), last("other"));
    fs::remove_dir_all(place.path(&format!("run/checkpoints/{own}"))).expect("a folder");
    let to = place.path(&format!("run/checkpoints/{foreign}"));
    fs::rename(place.path(&format!("other/checkpoints/{foreign}")), to).expect("a folder");
    let words = [foreign.as_str(), "is of another training", "than run"];
    place.run("train --resume run --epochs 3").check_refused(1, &words);
}

#[test]
fn best_checkpoint_stays_when_a_finished_run_goes_on() {
    let place = Place::new();
    place.write("small.toml", SMALL);
    place.train("small.toml --epochs 2 --checkpoint-every 1epoch --keep 2", "run");
    let best = || String::from_utf8(place.read("run/checkpoints/best.txt")).expect("UTF-8");
    // A cost that no later model reaches, of the first of two checkpoints.
    let name = place.list("run/checkpoints").into_iter().find(|name| name.starts_with("step-"));
    let name = name.expect("two are kept");
    let step: u64 = name["step-".len()..].parse().expect("a number");
    let before = format!("1e-9 {step}\n");
    place.write("run/checkpoints/best.txt", &before);
    for epochs in [4, 5] {
        place.run(&format!("train --resume run --epochs {epochs} --quiet")).check_done();
        assert_eq!(best(), before);
        assert!(
            place.list("run/checkpoints").contains(&name),
            "{:?}",
            place.list("run/checkpoints")
        );
    }
}

#[cfg(unix)]
#[test]
fn pipe_in_place_of_a_checkpoints_file_is_refused_and_not_waited_for() {
    let place = Place::new();
    place.write("small.toml", SMALL);
    place.train("small.toml --epochs 2 --checkpoint-every 1epoch", "run");
    let last = place.list("run/checkpoints").into_iter().rfind(|name| name.contains("step-"));
    for name in ["optimizer.safetensors", "model.safetensors", "checkpoint.json"] {
        let file = format!("run/checkpoints/{}/{name}", last.as_ref().expect("one"));
        let whole = place.read(&file);
        fs::remove_file(place.path(&file)).expect("it is there");
        place.make_pipe(&file);
        let words = [file.as_str(), "not a regular file"];
        place.run("train --resume run --epochs 3").check_refused(1, &words);
        fs::remove_file(place.path(&file)).expect("it is there");
        place.write(&file, whole);
    }
}
