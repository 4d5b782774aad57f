//! Budgets, and the output of `lowtide plan` about them.

use serde_json::Value;

use crate::place::{Place, bytes_of, number_before};

/// The plan and the training with the same arguments.
fn plan_and_train(place: &Place, arguments: &str) -> (String, Value) {
    let plan = place.run(&format!("plan {arguments}")).check_done();
    (plan, place.train(arguments, "run"))
}

fn count(summary: &Value, key: &str) -> u64 {
    summary[key].as_u64().unwrap_or_else(|| panic!("{key} of {summary}"))
}

#[test]
fn plan_predicts_the_peak_that_train_measures() {
    let place = Place::new();
    for arguments in ["", "--budget 6MiB", "--budget 1MiB", "--batch-size 1000", "--batch-size 1"] {
        let (plan, summary) = plan_and_train(&place, &format!("{arguments} --epochs 1"));
        let predicted = bytes_of(&plan, "predicted peak");
        assert_eq!(predicted, count(&summary, "measured_peak_bytes"), "{arguments}");
        assert_eq!(predicted, count(&summary, "predicted_peak_bytes"), "{arguments}");
        assert_eq!(bytes_of(&plan, "budget"), count(&summary, "budget_bytes"), "{arguments}");
        assert_eq!(count(&summary, "retried_steps"), 0, "{arguments}");
        let micro_batch = count(&summary, "micro_batch");
        let line = format!("plan            micro-batches of {micro_batch}");
        assert!(plan.lines().any(|found| found == line), "no {line} in:\n{plan}");
    }
}

#[test]
fn predicted_peak_is_budget_enough_and_one_byte_less_is_not() {
    let place = Place::new();
    let free = place.train("--epochs 1", "run");
    let peak = count(&free, "predicted_peak_bytes");
    let exact = place.train(&format!("--epochs 1 --budget {peak}"), "run");
    for key in ["micro_batch", "measured_peak_bytes", "final_state_hash", "retried_steps"] {
        assert_eq!(exact[key], free[key], "{key}");
    }
    let less = place.train(&format!("--epochs 1 --budget {}", peak - 1), "run");
    assert!(count(&less, "micro_batch") < count(&free, "micro_batch"), "{less}");
    assert!(count(&less, "measured_peak_bytes") < peak, "{less}");
}

#[test]
fn half_the_budget_trains_the_same_batches_in_smaller_parts() {
    let place = Place::new();
    let whole = place.train("--epochs 2", "run");
    let half_bytes = count(&whole, "predicted_peak_bytes") / 2;
    let half = place.train(&format!("--epochs 2 --budget {half_bytes}"), "run");
    assert!(count(&half, "micro_batch") < count(&whole, "micro_batch"), "{half}");
    assert!(count(&half, "measured_peak_bytes") <= half_bytes, "{half}");
    for key in ["steps", "batch_size", "retried_steps"] {
        assert_eq!(half[key], whole[key], "{key}");
    }
    // The sums of 12 steps are only reassociated. The tolerance is far above f32 rounding, and far
    // below the effect of another batch size.
    let loss = |summary: &Value| summary["train_loss_last"].as_f64().expect("a number");
    assert!((loss(&half) - loss(&whole)).abs() < 1e-3, "{half} {whole}");
}

#[test]
fn impossible_budget_is_refused_with_the_missing_bytes_and_a_way_out() {
    let place = Place::new();
    for command in ["plan --epochs 1", "train --epochs 1 --out run"] {
        // Budgets below the need of the model and above it are refused in different places.
        for budget in [1u64, 1 << 10, 100 << 10] {
            let refused = place.run(&format!("{command} --budget {budget}"));
            let line = refused.check_refused(2, &["does not fit", "--budget"]);
            let missing = number_before(&line, " bytes more");
            let enough = budget + missing;
            assert!(line.contains(&format!("--budget {enough}B")), "{line}");
            place.run(&format!("plan --epochs 1 --budget {enough}B")).check_done();
            let less = format!("{command} --budget {}", enough - 1);
            place.run(&less).check_refused(2, &["1 bytes more"]);
        }
    }
    assert!(place.list(".").is_empty(), "{:?}", place.list("."));
}

