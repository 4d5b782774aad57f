use std::path::Path;

use xtask::test::{Counting, Needs, Options, Plan, Section, plan};
use xtask::tree::Tree;

fn options(arguments: &[&str]) -> Options {
    let arguments: Vec<String> = arguments.iter().map(|a| (*a).to_owned()).collect();
    Options::parse(&arguments).expect("these are arguments of test")
}

fn names(plan: &Plan) -> Vec<&str> {
    plan.sections.iter().map(|section| section.name).collect()
}

fn section<'a>(plan: &'a Plan, name: &str) -> &'a Section {
    plan.sections.iter().find(|section| section.name == name).expect("the plan has it")
}

#[test]
fn sections_run_from_cheap_to_dear_and_deep_ones_are_named() {
    let plan = plan(&options(&[]), None);
    let expected = [
        "format",
        "clippy",
        "tidy",
        "tests",
        "tests on a device",
        "doc tests",
        "benches, once each",
        "ranks under MPI",
        "clippy without CUDA",
        "clippy of the allocator alone",
        "clippy of the trainer alone",
        "package",
        "docs",
    ];
    assert_eq!(names(&plan), expected);
    assert_eq!(
        plan.left_out,
        ["not run without --deep: address sanitizer, thread sanitizer, kernels under the address \
          sanitizer, miri, loom, fuzz targets of trace, fuzz targets of data, fuzz targets of \
          pretrained, data with candle, scoreboard, long property tests"]
    );
}

/// The arguments name no target that they leave out.
#[test]
fn every_test_target_is_in_one_of_the_two_sections_of_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace");
    let tree = Tree::read(root).expect("files");
    let plan = plan(&options(&[]), None);
    let sections = ["tests", "tests on a device"].map(|name| section(&plan, name));
    let mut targets = 0;
    for folder in tree.crates() {
        let tests = format!("{folder}/tests/");
        let paths = tree.files.iter().filter_map(|file| file.path.strip_prefix(&tests));
        for path in paths {
            let name = match path.split_once('/') {
                Some((name, "main.rs")) => name,
                None => path.strip_suffix(".rs").unwrap_or(path),
                Some(_) => continue,
            };
            targets += 1;
            let is_in = |section: &&Section| {
                let patterns = section.arguments.windows(2).filter(|pair| pair[0] == "--test");
                patterns.into_iter().any(|pair| matches(&pair[1], name))
            };
            assert_eq!(
                sections.iter().filter(|section| is_in(section)).count(),
                1,
                "{folder} {name}"
            );
        }
    }
    assert!(targets > 20, "{targets} targets");
}

/// True if `name` matches a pattern of letters, `*` at its end, and `[!a]`, another letter than a.
fn matches(pattern: &str, name: &str) -> bool {
    if let Some(rest) = pattern.strip_prefix("[!") {
        let (other, rest) = rest.split_once(']').expect("a closed bracket");
        let mut letters = name.chars();
        return letters.next().is_some_and(|letter| !other.contains(letter))
            && matches(rest, letters.as_str());
    }
    match (pattern.chars().next(), name.chars().next()) {
        (Some('*'), _) | (None, None) => true,
        (Some(a), Some(b)) => a == b && matches(&pattern[1..], &name[1..]),
        _ => false,
    }
}

#[test]
fn sections_are_run_alone_by_name_and_the_others_named() {
    let some = plan(&options(&["--section", "loom", "--section", "tidy"]), None);
    assert_eq!(names(&some), ["tidy", "loom"]);
    assert!(some.left_out[0].starts_with("not run without their names: format, clippy, tests"));
    let none = plan(&options(&["--section", "lom"]), None);
    assert!(none.sections.is_empty() && none.left_out[0].contains("loom"));
    assert!(Options::parse(&["--section".to_owned()]).is_err());
}

#[test]
fn deep_adds_and_leaves_nothing_out() {
    let plan = plan(&options(&["--deep"]), None);
    let expected = [
        "address sanitizer",
        "thread sanitizer",
        "kernels under the address sanitizer",
        "miri",
        "loom",
        "fuzz targets of trace",
        "fuzz targets of data",
        "fuzz targets of pretrained",
        "data with candle",
        "scoreboard",
        "long property tests",
    ];
    assert_eq!(names(&plan)[13..], expected);
    assert_eq!(plan.left_out, [""; 0]);
}

#[test]
fn sections_with_flags_of_their_own_build_apart_from_each_other_and_from_the_rest() {
    let plan = plan(&options(&["--deep"]), None);
    let has_flags = |section: &&Section| section.environment.iter().any(|(k, _)| *k == "RUSTFLAGS");
    let mut folders: Vec<String> = plan.sections.iter().filter(has_flags).map(folder_of).collect();
    assert_eq!(folders.len(), 3);
    folders.sort();
    folders.dedup();
    assert_eq!(folders.len(), 3, "{folders:?}");
}

fn folder_of(section: &Section) -> String {
    let at = section.arguments.iter().position(|a| a == "--target-dir").expect("its own folder");
    section.arguments[at + 1].clone()
}

