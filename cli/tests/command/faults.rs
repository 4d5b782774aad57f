//! The fault drill: an allocation fails, and nothing is lost.

use crate::place::Place;

#[test]
fn failed_allocation_of_any_step_changes_nothing_but_the_count_of_retries() {
    let place = Place::new();
    let calm = place.train("--epochs 1", "calm");
    let allocations = calm["allocations"].as_u64().expect("a number");
    // Six steps and one evaluation: up to two thirds of the allocations belong to steps.
    for twelfth in 0..=8 {
        let nth = (allocations * twelfth / 12).max(1);
        let arguments = format!("--epochs 1 --fault-at {nth}");
        let drill = place.train(&arguments, "drill");
        assert_eq!(drill["final_state_hash"], calm["final_state_hash"], "allocation {nth}");
        assert_eq!(drill["retried_steps"], 1, "allocation {nth}");
        assert_eq!(drill["test_accuracy"], calm["test_accuracy"], "allocation {nth}");
        assert_eq!(drill["micro_batch"], calm["micro_batch"], "allocation {nth}");
    }
    let metrics = String::from_utf8(place.read("drill/metrics.jsonl")).expect("UTF-8");
    assert_eq!(metrics.matches("\"recovery\":\"same plan\"").count(), 1, "{metrics}");
    let page = String::from_utf8(place.read("drill/report.html")).expect("UTF-8");
    assert!(page.contains("injected"), "the retry is not on the page");
}

#[test]
fn failed_allocation_is_told_while_it_happens() {
    let place = Place::new();
    let drill = place.run("train --epochs 1 --fault-at 40");
    assert!(drill.stderr.contains("out of memory (injected)"), "{drill:?}");
    assert!(drill.stderr.contains("rolled back, again with the same plan"), "{drill:?}");
    drill.check_done();
}

#[test]
fn failed_allocation_of_the_evaluation_retries_no_step() {
    let place = Place::new();
    let calm = place.train("--epochs 1", "calm");
    let arguments = format!("train --epochs 1 --out drill --fault-at {}", calm["allocations"]);
    let words = place.run(&arguments).check_done();
    assert!(words.contains("failed in an evaluation"), "{words}");
    let drill = place.json("drill/summary.json");
    assert_eq!(drill["retried_steps"], 0);
    assert_eq!(drill["final_state_hash"], calm["final_state_hash"]);
    assert_eq!(drill["test_accuracy"], calm["test_accuracy"]);
}

#[test]
fn drill_beyond_the_end_of_the_run_says_so() {
    let place = Place::new();
    let calm = place.train("--epochs 1", "calm");
    let beyond = calm["allocations"].as_u64().expect("a number") + 1;
    let words = place.run(&format!("train --epochs 1 --fault-at {beyond}")).check_done();
    assert!(words.contains(&format!("allocation {beyond} was never made")), "{words}");
    let last = place.run(&format!("train --epochs 1 --fault-at {}", beyond - 1)).check_done();
    assert!(!last.contains("never made"), "{last}");
}