#[test]
fn recipe_that_forbids_splitting_is_told_that_it_could() {
    let place = Place::new();
    place.write("whole.toml", "[train]\nepochs = 1\nsplit_batches = false\n");
    place.run("train whole.toml").check_done();
    let refused = place.run("train whole.toml --budget 6MiB");
    let line = refused.check_refused(2, &["does not fit", "allow micro-batches of"]);
    let micro_batch = line.split_once("allow micro-batches of ").expect("checked").1;
    let plan = place.run("plan --epochs 1 --budget 6MiB").check_done();
    let knob = micro_batch.split(',').next().expect("a number");
    assert!(plan.contains(&format!("micro-batches of {knob}\n")), "{line}\n{plan}");
}

#[test]
fn plan_shows_what_each_micro_batch_costs_and_writes_nothing() {
    let place = Place::new();
    let plan = place.run("plan --budget 6MiB").check_done();
    let rows = plan.lines().skip_while(|line| !line.starts_with("micro-batch ")).skip(1);
    let rows: Vec<&str> = rows.take_while(|line| !line.is_empty()).collect();
    assert!(rows.len() > 3, "{plan}");
    assert!(rows[0].starts_with("256 ") && rows[0].ends_with("over the budget"), "{plan}");
    let chosen: Vec<&str> = plan.lines().filter(|line| line.ends_with("<- plan")).collect();
    assert_eq!(chosen.len(), 1, "{plan}");
    assert_eq!(number_before(chosen[0], " bytes"), bytes_of(&plan, "predicted peak"));
    // Parts that need no less memory than larger ones have no row.
    assert!(rows.is_sorted_by(|a, b| number_before(a, " bytes") > number_before(b, " bytes")));
    assert!(place.list(".").is_empty());
}

#[test]
fn plan_of_several_budgets_has_a_line_each_and_exits_with_2_unless_all_fit() {
    let place = Place::new();
    let all = place.run("plan digits-resnet --set train.batch_size=64 --budget 64MiB,6MiB");
    let words = all.check_done();
    let rows: Vec<&str> = words.lines().filter(|line| line.contains(" bytes)")).collect();
    assert!(rows[0].starts_with("64 MiB ") && rows[0].ends_with("micro-batches of 64"), "{words}");
    // The samples of a batch are coupled, so batches are not split.
    assert!(rows[1].starts_with("6 MiB ") && rows[1].contains("recomputed"), "{words}");
    assert_eq!(rows.len(), 2, "{words}");
    for (at, budget) in ["64MiB", "6MiB"].into_iter().enumerate() {
        let arguments = "plan digits-resnet --set train.batch_size=64 --budget";
        let alone = place.run(&format!("{arguments} {budget}")).check_done();
        let peak_bytes = bytes_of(&alone, "predicted peak");
        assert_eq!(number_before(rows[at], " bytes"), peak_bytes, "{words}\n{alone}");
    }
    let some = place.run("plan digits-resnet --budget 64MiB,1MiB --json");
    assert_eq!(some.code, Some(2), "{some:?}");
    let told: serde_json::Value = serde_json::from_str(&some.stdout).expect("an object");
    assert_eq!(told["fits"], false);
    assert!(told["plans"][0]["predicted_peak_bytes"].as_u64() <= Some(64 << 20), "{told}");
    assert!(told["plans"][1]["does_not_fit"]["missing_bytes"].as_u64() > Some(0), "{told}");
    place.run("train --budget 6MiB,7MiB").check_refused(1, &["--budget", "a run has one"]);
    place.run("train --wait 5steps").check_refused(1, &["--wait", "60s"]);
    assert!(place.list(".").is_empty());
}

#[test]
fn device_that_is_not_there_is_planned_for_by_its_name_and_memory() {
    let place = Place::new();
    let words = place.run("plan --device h100:80GiB").check_done();
    assert!(words.starts_with("budget          79.3 GiB "), "{words}");
    assert!(words.contains(": what is left of the h100\noutside         768 MiB "), "{words}");
    let within = place.run("plan --device T4:16GiB --budget 6MiB").check_done();
    assert_eq!(bytes_of(&within, "budget"), 6 << 20);
    let several = place.run("plan --device l4:24GiB --budget 6MiB,8MiB").check_done();
    assert!(several.lines().count() == 5, "{several}");
    for wrong in ["h100", "h100:", "h100:0", "h100:x", "b52:80GiB", ":80GiB"] {
        place.run(&format!("plan --device {wrong}")).check_refused(1, &["--device"]);
    }
    place.run("train --device h100:80GiB").check_refused(1, &["--device", "not to run on"]);
    // With tf32, copies with channels last take memory.
    let rounded = place.run("plan --device h100:80GiB --tf32").check_done();
    assert!(bytes_of(&rounded, "  workspace") > bytes_of(&words, "  workspace"), "{rounded}");
    for without in ["t4:16GiB", "cpu"] {
        let outcome = place.run(&format!("plan --device {without} --tf32"));
        outcome.check_refused(1, &["--tf32", "has no tf32, which NVIDIA devices have since"]);
    }
}