#[test]
fn loom_runs_the_models_and_nothing_that_would_leave_a_model() {
    let plan = plan(&options(&["--deep"]), None);
    let section = section(&plan, "loom");
    let before_runner = section.arguments.iter().take_while(|a| *a != "--");
    assert_eq!(before_runner.last().map(String::as_str), Some("models::"));
    assert!(section.environment.contains(&("RUSTFLAGS", "--cfg lowtide_loom".to_owned())));
}

#[test]
fn deep_kills_ranks_many_times() {
    for (asked, cases) in [(&["--deep"][..], Some("2000")), (&[], None)] {
        let plan = plan(&options(asked), None);
        let environment = &section(&plan, "ranks under MPI").environment;
        let found = environment.iter().find(|(name, _)| *name == "PROPTEST_CASES");
        assert_eq!(found.map(|(_, value)| value.as_str()), cases);
    }
}

#[test]
fn thread_sanitizer_instruments_the_standard_library() {
    let plan = plan(&options(&["--deep"]), None);
    let section = section(&plan, "thread sanitizer");
    assert_eq!(section.needs, Needs::StandardSources);
    assert!(section.arguments.contains(&"-Zbuild-std".to_owned()));
}

#[test]
fn sanitizer_of_kernels_is_preloaded_into_tests_and_not_into_cargo() {
    let plan = plan(&options(&["tensor", "--deep"]), Some("lowtide-tensor"));
    let section = section(&plan, "kernels under the address sanitizer");
    assert_eq!(section.needs, Needs::CompilerSanitizer);
    assert_eq!(section.arguments[..2], ["test", "--config"]);
    let runner = &section.arguments[2];
    assert!(runner.contains(".runner") && runner.contains("LD_PRELOAD="), "{runner}");
    assert!(section.environment.iter().all(|(name, _)| *name != "LD_PRELOAD"));
    assert!(section.arguments.windows(2).any(|pair| pair == ["--test", "cuda"]));
}

#[test]
fn filter_reaches_every_section_that_reads_crates() {
    let plan = plan(&options(&["nn"]), Some("lowtide-nn"));
    for section in &plan.sections {
        let restricted = section.arguments.windows(2).any(|pair| pair == ["-p", "lowtide-nn"]);
        assert!(restricted || section.counting == Counting::Tidy, "{section:?}");
        assert!(!section.arguments.contains(&"--workspace".to_owned()), "{section:?}");
    }
    assert!(plan.left_out.contains(&"not run for one crate: package".to_owned()));
}

#[test]
fn cuda_is_tested_with_the_crates_that_have_it_and_with_everything() {
    let features = |package: Option<&str>| {
        let plan = plan(&options(&[]), package);
        let arguments = &section(&plan, "tests").arguments;
        let at = arguments.iter().position(|argument| argument == "--features");
        let without = names(&plan).contains(&"clippy without CUDA");
        assert_eq!(at.is_some(), without, "what is tested with it is read without it");
        at.map(|at| arguments[at + 1].clone())
    };
    let crates =
        ["allocator", "tensor", "nn", "ranks", "pretrained", "trainer", "cli", "scoreboard"];
    let all = crates.map(|name| format!("lowtide-{name}/pretend")).join(",");
    assert_eq!(features(None), Some(all));
    for name in crates {
        let name = format!("lowtide-{name}");
        assert_eq!(features(Some(&name)), Some("pretend".to_owned()), "{name}");
    }
    assert_eq!(features(Some("lowtide-data")), None);
}

#[test]
fn deep_filter_keeps_only_what_concerns_the_crate() {
    let of = |folder: &str| {
        let plan = plan(&options(&[folder, "--deep"]), Some("lowtide-x"));
        names(&plan)[7..].iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(of("amp"), ["long property tests"]);
    assert_eq!(of("nn"), ["kernels under the address sanitizer", "long property tests"]);
    assert_eq!(
        of("tensor"),
        [
            "address sanitizer",
            "thread sanitizer",
            "kernels under the address sanitizer",
            "loom",
            "long property tests"
        ]
    );
    assert!(of("allocator").contains(&"miri".to_owned()));
}

#[test]
fn output_of_passing_tests_is_shown_so_that_skips_are_seen() {
    let plan = plan(&options(&["--deep"]), None);
    for section in plan.sections.iter().filter(|section| section.counting == Counting::Runners) {
        // The `main` of criterion captures no output.
        let captures = !section.arguments.contains(&"--benches".to_owned());
        let shown = section.arguments.contains(&"--show-output".to_owned());
        assert_eq!(captures, shown, "{section:?}");
    }
}

#[test]
fn unknown_arguments_are_refused() {
    for arguments in [&["--fast"][..], &["nn", "data"]] {
        let arguments: Vec<String> = arguments.iter().map(|a| (*a).to_owned()).collect();
        assert!(Options::parse(&arguments).is_err(), "{arguments:?}");
    }
}
