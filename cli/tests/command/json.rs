//! `--json`: one object on standard output, on success and on failure.

use serde_json::Value;

use crate::place::{Place, bytes_of, skip};
use crate::train::SMALL;

#[track_caller]
fn object(text: &str) -> Value {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert!(value.is_object() && text.lines().count() == 1, "{text}");
    value
}

#[test]
fn plan_and_train_say_in_json_what_they_say_in_words() {
    let place = Place::new();
    place.write("small.toml", SMALL);
    let words = place.run("plan small.toml --budget 1MiB").check_done();
    let plan = object(&place.run("plan small.toml --budget 1MiB --json").check_done());
    assert_eq!(plan["predicted_peak_bytes"], bytes_of(&words, "predicted peak"));
    assert_eq!(plan["budget_bytes"], 1 << 20);
    assert_eq!(plan["peak_bytes_by_category"]["parameter"], bytes_of(&words, "  parameter"));
    assert!(plan["survey"].as_array().is_some_and(|rows| rows.len() > 3), "{plan}");
    let said = place.run("train small.toml --epochs 1 --out run --json").check_done();
    let mut summary = object(&said);
    assert_eq!(summary["run_dir"], "run");
    summary.as_object_mut().expect("an object").remove("run_dir");
    assert_eq!(summary, place.json("run/summary.json"));
}

#[test]
fn what_does_not_fit_is_told_in_json_with_bytes_and_remedies() {
    let place = Place::new();
    for command in ["plan", "train"] {
        let outcome = place.run(&format!("{command} --budget 100KiB --json"));
        assert_eq!(outcome.code, Some(2), "{outcome:?}");
        let error = object(&outcome.stdout);
        let line = outcome.stderr.trim_end();
        assert_eq!(line, format!("lowtide: {}", error["error"].as_str().expect("a line")));
        let does_not_fit = &error["does_not_fit"];
        let number = |key: &str| does_not_fit[key].as_u64().unwrap_or_else(|| panic!("{error}"));
        assert_eq!(number("missing_bytes"), number("needed_bytes") - (100 << 10));
        assert_eq!(does_not_fit["remedies"][0]["value"]["needed_bytes"], number("needed_bytes"));
        assert!(does_not_fit["peak_bytes_by_category"]["activation"].as_u64() > Some(0));
        assert_eq!(error["out_of_memory"], Value::Null, "no allocation was made");
    }
}

#[test]
fn other_mistakes_are_told_in_json_too() {
    let place = Place::new();
    let outcome = place.run("eval none --json");
    assert_eq!(outcome.code, Some(1));
    assert!(object(&outcome.stdout)["error"].as_str().is_some_and(|line| line.contains("none")));
}

#[test]
fn metrics_have_the_ledger_of_a_retry() {
    let place = Place::new();
    place.write("small.toml", SMALL);
    place.train("small.toml --epochs 1 --fault-at 30", "run");
    let metrics = String::from_utf8(place.read("run/metrics.jsonl")).expect("UTF-8");
    let lines = metrics.lines().map(object);
    let retries: Vec<Value> = lines.filter_map(|line| line["retries"].get(0).cloned()).collect();
    let [retry] = &retries[..] else { panic!("{retries:?}") };
    let ledger = &retry["ledger"];
    assert_eq!((&ledger["injected"], &ledger["tried"]), (&true.into(), &vec!["trim"].into()));
    let of_categories: u64 = ledger["bytes_by_category"]
        .as_object()
        .expect("an object")
        .values()
        .map(|bytes| bytes.as_u64().expect("a number"))
        .sum();
    assert_eq!(ledger["allocated_bytes"], of_categories);
}

#[cfg(target_os = "linux")]
#[test]
fn terminal_shows_what_the_smallest_plan_needs_below_the_line() {
    use std::process::{Command, Stdio};
    let place = Place::new();
    let lowtide = env!("CARGO_BIN_EXE_lowtide");
    let mut terminal = Command::new("script");
    terminal.args(["-qec", &format!("{lowtide} plan --budget 100KiB"), "/dev/null"]);
    terminal.current_dir(place.path(".")).stdin(Stdio::null());
    let Ok(output) = terminal.output() else {
        return skip("ledger on a terminal", "there is no `script` to make a terminal");
    };
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let mut lines = text.lines();
    assert!(lines.next().is_some_and(|line| line.starts_with("lowtide: does not fit")), "{text}");
    assert!(lines.next().is_some_and(|line| line.starts_with("peak of each category")), "{text}");
    assert!(lines.any(|line| line.trim_start().starts_with("activation")), "{text}");
}
