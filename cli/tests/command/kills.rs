//! Processes that are killed, or run out of memory, while they fine-tune or export. The output is
//! missing or complete, and the same command then succeeds.

#![cfg(unix)]

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::place::{FILES, Place, is_deep};
use crate::pretrained::place;

/// Number of kills of each command; many times more in the deep tests.
fn kill_count() -> u32 {
    if is_deep() { 100 } else { 3 }
}

/// Times at which to kill a process that normally takes `whole`: spread by a seed over this time
/// and a little more.
fn instants(seed: u64, whole: Duration) -> impl Iterator<Item = Duration> {
    let count = kill_count();
    (0..count).map(move |at| {
        let mixed = (seed * 1009 + u64::from(at) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let within = mixed as f64 / f64::from(1 << 24);
        whole.mul_f64(1.1 * (f64::from(at) + within) / f64::from(count))
    })
}

/// Runs a command, checks that it succeeds, and returns its duration.
#[track_caller]
fn timed(place: &Place, arguments: &str) -> Duration {
    let start = Instant::now();
    place.run(arguments).check_done();
    start.elapsed()
}

/// Runs a command and kills it after `after`. Returns false if it had already ended.
fn kill(place: &Place, arguments: &str, after: Duration) -> bool {
    let mut command = place.command(arguments);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    sleep(after);
    child.kill().expect("it is there");
    !child.wait().expect("it ends").success()
}

/// The files of an export, which is a file or a folder.
fn contents(path: &Path) -> Vec<(String, Vec<u8>)> {
    if path.is_file() {
        return vec![(String::new(), fs::read(path).expect("a file"))];
    }
    let read = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        (name, fs::read(path).expect("a file"))
    };
    let mut files: Vec<_> = fs::read_dir(path).expect("a folder").map(read).collect();
    files.sort();
    files
}

/// A model and its export format, one for each kind.
const EXPORTS: [&str; 6] = [
    "run --format safetensors",
    "llama --format safetensors --type nf4",
    "run --format peft",
    "run --format gguf",
    "llama --format gguf --type q8_0",
    "run --format onnx",
];

#[test]
fn export_that_is_killed_at_any_instant_leaves_a_whole_one_or_none() {
    let place = place();
    let tune = "finetune llama texts.jsonl --lora 4 --seq 16 --batch 8 --epochs 1 --quiet";
    place.run(&format!("{tune} --base int8 --out run")).check_done();
    let (mut killed, mut cut) = (0, 0);
    for (seed, form) in EXPORTS.into_iter().enumerate() {
        let (model, options) = form.split_once(' ').expect("a model");
        let whole = timed(&place, &format!("export {model} whole {options}"));
        let expected = contents(&place.path("whole"));
        for instant in instants(seed as u64, whole) {
            let arguments = format!("export {model} out {options}");
            killed += u32::from(kill(&place, &arguments, instant));
            let out = place.path("out");
            if out.exists() {
                assert!(contents(&out) == expected, "{form}, killed after {instant:?}");
                remove(&out);
            } else {
                cut += 1;
            }
            place.run(&arguments).check_done();
            assert!(contents(&out) == expected, "{form}, after a kill at {instant:?}");
            remove(&out);
            let left: Vec<String> =
                place.list(".").into_iter().filter(|name| name.contains("out")).collect();
            assert!(left.is_empty(), "{form}, after a kill at {instant:?}: {left:?}");
        }
        remove(&place.path("whole"));
    }
    println!("{killed} exports were killed, {cut} before they were whole");
    assert!(cut > 0, "no export was cut off");
}

/// Budgets from one that is too small for anything to one that is large enough. In each, another
/// allocation fails: of the load, of the merge or of the export.
#[test]
fn export_that_does_not_fit_leaves_nothing() {
    let place = place();
    let tune = "finetune llama texts.jsonl --lora 4 --seq 16 --batch 8 --epochs 1 --quiet";
    place.run(&format!("{tune} --base int8 --out run")).check_done();
    let steps = if is_deep() { 120 } else { 8 };
    for form in EXPORTS {
        let (model, options) = form.split_once(' ').expect("a model");
        place.run(&format!("export {model} whole {options}")).check_done();
        let expected = contents(&place.path("whole"));
        remove(&place.path("whole"));
        let (mut failed, mut done) = (0, 0);
        for step in 0..=steps {
            let budget =
                (1024.0 * (64.0_f64 * 1024.0).powf(f64::from(step) / f64::from(steps))) as u64;
            let outcome = place.run(&format!("export {model} out {options} --budget {budget}"));
            let what = format!("{form}, {budget} bytes");
            if outcome.code == Some(0) {
                assert!(contents(&place.path("out")) == expected, "{what}");
                remove(&place.path("out"));
                done += 1;
            } else {
                outcome.check_failed(2, &["out of memory"]);
                failed += 1;
            }
            let left: Vec<String> =
                place.list(".").into_iter().filter(|name| name.contains("out")).collect();
            assert!(left.is_empty(), "{what}: {left:?}");
        }
        println!("{form}: {failed} did not fit, {done} did");
        assert!(failed > 0 && done > 0, "{form}");
    }
}

fn remove(path: &Path) {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.expect("it was there");
}

#[test]
fn fine_tuning_that_is_killed_at_any_instant_leaves_a_whole_run_or_none() {
    let place = place();
    let (mut killed, mut cut) = (0, 0);
    for (seed, method) in ["--lora 4", "--lora 4 --base nf4", ""].into_iter().enumerate() {
        let tune =
            format!("finetune llama texts.jsonl {method} --seq 16 --batch 8 --epochs 1 --quiet");
        let whole = timed(&place, &format!("{tune} --out whole"));
        let model = place.read("whole/model.safetensors");
        for instant in instants(10 + seed as u64, whole) {
            killed += u32::from(kill(&place, &format!("{tune} --out run"), instant));
            let what = format!("{method}, killed after {instant:?}");
            // A folder with a summary has everything.
            if place.path("run/summary.json").exists() {
                assert!(place.read("run/model.safetensors") == model, "{what}");
            } else {
                cut += 1;
            }
            place.run(&format!("{tune} --out run")).check_done();
            assert!(place.read("run/model.safetensors") == model, "{what}");
            assert_eq!(place.list("run"), FILES, "{what}");
            remove(&place.path("run"));
        }
        remove(&place.path("whole"));
    }
    println!("{killed} runs were killed, {cut} before they were whole");
    assert!(cut > 0, "no run was cut off");
}

/// The fault drill of `lowtide train` on a fine-tuned model.
#[test]
fn failed_allocation_of_any_step_of_fine_tuning_changes_no_bit() {
    let place = place();
    for method in ["--lora 4", "--lora 4 --base nf4", ""] {
        let tune =
            format!("finetune llama texts.jsonl {method} --seq 16 --batch 8 --epochs 1 --quiet");
        place.run(&format!("{tune} --out calm")).check_done();
        let calm = place.json("calm/summary.json");
        let allocations = calm["allocations"].as_u64().expect("a number");
        let parts = if is_deep() { 100 } else { 4 };
        for part in 0..parts {
            let nth = (allocations * part / parts).max(1);
            place.run(&format!("{tune} --out drill --fault-at {nth}")).check_done();
            let drill = place.json("drill/summary.json");
            let what = format!("{method}, allocation {nth}");
            assert_eq!(drill["final_state_hash"], calm["final_state_hash"], "{what}");
            let model = |run: &str| place.read(&format!("{run}/model.safetensors"));
            assert!(model("drill") == model("calm"), "{what}");
        }
    }
}
