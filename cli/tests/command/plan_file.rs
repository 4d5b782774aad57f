//! `lowtide plan --json`, and `lowtide train --plan` with its output.

use crate::place::Place;

const SMALL: &str = "--epochs 2";

#[test]
fn run_by_a_plan_is_the_run_that_was_planned() {
    let place = Place::new();
    let plan = place.run(&format!("plan {SMALL} --budget 6MiB --json"));
    place.write("plan.json", plan.check_done());
    let told = place.json("plan.json");
    let direct = place.train(&format!("{SMALL} --budget 6MiB"), "direct");
    let by_plan = place.train(&format!("{SMALL} --plan plan.json"), "by_plan");
    let same = [
        "micro_batch",
        "predicted_peak_bytes",
        "measured_peak_bytes",
        "budget_bytes",
        "final_state_hash",
    ];
    for name in same {
        assert_eq!(direct[name], by_plan[name], "{name}");
    }
    assert_eq!(by_plan["micro_batch"], 128);
    assert_eq!(by_plan["measured_peak_bytes"], told["predicted_peak_bytes"]);

    // The run keeps the plan's knobs in a larger budget.
    let roomy = place.train(&format!("{SMALL} --plan plan.json --budget 64MiB"), "roomy");
    assert_eq!(roomy["micro_batch"], 128);
    assert_eq!(roomy["measured_peak_bytes"], told["predicted_peak_bytes"]);
    // A budget below the plan's peak is refused.
    let tight = place.run(&format!("train {SMALL} --plan plan.json --budget 3MiB"));
    tight.check_refused(2, &["does not fit"]);
}

#[test]
fn run_by_a_plan_recomputes_and_fuses_as_that_says() {
    let place = Place::new();
    let model = "digits-resnet --epochs 1 --set train.batch_size=64 --set model.width=4";
    let whole = place.run(&format!("plan {model} --json"));
    place.write("whole.json", whole.check_done());
    let whole_bytes = place.json("whole.json")["predicted_peak_bytes"].as_u64().expect("bytes");
    let tight = place.run(&format!("plan {model} --json --budget {}B", whole_bytes - 1));
    place.write("tight.json", tight.check_done());
    assert_eq!(place.json("tight.json")["cheap_recomputed"], true);
    let [whole, tight] =
        ["whole", "tight"].map(|name| place.train(&format!("{model} --plan {name}.json"), name));
    assert_eq!(tight["cheap_recomputed"], true);
    assert_eq!(whole["final_state_hash"], tight["final_state_hash"]);
    assert!(tight["measured_peak_bytes"].as_u64() < whole["measured_peak_bytes"].as_u64());
}

#[test]
fn plan_of_something_else_is_refused_before_the_first_step() {
    let place = Place::new();
    place.write("plan.json", place.run("plan --epochs 2 --json").check_done());
    let refused = |arguments: &str, words: &[&str]| {
        place.run(&format!("train --out out {arguments}")).check_refused(1, words);
        assert!(!place.path("out").exists(), "{arguments}");
    };
    refused(
        "--plan plan.json --epochs 2 --batch-size 128",
        &["plan.json", "a batch was 256 and is 128"],
    );
    refused(
        "--plan plan.json --epochs 2 --set model.channels=9",
        &["plan.json", "event 1, a step of 256 samples: ", "recipe, data, options"],
    );
    refused(
        "--plan plan.json --epochs 1",
        &["plan.json", "the number of steps and evaluations was"],
    );
    // Another version might allocate once more in the second evaluation.
    let mut plan = place.json("plan.json");
    let events = plan["events"].as_array_mut().expect("a list");
    let evaluations = events.iter_mut().filter(|event| event["is_evaluation"] == true);
    let second = evaluations.last().expect("one after each epoch");
    second["allocations"] = (second["allocations"].as_u64().expect("a number") + 1).into();
    place.write("newer.json", plan.to_string());
    refused("--plan newer.json --epochs 2", &["an evaluation of ", "the count of allocations was"]);
    refused("--plan missing.json", &["missing.json"]);
    place.write("words.json", "not a plan");
    refused("--plan words.json", &["words.json", "lowtide plan --json"]);
    place.write("two.json", place.run("plan --budget 6MiB,8MiB --json").check_done());
    refused("--plan two.json", &["two.json", "is not one plan"]);
    refused("--plan plan.json --resume out", &["--resume"]);
}
