use std::collections::BTreeMap;
use std::path::PathBuf;

use lowtide_scoreboard::case::{Case, Cases, Kind};
use lowtide_scoreboard::onnx;
use lowtide_scoreboard::outcome::{Law, Outcome, Reason};
use lowtide_scoreboard::report::Report;
use lowtide_scoreboard::run;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/onnx")
}

/// The first case of an operator, and the bytes of all cases.
fn case_of(op: &str) -> (Case, Vec<u8>) {
    let sample = Cases::read(&folder().join("sample.jsonl")).expect("the sample is checked in");
    let mut cases = sample.cases.into_iter();
    (cases.find(|case| case.op == op).expect("a case of the operator"), sample.bytes)
}

/// The message of a failed case.
fn failure(case: &Case, bytes: &[u8]) -> String {
    match run::run(case, bytes).outcome {
        Outcome::Failed(why) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_node_of_the_sample_is_as_in_onnx_and_keeps_the_laws() {
    let report = Report::of_folder("onnx", &folder()).expect("the sample is checked in");
    for line in report.cases() {
        assert!(line.verdict.is_good(), "{}: {:?}", line.name, line.verdict);
        let is_passed = line.verdict.outcome == Outcome::Passed;
        let is_kept = |law: &Law| *law == Law::Kept;
        let keeps_both = is_kept(&line.verdict.allocations) && is_kept(&line.verdict.bits);
        assert_eq!(is_passed, keeps_both, "{}: {:?}", line.name, line.verdict);
    }
    let passed = |kind: Kind| {
        let lines = report.cases().iter().filter(|line| line.kind == kind);
        lines.filter(|line| line.verdict.outcome == Outcome::Passed).count()
    };
    assert!(passed(Kind::Sample) > 100 && passed(Kind::Function) > 20, "{}", report.summary());
    let lines = report.lines();
    assert_eq!(lines.lines().count(), report.cases().len(), "each case has a line");
    assert!(lines.contains("\"reason\":\"out_of_scope\""), "with the reason if it does not apply");
}

#[test]
fn a_result_that_is_not_that_of_onnx_fails() {
    let (case, mut bytes) = case_of("onnx.Gemm");
    assert_eq!(run::run(&case, &bytes).outcome, Outcome::Passed);
    let at = case.tensor(&case.outputs[0]).expect("a tensor").at;
    bytes[at + 2] ^= 0x41;
    assert!(failure(&case, &bytes).contains("result 0: element 0"));
}

#[test]
fn a_value_that_no_node_gives_is_an_error_with_its_name() {
    let (mut case, bytes) = case_of("onnx.Gemm");
    let graph = case.graph.as_mut().expect("a graph");
    graph.nodes[0].inputs[1] = "nowhere".to_owned();
    assert_eq!(failure(&case, &bytes), "error: Gemm: no value is called `nowhere`");
    let (mut case, bytes) = case_of("onnx.Gemm");
    case.graph.as_mut().expect("a graph").outputs[0] = "nothing".to_owned();
    assert_eq!(failure(&case, &bytes), "error: no node gives `nothing`");
}

#[test]
fn an_input_or_attribute_that_is_left_out_or_of_another_kind_is_an_error() {
    let (mut case, bytes) = case_of("onnx.Gemm");
    case.graph.as_mut().expect("a graph").nodes[0].inputs[1].clear();
    assert_eq!(failure(&case, &bytes), "error: Gemm: input 1 is left out");
    for (value, part) in [
        ("\"first\"", "attribute `transA` is \"first\", not a whole number"),
        ("[1]", "attribute `transA` is [1], not a whole number"),
        ("0.5", "attribute `transA` is 0.5, not a whole number"),
    ] {
        let (mut case, bytes) = case_of("onnx.Gemm");
        let value = serde_json::from_str(value).expect("JSON");
        let graph = case.graph.as_mut().expect("a graph");
        graph.nodes[0].attributes.insert("transA".to_owned(), value);
        assert_eq!(failure(&case, &bytes), format!("error: Gemm: {part}"));
    }
    let (mut case, bytes) = case_of("onnx.ReduceSum");
    let graph = case.graph.as_mut().expect("a graph");
    let inputs = &mut graph.nodes[0].inputs;
    *inputs = vec![inputs[0].clone()];
    graph.nodes[0].attributes.insert("axes".to_owned(), vec![7].into());
    assert_eq!(failure(&case, &bytes), "error: ReduceSum: there is no dimension 7 of 3");
}

#[test]
fn an_attribute_that_lowtide_does_not_have_is_missing_and_never_ignored() {
    let Cases { cases, bytes } =
        Cases::read(&folder().join("sample.jsonl")).expect("the sample is checked in");
    for mut case in cases {
        let before = run::run(&case, &bytes).outcome;
        let graph = case.graph.as_mut().expect("a graph");
        for node in &mut graph.nodes {
            node.attributes.insert("unheard_of".to_owned(), true.into());
        }
        let after = run::run(&case, &bytes).outcome;
        match before {
            Outcome::Passed => assert!(
                matches!(&after, Outcome::NotApplicable(Reason::Argument, _)),
                "{}: {after:?}",
                case.name
            ),
            before => assert_eq!(before, after, "{}", case.name),
        }
    }
}

#[test]
fn an_operator_that_no_list_has_is_missing() {
    let (mut case, bytes) = case_of("onnx.Gemm");
    case.graph.as_mut().expect("a graph").nodes[0].op = "Unheard".to_owned();
    let outcome = run::run(&case, &bytes).outcome;
    assert_eq!(outcome, Outcome::NotApplicable(Reason::Operation, "Unheard".to_owned()));
}

#[test]
fn no_operator_has_two_calls_or_is_missing_as_well() {
    let mut calls: BTreeMap<String, usize> = BTreeMap::new();
    onnx::names().for_each(|name| *calls.entry(format!("onnx.{name}")).or_default() += 1);
    let twice: Vec<_> = calls.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
    let both: Vec<_> =
        calls.keys().filter(|name| onnx::MISSING.iter().any(|missing| missing.has(name))).collect();
    assert!(both.is_empty(), "{both:?}");
}
