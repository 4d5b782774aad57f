use std::collections::BTreeMap;
use std::path::PathBuf;

use lowtide_scoreboard::case::{Case, Cases, Kind, Numbers, Stored, Truth};
use lowtide_scoreboard::ops;
use lowtide_scoreboard::outcome::{Law, Outcome, Reason};
use lowtide_scoreboard::report::{Line, Report};
use lowtide_scoreboard::{run, transformers};
use lowtide_tensor::bf16;
use serde_json::{Value, json};

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

/// A new tensor of the case, whose first element is larger by `by` than the first element of
/// `value`.
fn shifted(case: &mut Case, bytes: &mut Vec<u8>, value: &Value, by: f64) -> Value {
    let stored = case.tensor(value).expect("a tensor").clone();
    let Numbers::Floats(mut numbers) = stored.values(bytes).numbers else {
        panic!("{stored:?} has no floats");
    };
    numbers[0] += by;
    let at = bytes.len();
    for x in numbers {
        match &*stored.dtype {
            "f32" => bytes.extend((x as f32).to_le_bytes()),
            "bf16" => bytes.extend(bf16::from_f64(x).to_le_bytes()),
            other => panic!("{other} is not among the samples of this test"),
        }
    }
    case.tensors.push(Stored { at, offset: 0, ..stored });
    json!({ "tensor": case.tensors.len() - 1 })
}

#[test]
fn results_within_the_roundings_of_neighbours_do_not_apply_and_others_fail() {
    // A result passes up to the worst distance of the neighbours; in half types, up to twice that
    // distance.
    for (dtype, by, within, outside) in [("f32", 0.01, 0.011, 0.009), ("bf16", 0.5, 0.3, 0.2)] {
        let Cases { cases, bytes } = sample();
        let is_it = |case: &Case| case.op == "nn.functional.silu" && case.dtype == dtype;
        let case = cases.into_iter().find(is_it).expect("a sample of silu");
        assert_eq!(run::run(&case, &bytes).outcome, Outcome::Passed);
        // The first place is the result, the second the gradient.
        for place in 0..2 {
            let (mut case, mut bytes) = (case.clone(), bytes.clone());
            let value = [&case.outputs, &case.gradients][place][0].clone();
            let moved = shifted(&mut case, &mut bytes, &value, by);
            [&mut case.outputs, &mut case.gradients][place][0] = moved;
            let (outputs, gradients) = (case.outputs.clone(), case.gradients.clone());
            let truth = Truth { is_close: true, outputs, gradients, nearby: Vec::new() };
            let mut outcome = |nearby: &[f64]| {
                case.truth = Some(Truth { nearby: nearby.to_vec(), ..truth.clone() });
                run::run(&case, &bytes).outcome
            };
            let mut nearby = [1.0; 2];
            nearby[place] = within;
            let found = outcome(&nearby);
            let is_rounding =
                matches!(&found, Outcome::NotApplicable(reason, _) if *reason == Reason::Roundings);
            assert!(is_rounding, "{dtype} {place}: {found:?}");
            nearby[place] = outside;
            let found = outcome(&nearby);
            assert!(matches!(found, Outcome::Failed(_)), "{dtype} {place}: {found:?}");
            let found = outcome(&[]);
            assert!(matches!(found, Outcome::Failed(_)), "not measured: {found:?}");
        }
    }
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

#[test]
fn models_of_transformers_train_from_their_own_files_as_there() {
    let report = checked(transformers::SUITE);
    let passed = |line: &&Line| matches!(line.verdict.outcome, Outcome::Passed);
    let laws =
        |line: &&Line| line.verdict.allocations == Law::Kept && line.verdict.bits == Law::Kept;
    // Two models in two types: ten logits, ten losses, and the gradients of two steps.
    assert_eq!(report.cases().len(), 2 * 2 * 22, "{}", report.summary());
    assert!(report.cases().iter().filter(passed).count() > 80, "{}", report.summary());
    assert_eq!(report.cases().iter().filter(laws).count(), report.cases().len());
}

#[test]
fn models_that_are_not_those_of_transformers_fail() {
    let folder = folder(transformers::SUITE);
    let Cases { cases, mut bytes } = Cases::read(&folder.join("llama.jsonl")).expect("the sample");
    let case = cases.iter().find(|case| case.dtype == "f64").expect("a run in f64");
    let failed = |bytes: &[u8]| -> Vec<String> {
        let lines = transformers::lines(case, bytes, &folder);
        let failed = lines.iter().filter(|line| matches!(line.verdict.outcome, Outcome::Failed(_)));
        failed.map(|line| format!("{} {}", line.op, line.index)).collect()
    };
    assert_eq!(failed(&bytes), [""; 0]);
    // One digit of a loss and of a gradient is changed.
    let gradient = case.gradients[9].as_object().and_then(|all| all.values().next());
    let places = [&case.outputs[3]["loss"], gradient.expect("a gradient")];
    for (value, name) in places.into_iter().zip(["llama loss 3", "llama gradients 9"]) {
        let at = case.tensor(value).expect("a tensor").at;
        bytes[at + 5] ^= 0x40;
        assert_eq!(failed(&bytes), [name]);
        bytes[at + 5] ^= 0x40;
    }
    // Another learning rate changes all steps but the first.
    let mut other = case.clone();
    other.options["optimizer"]["lr"] = 2e-3.into();
    let lines = transformers::lines(&other, &bytes, &folder);
    let failed = lines.iter().filter(|line| matches!(line.verdict.outcome, Outcome::Failed(_)));
    assert_eq!(failed.count(), lines.len() - 3);
}

#[test]
fn options_of_models_that_nothing_reads_are_missing() {
    let from = folder(transformers::SUITE);
    let to = tempfile::tempdir().expect("a folder");
    let cases = Cases::read(&from.join("gpt2.jsonl")).expect("the sample");
    let case = cases.cases.iter().find(|case| case.dtype == "f32").expect("a run in f32");
    let folder = to.path().join("gpt2.f32");
    std::fs::create_dir(&folder).expect("a folder");
    let weights = "gpt2.f32/model.safetensors";
    std::fs::copy(from.join(weights), to.path().join(weights)).expect("the weights");
    let text = std::fs::read_to_string(from.join("gpt2.f32/config.json")).expect("the sample");
    let outcome = |old: &str, new: &str| {
        assert!(text.contains(old), "{old}");
        std::fs::write(folder.join("config.json"), text.replace(old, new)).expect("a file");
        let lines = transformers::lines(case, &cases.bytes, to.path());
        lines[0].verdict.outcome.clone()
    };
    for (old, new, reason) in [
        ("\"n_head\"", "\"unheard_of\": 1, \"n_head\"", Reason::Argument),
        ("\"gelu_new\"", "\"quick_gelu\"", Reason::Argument),
        ("GPT2LMHeadModel", "GPT2ForTokenClassification", Reason::Form),
        ("\"attn_pdrop\": 0.0", "\"attn_pdrop\": 0.1", Reason::Random),
    ] {
        let outcome = outcome(old, new);
        let is_it = matches!(&outcome, Outcome::NotApplicable(found, _) if *found == reason);
        assert!(is_it, "{new}: {outcome:?}");
    }
    assert!(matches!(outcome("\"n_head\": 2", "\"n_head\": 4"), Outcome::Failed(_)));
}
