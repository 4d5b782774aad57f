use xtask::test::{Counting, Quiet, Source};

/// Compares the lines that are shown of an output.
fn check(counting: Counting, source: Source, text: &str, expected: &[&str]) {
    let mut quiet = Quiet::new(counting);
    let shown: Vec<&str> = text.lines().filter(|line| quiet.shows(source, line)).collect();
    assert_eq!(shown, expected, "{text}");
}

#[test]
fn status_of_cargo_is_hidden_and_messages_are_shown() {
    let text = "warning: 1 package
   Compiling lowtide-nn v0.1.0 (nn)
\u{1b}[1m\u{1b}[92m    Checking\u{1b}[0m lowtide-nn v0.1.0
    Finished `test` profile in 1.0s
   Doc-tests lowtide_nn
 Documenting lowtide-nn v0.1.0
warning: unused import
  --> nn/src/lib.rs:1:5
   |
12 |     use Running;
error: test failed, to rerun pass `-p a --test it`
";
    let shown = [
        "warning: 1 package",
        "warning: unused import",
        "  --> nn/src/lib.rs:1:5",
        "   |",
        "12 |     use Running;",
        "error: test failed, to rerun pass `-p a --test it`",
    ];
    for counting in [Counting::Runners, Counting::Status] {
        check(counting, Source::Error, text, &shown);
    }
}

#[test]
fn passing_tests_are_hidden_and_failures_are_shown_whole() {
    let text = "\
running 2 tests
test a ... ok
test b ... FAILED
test c has been running for over 60 seconds

successes:

---- a stdout ----
skipped: cuda: no driver

failures:

---- b stdout ----
thread 'b' panicked

failures:
    b

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out

running 0 tests
test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out
";
    let shown = [
        "test b ... FAILED",
        "test c has been running for over 60 seconds",
        "failures:",
        "",
        "---- b stdout ----",
        "thread 'b' panicked",
        "",
        "failures:",
        "    b",
        "",
        "test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out",
    ];
    check(Counting::Runners, Source::Output, text, &shown);
    let shown: Vec<&str> = text.lines().collect();
    check(Counting::Status, Source::Output, text, &shown);
}

#[test]
fn progress_names_what_is_built_or_run() {
    let mut quiet = Quiet::new(Counting::Runners);
    assert_eq!(quiet.progress.to_string(), "starting");
    for (source, line, progress) in [
        (Source::Error, "   Compiling a v0.1.0", "compiling a, 1 crates so far"),
        (Source::Error, "    Checking b v0.1.0", "checking b, 2 crates so far"),
        (
            Source::Error,
            "     Running tests/it/main.rs (it-0)",
            "running tests/it/main.rs (it-0), 2 crates so far",
        ),
        (Source::Output, "test x ... ok", "running tests/it/main.rs (it-0), 1 tests so far"),
    ] {
        quiet.shows(source, line);
        assert_eq!(quiet.progress.to_string(), progress);
    }
}
