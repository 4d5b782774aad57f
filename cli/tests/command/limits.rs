//! Limits of the operating system: address space and control groups.

#![cfg(target_os = "linux")]

use crate::group::{Group, after};
use crate::place::{Place, bytes_of, is_deep, skip};
use crate::train::SMALL;

#[test]
fn everything_runs_within_a_limit_on_addresses_and_as_planned() {
    let place = Place::new();
    for (kib, budget) in [(4_000_000, "6MiB"), (4_000_000, "1GiB"), (60_000_000, "6MiB")] {
        let limit = format!("ulimit -v {kib}");
        let arguments = format!("--epochs 2 --budget {budget}");
        let plan = after(&place, &limit, &format!("plan {arguments}")).check_done();
        after(&place, &limit, &format!("train {arguments} --out run")).check_done();
        let summary = place.json("run/summary.json");
        assert_eq!(summary["predicted_peak_bytes"], bytes_of(&plan, "predicted peak"), "{kib}");
        assert_eq!(summary["predicted_peak_bytes"], summary["measured_peak_bytes"], "{kib}");
        after(&place, &limit, "eval run").check_done();
    }
}

#[test]
fn budget_that_is_not_given_is_what_a_limit_on_addresses_leaves() {
    let place = Place::new();
    let plan = after(&place, "ulimit -v 4000000", "plan").check_done();
    let budget = bytes_of(&plan, "budget");
    assert!((1 << 30..2 << 30).contains(&budget), "{plan}");
    assert!(plan.contains("half of what ulimit -v leaves"), "{plan}");
    let json = after(&place, "ulimit -v 4000000", "plan --json").check_done();
    assert!(json.contains("\"budget_from\":\"half of what ulimit -v leaves\""), "{json}");
    after(&place, "ulimit -v 4000000", "train --epochs 1 --out run").check_done();
}

const MIB: usize = 1 << 20;

#[test]
fn default_budget_fits_a_control_group_and_the_run_is_not_killed() {
    let place = Place::new();
    let runs = if is_deep() { 7 } else { 1 };
    for size_mib in [160, 224, 384] {
        let Some(group) = Group::new("default", size_mib * MIB) else {
            return skip("control group", "this user may make none with a limit on memory");
        };
        // The whole batch needs more than the limit, and smaller parts fit.
        let channels = size_mib * 16;
        place.write("wide.toml", format!("[model]\nchannels = {channels}\n"));
        let plan = after(&place, &group.join(), "plan wide.toml --epochs 1").check_done();
        let budget = bytes_of(&plan, "budget") as usize;
        assert!(budget < size_mib * MIB && budget >= size_mib * MIB / 3, "{plan}");
        assert!(plan.contains("what its control group allows"), "{plan}");
        for run in 0..runs {
            let arguments = format!("train wide.toml --epochs 1 --seed {run} --out run");
            after(&place, &group.join(), &arguments).check_done();
            let summary = place.json("run/summary.json");
            let peak = summary["measured_peak_bytes"].as_u64().expect("a number") as usize;
            assert_eq!(summary["predicted_peak_bytes"], peak, "{summary}");
            assert!(peak <= budget && peak > budget / 3, "{summary}");
        }
    }
}

#[test]
fn budget_beyond_a_control_group_ends_in_a_typed_error_or_smaller_parts() {
    let place = Place::new();
    let Some(group) = Group::new("beyond", 200 * MIB) else {
        return skip("budget beyond a control group", "this user may make no group");
    };
    place.write("wide.toml", "[model]\nchannels = 4096\n");
    let arguments = "train wide.toml --epochs 1 --budget 4GiB --out run";
    let outcome = after(&place, &group.join(), arguments);
    assert!(outcome.stderr.contains("more than"), "the budget is doubted: {outcome:?}");
    match outcome.code {
        Some(0) => {
            let summary = place.json("run/summary.json");
            assert!(summary["retried_steps"].as_u64() > Some(0), "{summary}");
        }
        _ => outcome.check_failed(2, &["out of memory"]),
    }
}

#[test]
fn budget_beyond_what_is_available_is_doubted_and_others_are_not() {
    let place = Place::new();
    place.write("small.toml", SMALL);
    let plan = place.run("plan small.toml --budget 900TiB");
    assert!(plan.stderr.contains("note: ") && plan.stderr.contains("more than"), "{plan:?}");
    plan.check_done();
    for budget in ["", "--budget 6MiB"] {
        let plan = place.run(&format!("plan small.toml {budget}"));
        assert_eq!(plan.stderr, "");
        plan.check_done();
    }
}
