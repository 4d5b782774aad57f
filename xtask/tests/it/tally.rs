use xtask::tally::{Counts, Skip, Tally};

/// Compares the counts, as `(passed, failed, names of skips)`.
fn check(output: &str, success: bool, expected: (usize, usize, &[&str])) {
    let mut tally = Tally::default();
    output.lines().for_each(|line| tally.read_line(line));
    let counts = tally.finish(success);
    let names: Vec<&str> = counts.skips.iter().map(|skip| skip.name.as_str()).collect();
    assert_eq!((counts.passed, counts.failed, names.as_slice()), expected);
}

#[test]
fn results_of_several_binaries_add_up() {
    let output = "\
test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
test result: FAILED. 12 passed; 2 failed; 0 ignored; 0 measured; 9 filtered out; finished in 1.01s
error: test failed, to rerun pass `-p lowtide-tensor --test it`";
    check(output, false, (15, 2, &[]));
}

#[test]
fn binary_that_died_is_a_failure_beside_those_that_were_counted() {
    let output = "\
test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
error: test failed, to rerun pass `-p a --test it`
error: test failed, to rerun pass `-p b --test it`";
    check(output, false, (1, 2, &[]));
}

#[test]
fn build_that_fails_is_one_failure() {
    check("error: could not compile `lowtide-nn` (lib)", false, (0, 1, &[]));
}

#[test]
fn exit_status_is_believed_over_the_results() {
    let ok = "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
    check(ok, false, (3, 1, &[]));
}

#[test]
fn runner_without_results_counts_as_one_check() {
    check("Testing allocator/replay/pages\nSuccess", true, (1, 0, &[]));
}

#[test]
fn crate_without_benches_counts_nothing() {
    let warning = "warning: target filter `benches` specified, but no targets matched; \
                   this is a no-op";
    check(warning, true, (0, 0, &[]));
    check(warning, false, (0, 1, &[]));
}

#[test]
fn passing_test_that_tells_of_a_skip_is_skipped_and_not_passed() {
    let output = "\
test cuda_agrees ... ok
test cpu_agrees ... ok

successes:

---- cuda_agrees stdout ----
skipped: matmul on cuda: no driver: libcuda.so
skipped: softmax on cuda: no driver: libcuda.so

---- cpu_agrees stdout ----
nothing special

successes:
    cpu_agrees
    cuda_agrees

test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s";
    check(output, true, (1, 0, &["matmul on cuda", "softmax on cuda"]));
}

#[test]
fn failing_test_that_tells_of_a_skip_stays_failed() {
    let output = "\
failures:

---- half_run stdout ----
skipped: cuda: no driver
thread 'half_run' panicked

failures:
    half_run

test result: FAILED. 4 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out
error: test failed, to rerun pass `-p a --test it`";
    check(output, false, (4, 1, &["cuda"]));
}

#[test]
fn skip_outside_any_test_takes_nothing_from_the_passed() {
    let output = "\
skipped: cuda bench: no device
test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
    check(output, true, (2, 0, &["cuda bench"]));
}

#[test]
fn reason_of_a_skip_keeps_its_colons() {
    let mut tally = Tally::default();
    tally.read_line("skipped: tensor::cuda: no driver: libcuda.so");
    let skip = Skip { name: "tensor::cuda".into(), reason: "no driver: libcuda.so".into() };
    assert_eq!(tally.finish(true).skips, [skip]);
}

#[test]
fn ignored_tests_are_skips_with_their_reason() {
    let output = "\
test src/lib.rs - Tensor (line 3) ... ignored
test slow ... ignored, needs an hour
test result: ok. 1 passed; 0 failed; 3 ignored; 0 measured; 0 filtered out";
    check(output, true, (1, 0, &["src/lib.rs - Tensor (line 3)", "slow", "a test"]));
}

#[test]
fn colours_do_not_hide_a_line() {
    let output = "\
test result: \u{1b}[32mok\u{1b}[0m. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out
test result: \u{1b}[31mFAILED\u{1b}[0m. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out
\u{1b}[1m\u{1b}[91merror\u{1b}[0m\u{1b}[1m:\u{1b}[0m test failed, to rerun pass `--test it`";
    check(output, false, (2, 1, &[]));
}

#[test]
fn counts_end_in_one_line() {
    let mut counts = Counts::one(true);
    counts.add(Counts::one(false));
    counts.add(Counts::skipped("miri", "not here"));
    assert_eq!(counts.to_string(), "1 passed, 1 failed, 1 skipped");
    assert_eq!(counts.skips[0].to_string(), "skipped: miri: not here");
}
