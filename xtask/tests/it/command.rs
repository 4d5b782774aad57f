use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use xtask::tidy::CHECKS;

/// A repository with a workspace of one file, and programs that replace cargo and MPI.
fn workspace(cargo: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    fs::write(root.join("Cargo.toml"), "[workspace]\n").expect("a file");
    fs::write(root.join(".gitignore"), "/target\n").expect("a file");
    fs::create_dir_all(root.join("nn")).expect("a folder");
    fs::write(root.join("nn/Cargo.toml"), "[package]\nname = \"lowtide-nn\"\n").expect("a file");
    fs::create_dir_all(root.join(".git-bin")).expect("a folder");
    let programs =
        [(".git-cargo", cargo), (".git-bin/mpicc", "echo 1"), (".git-bin/mpirun", "echo 1")];
    for (name, text) in programs {
        let program = root.join(name);
        fs::write(&program, format!("#!/bin/sh\n{text}\n")).expect("a file");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("executable");
    }
    let status = Command::new("git").args(["init", "-q"]).current_dir(root).status();
    assert!(status.expect("git").success());
    folder
}

fn xtask(root: &Path, arguments: &[&str]) -> Output {
    let path = std::env::var("PATH").expect("there are programs");
    let path = format!("{}:{path}", root.join(".git-bin").display());
    Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(arguments)
        .current_dir(root)
        .env("CARGO", root.join(".git-cargo"))
        .env("PATH", path)
        .env("LIBCLANG_PATH", root)
        .env_remove("CARGO_TARGET_DIR")
        .output()
        .expect("xtask starts")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

const RESULT: &str = "test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";

#[test]
fn good_run_ends_in_its_counts_and_zero() {
    let folder = workspace(&format!("case $1 in test) echo '{RESULT}';; esac"));
    let output = xtask(folder.path(), &["test"]);
    let text = stdout(&output);
    // Format, package, docs, clippy four times; the tidy checks; five sections of test runners.
    assert!(
        text.contains("\n== section 5 of 13: tests on a device, at the same time ==\n"),
        "{text}"
    );
    let passed = 7 + CHECKS.len() + 5 * 5;
    assert!(text.starts_with("== section 1 of 13: format ==\n-- format: ok in 0."), "{text}");
    assert!(text.ends_with(&format!("\n{passed} passed, 0 failed, 0 skipped\n")), "{text}");
    assert!(output.status.success());
}

#[test]
fn failing_section_is_named_and_the_following_ones_run() {
    let folder = workspace(&format!(
        "case \"$*\" in *--version) ;; clippy*pretend*) exit 101;; test*) echo '{RESULT}';; esac"
    ));
    let output = xtask(folder.path(), &["test"]);
    let text = stdout(&output);
    assert!(text.contains("\nfailed sections: clippy\n"), "{text}");
    let passed = 6 + CHECKS.len() + 5 * 5;
    assert!(text.ends_with(&format!("\n{passed} passed, 1 failed, 0 skipped\n")), "{text}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn output_of_a_section_is_in_a_file_and_failures_on_the_screen() {
    let folder = workspace(
        "case $1 in test) echo '   Compiling nn v0.1.0' >&2; echo 'error: no' >&2; \
         echo 'test a ... ok'; echo 'test b ... FAILED'; exit 101;; esac",
    );
    let output = xtask(folder.path(), &["test", "--section", "tests"]);
    let text = stdout(&output);
    let log = folder.path().join("target/test/tests.log");
    let end = format!("test b ... FAILED\nall of its output: {}\n-- tests: FAILED", log.display());
    assert!(text.starts_with(&format!("== section 1 of 1: tests ==\n{end}")), "{text}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "error: no\n");
    let log = fs::read_to_string(log).expect("the whole output");
    assert!(log.contains("Compiling nn") && log.contains("test a ... ok"), "{log}");
}

#[test]
fn missing_tool_is_a_skip_with_its_reason() {
    let folder = workspace(&format!(
        "case \"$*\" in 'fmt --version') exit 1;; test*) echo '{RESULT}';; esac"
    ));
    let output = xtask(folder.path(), &["test"]);
    let text = stdout(&output);
    let passed = 6 + CHECKS.len() + 5 * 5;
    let end = format!(
        "\nskipped: format: `cargo fmt` is not installed here\n\
         {passed} passed, 0 failed, 1 skipped\n"
    );
    assert!(text.ends_with(&end), "{text}");
    assert!(output.status.success());
}

#[test]
fn skip_told_on_standard_error_is_counted() {
    let folder = workspace("case \"$*\" in test*--benches*) echo 'skipped: gpu: none' >&2;; esac");
    let text = stdout(&xtask(folder.path(), &["test"]));
    let end = format!("\nskipped: gpu: none\n{} passed, 0 failed, 1 skipped\n", 12 + CHECKS.len());
    assert!(text.ends_with(&end), "{text}");
}

#[test]
fn tidy_fault_fails_tidy_and_test() {
    let folder = workspace("exit 0");
    fs::write(folder.path().join("bare.rs"), "fn f() {}\n").expect("a file");
    let tidy = xtask(folder.path(), &["tidy"]);
    assert!(stdout(&tidy).starts_with("bare.rs:1: "), "{}", stdout(&tidy));
    assert_eq!(tidy.status.code(), Some(1));
    let test = xtask(folder.path(), &["test"]);
    assert!(stdout(&test).contains("\nfailed sections: tidy\n"), "{}", stdout(&test));
    assert_eq!(test.status.code(), Some(1));
}

#[test]
fn bench_writes_the_report_of_what_this_run_measured() {
    let folder = workspace(
        "mkdir -p target/criterion/g/new && cd target/criterion/g/new && \
         echo '{\"group_id\":\"g\",\"function_id\":\"baseline\"}' >benchmark.json && \
         echo '{\"median\":{\"point_estimate\":5.0},\"median_abs_dev\":{\"point_estimate\":1.0}}' \
         >estimates.json",
    );
    let output = xtask(folder.path(), &["bench", "nn"]);
    let path = folder.path().join("target/bench-report.md");
    assert_eq!(stdout(&output).trim_end(), path.display().to_string());
    let report = fs::read_to_string(path).expect("a report");
    assert!(report.contains("- command: `cargo bench -p lowtide-nn --benches`\n"), "{report}");
    assert!(report.contains("| baseline | 5.00 ns | 1.00 ns | - | 1.00 |\n"), "{report}");
}

#[test]
fn bench_that_measures_nothing_or_fails_writes_no_report() {
    for cargo in ["exit 0", "exit 101"] {
        let folder = workspace(cargo);
        let output = xtask(folder.path(), &["bench"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(!folder.path().join("target/bench-report.md").exists());
    }
}

#[test]
fn help_is_printed_without_arguments_and_on_request() {
    let folder = workspace("exit 1");
    for arguments in [&[][..], &["--help"], &["test", "--help"]] {
        let output = xtask(folder.path(), arguments);
        assert!(stdout(&output).starts_with("usage: cargo xtask COMMAND\n"));
        assert!(output.status.success());
    }
}

#[test]
fn mistakes_are_one_line_and_one() {
    let folder = workspace("exit 0");
    for arguments in [&["tets"][..], &["test", "none"], &["test", "--x"], &["tidy", "x"]] {
        let output = xtask(folder.path(), arguments);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(message.starts_with("xtask: "), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(stdout(&output), "");
    }
}

#[test]
fn a_suite_that_is_not_known_is_refused_before_anything_is_installed() {
    let folder = workspace("exit 1");
    let output = xtask(folder.path(), &["scoreboard", "caffe"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        text.contains(
            "takes one of opinfo, moduleinfo, optiminfo, onnx, transformers, got `caffe`"
        ),
        "{text}"
    );
    assert!(!folder.path().join("target").exists());
    assert_eq!(output.status.code(), Some(1));
}
