use std::collections::BTreeMap;
use std::path::PathBuf;

use lowtide_scoreboard::case::{Cases, Kind};
use lowtide_scoreboard::ops;
use lowtide_scoreboard::outcome::{Law, Outcome};
use lowtide_scoreboard::report::Report;
use lowtide_scoreboard::run;

fn folder(suite: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests").join(suite)
}

fn sample() -> Cases {
    Cases::read(&folder("opinfo").join("sample.jsonl")).expect("the sample that is checked in")
}

fn checked(suite: &str) -> Report {
    let report = Report::of_folder(suite, &folder(suite)).expect("the sample that is checked in");
    for line in report.cases() {
        let name = format!("{} {} {:?} {}", line.op, line.dtype, line.kind, line.index);
        assert!(line.verdict.is_good(), "{name}: {:?}", line.verdict);
    }
    report
}

#[test]
fn every_layer_of_the_sample_is_as_in_pytorch_and_keeps_the_laws() {
    let report = checked("moduleinfo");
    let passed = report.cases().iter().filter(|line| line.verdict.outcome == Outcome::Passed);
    assert!(passed.count() > 35, "{}", report.summary());
}

#[test]
fn every_case_of_the_sample_is_as_in_pytorch_and_keeps_the_laws() {
    let report = checked("opinfo");
    let passed = |kind: Kind| {
        let lines = report.cases().iter().filter(|line| line.kind == kind);
        lines.filter(|line| line.verdict.outcome == Outcome::Passed).count()
    };
    assert!(passed(Kind::Sample) > 200 && passed(Kind::Error) > 20, "{}", report.summary());
    let kept = report.cases().iter().filter(|line| line.verdict.allocations == Law::Kept);
    assert!(kept.count() > 200, "{}", report.summary());
}

#[test]
fn results_and_gradients_that_are_not_those_of_lowtide_fail() {
    let Cases { cases, mut bytes } = sample();
    let is_wanted = |dtype: &str| dtype == "f32";
    let mut case = cases.into_iter().find(|case| case.op == "atan2" && is_wanted(&case.dtype));
    let case = case.as_mut().expect("a sample of atan2");
    assert_eq!(run::run(case, &bytes).outcome, Outcome::Passed);
    for (value, part) in [(&case.outputs[0], "result 0"), (&case.gradients[1], "operand 1")] {
        let at = case.tensor(value).expect("a tensor").at;
        let byte = bytes[at + 3];
        bytes[at + 3] ^= 0x41;
        let outcome = run::run(case, &bytes).outcome;
        assert!(matches!(&outcome, Outcome::Failed(why) if why.contains(part)), "{outcome:?}");
        bytes[at + 3] = byte;
    }
    let Some(case) = sample().cases.into_iter().find(|case| case.kind == Kind::Sample) else {
        unreachable!("there are samples");
    };
    let error = lowtide_scoreboard::case::Case { kind: Kind::Error, ..case };
    assert!(matches!(run::run(&error, &bytes).outcome, Outcome::Failed(_)), "no error");
}

#[test]
fn an_argument_that_lowtide_does_not_have_is_missing_and_never_ignored() {
    let Cases { cases, bytes } = sample();
    for mut case in cases.into_iter().filter(|case| case.kind == Kind::Sample) {
        case.options.insert("unheard_of".to_owned(), true.into());
        let outcome = run::run(&case, &bytes).outcome;
        let is_reported = matches!(outcome, Outcome::NotApplicable(..) | Outcome::Failed(_));
        assert!(is_reported, "{} {}: {outcome:?}", case.op, case.index);
    }
}

#[test]
fn no_name_has_two_calls_or_is_missing_as_well() {
    let mut calls: BTreeMap<&str, usize> = BTreeMap::new();
    ops::names().for_each(|name| *calls.entry(name).or_default() += 1);
    let twice: Vec<_> = calls.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
    let missing = ops::MISSING.iter().flat_map(|missing| missing.names.split_whitespace());
    let both: Vec<_> = missing.filter(|name| calls.contains_key(*name)).collect();
    assert!(both.is_empty(), "{both:?}");
}
