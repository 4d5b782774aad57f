use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use xtask::gpu_bundle::{Profile, Program, commands, programs};

#[test]
fn tests_and_programs_are_built_in_one_call_each() {
    let [tests, programs] = commands(Profile::Release);
    assert!(
        tests.ends_with(" --test cuda") && tests.contains("lowtide-trainer/pretend"),
        "{tests}"
    );
    assert!(programs.contains(" --release ") && !programs.contains("pretend"), "{programs}");
}

#[test]
fn programs_that_were_built_are_found_in_the_messages() {
    let messages = r#"{"reason": "compiler-artifact", "manifest_path": "/a/tensor/Cargo.toml",
                       "target": {"name": "lowtide_tensor"}, "executable": null}
text
{"reason": "compiler-artifact", "manifest_path": "/a/tensor/Cargo.toml",
 "target": {"name": "cuda"}, "executable": "/b/cuda-1"}
{"reason": "compiler-artifact", "manifest_path": "/a/trainer/Cargo.toml",
 "target": {"name": "lowtide"}, "executable": "/b/lowtide"}
{"reason": "build-finished", "success": true}"#
        .replace(",\n", ",");
    let program = |folder: &str, target: &str, path: &str| Program {
        folder: folder.to_owned(),
        target: target.to_owned(),
        path: PathBuf::from(path),
    };
    assert_eq!(
        programs(&messages),
        [program("tensor", "cuda", "/b/cuda-1"), program("trainer", "lowtide", "/b/lowtide")]
    );
    assert_eq!(programs("{\"reason\": \"build-finished\"}"), []);
}

/// A bundle of programs that say what they are told to say.
fn bundle(test: &str, lowtide: &str, figures: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/gpu_bundle");
    for name in ["run.sh", "run.py"] {
        fs::copy(scripts.join(name), folder.path().join(name)).expect("a script");
    }
    fs::write(
        folder.path().join("torch_figures.py"),
        "print('{\"name\": \"a\", \"value\": 2.5e12, \"unit\": \"FLOP/s\"}')\n",
    )
    .expect("a file");
    fs::write(folder.path().join("commit.txt"), "abc\n").expect("a file");
    for (name, script) in
        [("tests/tensor-cuda", test), ("bin/lowtide", lowtide), ("bin/gpu_figures", figures)]
    {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
    }
    folder
}

/// What `run.sh` printed, and the results; `None`, said aloud, without Python.
fn run(folder: &Path) -> Option<(Output, Value, String)> {
    if !Command::new("python3").arg("--version").output().is_ok_and(|o| o.status.success()) {
        println!("skipped: run.sh of a bundle: python3 does not start here");
        return None;
    }
    let mut command = Command::new("sh");
    let output = command.arg(folder.join("run.sh")).arg("--small").output().expect("a shell");
    let read = |name| {
        fs::read_to_string(folder.join(name)).unwrap_or_else(|error| {
            panic!("{name}: {error}: {}", String::from_utf8_lossy(&output.stderr))
        })
    };
    let results = serde_json::from_str(&read("results.json")).expect("results are JSON");
    let table = read("results.md");
    Some((output, results, table))
}

const SKIPS: &str = "echo 'test a ... ok'; echo 'skipped: storage::a: no CUDA driver: none'; \
                     echo 'test result: ok. 1 passed; 0 failed; 0 ignored'";

#[test]
fn machine_without_a_device_is_told_in_lines_and_breaks_nothing() {
    let refused = "echo 'lowtide: no CUDA driver: none' >&2; exit 1";
    let folder = bundle(SKIPS, refused, "echo '{\"name\": \"device\", \"refused\": \"none\"}'");
    let Some((output, results, table)) = run(folder.path()) else { return };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for line in [
        "tests tensor-cuda: 0 passed, 0 failed, 1 skipped (no CUDA driver: none)",
        "train: refused: exit code 1: lowtide: no CUDA driver, see tests tensor-cuda",
        "figures: 0 figures; device: none",
        "torch: 1 figures",
    ] {
        assert!(text.lines().any(|other| other == line), "{line} in:\n{text}");
    }
    assert_eq!(results["tests"]["tensor-cuda"]["skips"]["storage::a"], "no CUDA driver: none");
    assert_eq!(results["train"]["refused"], "exit code 1: lowtide: no CUDA driver: none");
    assert_eq!(results["machine"]["commit"], "abc");
    assert!(table.contains("| a |  | 2.50 TFLOP/s |"), "{table}");
}

#[test]
fn figures_of_a_device_are_collected() {
    let passes = "echo 'test result: ok. 7 passed; 0 failed; 0 ignored'; \
                  test \"$LOWTIDE_TEST_DRIVER\" = system && test -n \"$LOWTIDE_TEST_WORKSPACE\"";
    let trains = "for last; do :; done; mkdir -p \"$last\"; cd \"$last\"; \
        echo '{\"predicted_peak_bytes\": 5, \"measured_peak_bytes\": 5, \"batch_size\": 4}' \
        > summary.json; \
        for s in 9 1 2 3; do echo \"{\\\"epoch\\\": $((1 + (s != 9))), \\\"batch\\\": 4, \
        \\\"seconds\\\": 0.00$s}\"; done > metrics.jsonl";
    let figures = "test \"$1 $2\" = '64 4' && \
                   echo '{\"name\": \"a\", \"value\": 1e12, \"unit\": \"FLOP/s\"}'";
    let folder = bundle(passes, trains, figures);
    let Some((output, results, table)) = run(folder.path()) else { return };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(results["tests"]["tensor-cuda"]["passed"], 7);
    assert_eq!(results["train"]["step_seconds"], 0.002, "the median after the first epoch");
    assert!(table.contains("| a | 1.00 TFLOP/s | 2.50 TFLOP/s |"), "{table}");
    assert!(table.contains("| train_step | 2.000 ms |  |"), "{table}");
}

#[test]
fn test_that_fails_or_a_program_that_breaks_is_told_by_the_exit_code() {
    let fails = "echo 'test storage::b ... FAILED'; \
                 echo 'test result: FAILED. 1 passed; 1 failed; 0 ignored'; exit 101";
    let silent = "exit 0";
    for (test, figures) in [(fails, silent), ("exit 3", silent), (SKIPS, "exit 3"), (SKIPS, silent)]
    {
        let folder = bundle(test, "exit 1", figures);
        let Some((output, results, _)) = run(folder.path()) else { return };
        assert_eq!(output.status.code(), Some(1), "{test} {figures}");
        if test == fails {
            assert_eq!(results["tests"]["tensor-cuda"]["failures"][0], "storage::b");
            let log = fs::read_to_string(folder.path().join("tensor-cuda.log"));
            assert!(log.expect("the log is kept").contains("FAILED"));
        }
    }
}