#[test]
fn changes_of_the_numerics_are_made_where_they_are_allowed_and_needed() {
    let place = Place::new();
    let least = |words: &str| {
        let outcome = place.run(&format!("plan --epochs 1 --budget 64KiB --json {words}"));
        assert_eq!(outcome.code, Some(2), "{outcome:?}");
        let object: Value = serde_json::from_str(&outcome.stdout).expect("one object");
        count(&object["does_not_fit"], "needed_bytes")
    };
    let model = "--set model.channels=64";
    let (as_it_is, narrow) = (least(model), least(&format!("{model} --set train.states=8bit")));
    assert!(narrow < as_it_is, "{narrow} of {as_it_is}");
    let with = |allow: &str, budget: u64| {
        place.run(&format!("plan --epochs 1 {model} --budget {budget}B {allow}"))
    };
    let refused = with("", as_it_is - 1).check_refused(2, &["does not fit"]);
    assert!(refused.contains("--allow 8bit-states (needs "), "{refused}");
    // If the unchanged recipe fits, an allowed change is not made.
    let plan = with("--allow 8bit-states", as_it_is).check_done();
    assert!(!plan.contains("numerics"), "{plan}");
    let plan = with("--allow 8bit-states", narrow).check_done();
    assert!(plan.contains("numerics        states of the optimizer in 8 bits"), "{plan}");
    assert_eq!(bytes_of(&plan, "predicted peak"), narrow);
    with("--allow 8bit-states", narrow - 1).check_refused(2, &["does not fit"]);
    // Changes are tried one after the other in the given order, and then together.
    let plan = with("--allow bf16,8bit-states,bf16-parameters", narrow - 1).check_done();
    let lines: Vec<&str> =
        plan.lines().filter(|line| line.contains("does not fit without")).collect();
    assert!(matches!(lines.len(), 1 | 3), "{plan}");
    with("--allow 4bit", narrow).check_refused(1, &["4bit", "8bit-states, bf16, bf16-parameters"]);

    // The run uses the planned recipe, and resumes with it.
    let arguments = format!("--epochs 1 {model} --budget {narrow}B --allow 8bit-states");
    let summary = place.train(&arguments, "narrow");
    assert_eq!(count(&summary, "predicted_peak_bytes"), narrow);
    assert_eq!(summary["predicted_peak_bytes"], summary["measured_peak_bytes"]);
    assert_eq!(summary["numerics"], serde_json::json!(["states of the optimizer in 8 bits"]));
    let page = String::from_utf8(place.read("narrow/report.html")).expect("text");
    assert!(page.contains("Numerics changed to fit"), "the report says so");
    let recipe = String::from_utf8(place.read("narrow/recipe.toml")).expect("text");
    assert!(recipe.contains("states = \"8bit\""), "{recipe}");
    // A plan in a file, and plans for several budgets, make the same change.
    let arguments = format!("--epochs 1 {model} --budget {narrow}B");
    place.write(
        "plan.json",
        place.run(&format!("plan {arguments} --allow 8bit-states --json")).check_done(),
    );
    let by_plan = place.train(&format!("--epochs 1 {model} --plan plan.json"), "by_plan");
    assert_eq!(by_plan["final_state_hash"], summary["final_state_hash"]);
    assert_eq!(by_plan["numerics"], summary["numerics"]);
    let both = format!("{narrow}B,{as_it_is}B");
    let lines = place
        .run(&format!("plan --epochs 1 {model} --budget {both} --allow 8bit-states"))
        .check_done();
    let marked: Vec<bool> =
        lines.lines().skip(3).map(|line| line.contains("states of the optimizer")).collect();
    assert_eq!(marked, [true, false], "{lines}");
}

#[test]
fn memory_of_the_host_is_planned_beside_a_device_that_has_its_own() {
    let place = Place::new();
    let plan = place.run("plan --epochs 1 --device h100:80GiB --offload-budget 1GiB").check_done();
    // Everything fits on the device, and this model has no blocks.
    assert!(!plan.contains("offloaded"), "{plan}");
    place
        .run("plan --epochs 1 --offload-budget 1GiB")
        .check_refused(1, &["--offload-budget: is for a cuda device"]);
    place.run("eval run --offload-budget 1GiB").check_refused(1, &["--offload-budget"]);
}
