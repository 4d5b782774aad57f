//! `--process-budget`: the memory of the whole process stays within it.

#![cfg(target_os = "linux")]

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::group::{Group, after, command_after};
use crate::place::{Place, bytes_of, is_deep, number_before, skip};
use crate::pretrained;
use crate::train::SMALL;

const MIB: usize = 1 << 20;

/// The JSON output of a command.
#[track_caller]
fn told(place: &Place, arguments: &str) -> Value {
    let text = place.run(&format!("{arguments} --json")).stdout;
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[track_caller]
fn number(value: &Value, key: &str) -> usize {
    value[key].as_u64().unwrap_or_else(|| panic!("{key} of {value}")) as usize
}

/// The bytes of a part of the process in a plan.
#[track_caller]
fn part(plan: &Value, name: &str) -> usize {
    let parts = plan["process"]["parts"].as_array().expect("a list");
    number(parts.iter().find(|part| part["name"] == name).expect("that part"), "bytes")
}

#[test]
fn process_budget_is_divided_into_parts_that_fill_it() {
    let place = Place::new();
    let arguments = "plan --epochs 1 --process-budget 96MiB";
    let plan = told(&place, arguments);
    let process = &plan["process"];
    let parts = process["parts"].as_array().expect("a list");
    let sum: usize = parts.iter().map(|part| number(part, "bytes")).sum();
    assert_eq!((sum, number(process, "budget_bytes")), (96 * MIB, 96 * MIB), "{plan}");
    assert_eq!(number(process, "bytes"), sum, "{plan}");
    assert_eq!(part(&plan, "training"), number(&plan, "budget_bytes"), "{plan}");
    assert!(part(&plan, "batches") >= number(&plan, "staging_bytes"), "{plan}");
    assert_eq!(part(&plan, "data"), number(&plan, "data_bytes"), "{plan}");

    let words = place.run(arguments).check_done();
    let line = "process         at most 96 MiB (100663296 bytes) of 96 MiB, by --process-budget";
    assert!(words.lines().any(|found| found == line), "{words}");
    assert!(words.contains(": what --process-budget allows, less the rest"), "{words}");
    for row in parts {
        let name = row["name"].as_str().expect("a name");
        assert_eq!(bytes_of(&words, &format!("  {name} ")) as usize, part(&plan, name), "{words}");
    }
    // The run has the same plan.
    let summary = place.train("--epochs 1 --process-budget 96MiB", "run");
    assert_eq!(summary["predicted_peak_bytes"], plan["predicted_peak_bytes"]);
    assert_eq!(summary["budget_bytes"], plan["budget_bytes"]);
    assert_eq!(number(&summary, "process_budget_bytes"), 96 * MIB);
    assert_eq!(number(&summary, "process_bytes"), 96 * MIB);
}

#[test]
fn both_budgets_hold_and_the_smaller_one_is_named() {
    let place = Place::new();
    let plan = told(&place, "plan --epochs 1 --process-budget 1GiB --budget 6MiB");
    assert_eq!((number(&plan, "budget_bytes"), part(&plan, "training")), (6 * MIB, 6 * MIB));
    assert_eq!(plan["budget_from"], "--budget");
    assert!(number(&plan["process"], "bytes") < 128 * MIB, "{plan}");
    let plan = told(&place, "plan --epochs 1 --process-budget 96MiB --budget 1GiB");
    assert!(number(&plan, "budget_bytes") < 96 * MIB, "{plan}");
    assert!(plan["budget_from"].as_str().is_some_and(|from| from.contains("--process-budget")));
    let plans = told(&place, "plan --epochs 1 --process-budget 96MiB --budget 1GiB,6MiB");
    let peak = |at: usize| number(&plans["plans"][at], "predicted_peak_bytes");
    assert!(peak(0) == number(&plan, "predicted_peak_bytes") && peak(1) <= 6 * MIB, "{plans}");
    // Without a limit on the process, its parts are not listed.
    assert_eq!(told(&place, "plan --epochs 1 --budget 6MiB").get("process"), None);
}

#[test]
fn process_budget_that_is_too_small_is_refused_with_what_is_missing() {
    let place = Place::new();
    for command in ["plan --epochs 1", "train --epochs 1 --out run"] {
        let refused = place.run(&format!("{command} --process-budget 4MiB"));
        let line = refused.check_refused(2, &["does not fit", "4 MiB there are"]);
        let enough = 4 * MIB + number_before(&line, " bytes more") as usize;
        assert!(line.contains(&format!("--process-budget {enough}B")), "{line}");
        place.run(&format!("plan --epochs 1 --process-budget {enough}")).check_done();
        let less = format!("{command} --process-budget {}", enough - 1);
        place.run(&less).check_refused(2, &["1 bytes more", "--process-budget"]);
    }
    assert!(place.list(".").is_empty(), "{:?}", place.list("."));
    let error = told(&place, "plan --epochs 1 --process-budget 4MiB");
    assert_eq!(error["does_not_fit"]["budget_bytes"], 4 * MIB);
    assert_eq!(error["does_not_fit"]["remedies"][0]["kind"], "process_budget");
    for wrong in ["0", "-5MiB", "many", "1.5.5GiB"] {
        let arguments = format!("plan --process-budget {wrong}");
        place.run(&arguments).check_refused(1, &["--process-budget"]);
    }
    place.write("small.toml", SMALL);
    place.train("small.toml --epochs 1", "run");
    place.run("eval run --process-budget 128MiB").check_done();
    place.run("eval run --process-budget 4MiB").check_refused(2, &["--process-budget"]);
}

#[test]
fn advised_process_budget_of_a_work_without_a_plan_is_enough_and_5_mib_less_is_refused() {
    let place = pretrained::place();
    place.write("small.toml", SMALL);
    place.train("small.toml --epochs 1", "small");
    place.train("digits --epochs 1", "digits");
    let lora = "--lora 4 --seq 16 --batch 8 --epochs 1 --quiet";
    place.run(&format!("finetune llama texts.jsonl {lora} --out run")).check_done();
    place.run(&format!("finetune llama texts.jsonl {lora} --base nf4 --out nf4")).check_done();
    for command in [
        "eval small",
        "eval digits",
        "eval digits --bits int8",
        "eval run",
        "generate llama --prompt after --tokens 40",
        "generate run --prompt after --tokens 2 --temperature 1",
        "generate nf4 --prompt after --tokens 2",
        "export llama out --type nf4",
        "export run out",
        "export run out --format peft",
        "export nf4 out --format gguf",
        "export run out --format onnx",
    ] {
        let within = |bytes: usize| format!("{command} --process-budget {bytes}B");
        let names = place.list(".");
        let line = place.run(&within(MIB)).check_refused(2, &["does not fit", "1 MiB there are"]);
        let enough = MIB + number_before(&line, " bytes more") as usize;
        assert!(line.contains(&format!("--process-budget {enough}B")), "{line}");
        // Measured parts of the process vary by a MiB or two.
        place.run(&within(enough - 5 * MIB)).check_refused(2, &["--process-budget"]);
        assert_eq!(place.list("."), names, "{command}");
        let peak_bytes = peak_of(&mut place.command(&within(enough)), taken_by);
        assert!(peak_bytes <= enough, "{command}: took {peak_bytes} of {enough} bytes");
        if place.path("out").is_dir() {
            fs::remove_dir_all(place.path("out")).expect("written");
        } else if command.starts_with("export") {
            fs::remove_file(place.path("out")).expect("written");
        }
    }
}

#[test]
fn process_on_a_device_with_memory_of_its_own_is_bounded_beside_it() {
    let place = Place::new();
    let arguments = "plan --device h100:80GiB --epochs 1 --process-budget";
    let plan = told(&place, &format!("{arguments} 1GiB"));
    assert!(number(&plan, "budget_bytes") > 79 << 30, "{plan}");
    assert!(number(&plan["process"], "bytes") < 256 * MIB, "{plan}");
    place.run(&format!("{arguments} 4MiB")).check_refused(2, &["--process-budget"]);
}

/// Runs a training, checks that it succeeds, and returns the largest measurement.
#[track_caller]
fn peak_of(command: &mut Command, measure: impl Fn(&Child) -> usize) -> usize {
    let mut child = command.stdout(Stdio::null()).spawn().expect("the command starts");
    let mut peak_bytes = 0;
    while child.try_wait().expect("a child").is_none() {
        peak_bytes = peak_bytes.max(measure(&child));
        // Each measurement stops the process while it is read.
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(child.wait().expect("it ended").code(), Some(0), "{command:?}");
    peak_bytes
}

/// Memory of a process: its page tables, and its resident pages, each counted once even if it is
/// mapped several times.
fn taken_by(child: &Child) -> usize {
    let bytes = |file: &str, name: &str| {
        let path = format!("/proc/{}/{file}", child.id());
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.map_or("0", |line| line.trim().trim_end_matches(" kB"));
        kib.parse::<usize>().expect("a number of KiB") << 10
    };
    bytes("smaps_rollup", "Pss:") + bytes("status", "VmPTE:")
}

/// Models on built-in data, and additional work of the process during the training.
const TRAINED: [(&str, &str); 5] = [
    ("digits --set model.channels=1024 --epochs 1", ""),
    ("digits-resnet --set model.width=16 --epochs 1", "--checkpoint-every 4steps"),
    ("digits-vit --set model.width=96 --set model.hidden=192 --epochs 1", "--threads 1"),
    ("text-gpt --set model.width=96 --set train.batch_size=64 --epochs 1", ""),
    ("text-lstm --set model.hidden=192 --epochs 1", "--checkpoint-every 1epoch"),
];

/// Budgets of the process, from the least with a plan to the need of the fastest plan.
fn budgets(place: &Place, recipe: &str) -> [usize; 5] {
    let least = told(place, &format!("plan {recipe} --process-budget 1MiB"));
    let least_bytes = number(&least["does_not_fit"], "needed_bytes");
    let whole = told(place, &format!("plan {recipe} --process-budget 16GiB"));
    let peak_bytes = number(&whole, "predicted_peak_bytes");
    let beside =
        number(&whole["process"], "bytes") - part(&whole, "training") - part(&whole, "page tables");
    let whole_bytes = beside + peak_bytes + peak_bytes.div_ceil(128);
    assert!(whole_bytes >= least_bytes, "{recipe}: {whole_bytes} after {least_bytes}");
    [0, 1, 2, 3, 4].map(|at| least_bytes + (whole_bytes - least_bytes) / 4 * at)
}

#[test]
fn process_stays_within_its_budget_while_it_trains() {
    let place = Place::new();
    for (recipe, more) in &TRAINED[..if is_deep() { 5 } else { 2 }] {
        for budget_bytes in budgets(&place, recipe).into_iter().step_by(2) {
            let arguments =
                format!("train {recipe} {more} --process-budget {budget_bytes} --out run --quiet");
            let peak_bytes = peak_of(&mut place.command(&arguments), taken_by);
            assert!(peak_bytes <= budget_bytes, "{arguments}: took {peak_bytes} bytes");
            assert!(peak_bytes > budget_bytes / 4, "{arguments}: took {peak_bytes} bytes");
            let summary = place.json("run/summary.json");
            assert_eq!(summary["retried_steps"], 0, "{summary}");
            println!("{recipe}: {peak_bytes} of {budget_bytes} bytes");
        }
    }
}

#[test]
fn run_in_a_control_group_of_its_process_budget_is_never_killed() {
    let place = Place::new();
    let (seeds, mut runs, mut least_bytes) = (if is_deep() { 8 } else { 1 }, 0, usize::MAX);
    for (at, (recipe, more)) in TRAINED.into_iter().enumerate() {
        for (nth, budget_bytes) in budgets(&place, recipe).into_iter().enumerate() {
            // In the short tests, one budget for each model.
            if !is_deep() && nth != at {
                continue;
            }
            for seed in 0..seeds {
                let limit_bytes = budget_bytes + 16 * MIB;
                let Some(group) = Group::new("process", limit_bytes) else {
                    return skip("process budget in a control group", "this user may make none");
                };
                let arguments = format!(
                    "train {recipe} {more} --process-budget {budget_bytes} --seed {seed} --out run \
                     --quiet"
                );
                let mut command = command_after(&place, &group.join(), &arguments);
                let peak_bytes = peak_of(&mut command, |_| group.kept_bytes());
                assert_eq!(group.kills().unwrap_or(0), 0, "{arguments}");
                let summary = place.json("run/summary.json");
                assert_eq!(summary["retried_steps"], 0, "{arguments}: {summary}");
                let left_bytes = limit_bytes - peak_bytes;
                if left_bytes < least_bytes {
                    least_bytes = left_bytes;
                    println!("{recipe}: {peak_bytes} of {limit_bytes}");
                }
                runs += 1;
            }
        }
    }
    println!("{runs} runs, none killed, {least_bytes} bytes left at least");
}

#[test]
fn control_group_gives_the_default_process_budget() {
    let place = Place::new();
    let Some(group) = Group::new("share", 192 * MIB) else {
        return skip("process budget of a control group", "this user may make none");
    };
    let plan = after(&place, &group.join(), "plan --epochs 1 --json").check_done();
    let plan: Value = serde_json::from_str(&plan).expect("JSON");
    let process = &plan["process"];
    assert_eq!(process["budget_from"], "its control group");
    let bytes = number(process, "budget_bytes");
    assert!((160 * MIB..=176 * MIB).contains(&bytes), "{plan}");
    // A given budget replaces the limit of the control group.
    let plan = after(&place, &group.join(), "plan --epochs 1 --budget 6MiB").check_done();
    assert!(!plan.contains("process  "), "{plan}");
}
