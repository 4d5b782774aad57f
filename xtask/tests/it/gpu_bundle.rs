use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use xtask::gpu_bundle::{Profile, Program, commands, programs};

#[test]
fn tests_and_programs_are_built_in_one_call_each() {
    let [tests, programs] = commands(Profile::Release, " --features lowtide-tensor/ptx");
    assert!(tests.ends_with(" --test cuda") && tests.contains("lowtide-cli/pretend"), "{tests}");
    assert!(programs.contains(" --release ") && !programs.contains("pretend"), "{programs}");
}

#[test]
fn programs_that_were_built_are_found_in_the_messages() {
    let messages = r#"{"reason": "compiler-artifact", "manifest_path": "/a/tensor/Cargo.toml",
                       "target": {"name": "lowtide_tensor"}, "executable": null}
text
{"reason": "compiler-artifact", "manifest_path": "/a/tensor/Cargo.toml",
 "target": {"name": "cuda"}, "executable": "/b/cuda-1"}
{"reason": "compiler-artifact", "manifest_path": "/a/cli/Cargo.toml",
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
        [program("tensor", "cuda", "/b/cuda-1"), program("cli", "lowtide", "/b/lowtide")]
    );
    assert_eq!(programs("{\"reason\": \"build-finished\"}"), []);
}

/// A script of one figure, with the functions that `pretrained_figures.py` imports.
const TORCH_FIGURES: &str = r#"
import json

def refused(name, reason):
    print(json.dumps({"name": name, "refused": str(reason)}))

figure = said = refused
if __name__ == "__main__":
    print('{"name": "a", "value": 2.5e12, "unit": "FLOP/s"}')
"#;

/// A bundle whose programs are the given shell scripts.
fn bundle(test: &str, lowtide: &str, figures: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/gpu_bundle");
    for name in ["run.sh", "run.py", "table.py", "cudnn_device.py", "pretrained_figures.py"] {
        fs::copy(scripts.join(name), folder.path().join(name)).expect("a script");
    }
    fs::write(folder.path().join("torch_figures.py"), TORCH_FIGURES).expect("a file");
    fs::write(folder.path().join("commit.txt"), "abc\n").expect("a file");
    // A binary that lists no tests is run as one test.
    let test = &format!("test \"$1\" = --list && exit 0\n{test}");
    for (name, script) in [
        ("tests/tensor-cuda", test.as_str()),
        ("bin/lowtide", lowtide),
        ("bin/gpu_figures", figures),
    ] {
        script_at(&folder.path().join(name), script);
    }
    folder
}

fn script_at(path: &Path, script: &str) {
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    fs::write(path, format!("#!/bin/sh\n{script}\n")).expect("a file");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("executable");
}

/// `run.sh` of a bundle, with small sizes; `None`, with a printed skip, without Python.
fn command(folder: &Path, arguments: &[&str]) -> Option<Command> {
    if !Command::new("python3").arg("--version").output().is_ok_and(|o| o.status.success()) {
        println!("skipped: run.sh of a bundle: python3 does not start here");
        return None;
    }
    let mut command = Command::new("sh");
    command.arg(folder.join("run.sh")).arg("--small").args(arguments);
    command.env_remove("LOWTIDE_CUDA_LIBS").env("LOWTIDE_PYTHON", "python3");
    Some(command)
}

/// Runs `run.sh`. Returns its output, its results and their table.
fn run(folder: &Path, arguments: &[&str]) -> Option<(Output, Value, String)> {
    let output = command(folder, arguments)?.output().expect("a shell");
    let read = |name| {
        fs::read_to_string(folder.join(name)).unwrap_or_else(|error| {
            panic!("{name}: {error}: {}", String::from_utf8_lossy(&output.stderr))
        })
    };
    let results = serde_json::from_str(&read("results.json")).expect("results are JSON");
    let table = read("results.md");
    Some((output, results, table))
}

fn assert_lines(output: &Output, lines: &[&str]) {
    let text = String::from_utf8_lossy(&output.stdout);
    for line in lines {
        assert!(text.lines().any(|other| other == *line), "{line} in:\n{text}");
    }
}

const SKIPS: &str = "echo 'test storage::a ... skipped: storage::a: no CUDA driver: none'; \
                     echo ok; \
                     echo 'test result: ok. 1 passed; 0 failed; 0 ignored'";

#[test]
fn machine_without_a_device_is_told_in_lines_and_breaks_nothing() {
    let refused = "echo 'lowtide: no CUDA driver: none' >&2; exit 1";
    let folder = bundle(SKIPS, refused, "echo '{\"name\": \"device\", \"refused\": \"none\"}'");
    let Some((output, results, table)) = run(folder.path(), &[]) else { return };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_lines(
        &output,
        &[
            "tests tensor-cuda: 0 passed, 0 failed, 1 skipped (no CUDA driver: none)",
            "train: refused: exit code 1: lowtide: no CUDA driver: none",
            "products: 0 figures; device: none",
            "torch: 1 figures",
            "ranks: skipped: several devices are needed, here are 0",
        ],
    );
    let tests = &results["tests"]["sections"]["tests tensor-cuda"];
    assert_eq!(tests["skips"]["storage::a"], "no CUDA driver: none");
    let trained = &results["models"]["sections"]["train"];
    assert_eq!(trained["refused"], "exit code 1: lowtide: no CUDA driver: none");
    // Without transformers or a device, each side reports a reason.
    for side in ["lowtide", "torch"] {
        let figures = &results["pretrained"]["sections"][side]["figures"];
        assert!(figures[0]["refused"].is_string(), "{side}: {figures}");
    }
    assert_eq!(results["tests"]["machine"]["commit"], "abc");
    assert!(table.contains("| a |  | 2.50 TFLOP/s |"), "{table}");
}

/// A `lowtide train` that writes a run of four steps, and an evaluation after them.
const TRAINS: &str = "for last; do :; done; mkdir -p \"$last\"; cd \"$last\"; \
    echo '{\"predicted_peak_bytes\": 5, \"measured_peak_bytes\": 5, \"batch_size\": 4}' \
    > summary.json; \
    for s in 9 1 2 3; do echo \"{\\\"epoch\\\": $((1 + (s != 9))), \\\"batch\\\": 4, \
    \\\"seconds\\\": 0.00$s}\"; done > metrics.jsonl; \
    echo '{\"epoch\": 2, \"seconds\": 0.0001}' >> metrics.jsonl";

#[test]
fn figures_of_a_device_are_collected() {
    let passes = "test \"$LOWTIDE_TEST_DRIVER\" = system && test -n \"$LOWTIDE_TEST_WORKSPACE\" \
                  && echo 'test result: ok. 7 passed; 0 failed; 0 ignored'";
    let figures = "case \"$*\" in \
        '--small products') echo '{\"name\": \"a\", \"value\": 1e12, \"unit\": \"FLOP/s\"}';; \
        '--small kernels') echo '{\"name\": \"relu_f32_64\", \"value\": 2e-3, \
            \"floor\": 1e-3, \"unit\": \"seconds\"}';; \
        *) echo '{\"name\": \"products\", \"text\": \"cuBLASLt 1\"}';; esac";
    let folder = bundle(passes, TRAINS, figures);
    let Some((output, results, table)) = run(folder.path(), &[]) else { return };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(results["tests"]["sections"]["tests tensor-cuda"]["passed"], 7);
    let trained = &results["models"]["sections"]["train"];
    assert_eq!(trained["step_seconds"], 0.002, "the median after the first epoch");
    assert!(table.contains("| a | 1.00 TFLOP/s | 2.50 TFLOP/s |"), "{table}");
    assert!(table.contains("| train_step | 2.000 ms |  |"), "{table}");
    assert!(table.contains("| relu_f32_64 | 2.000 ms | 1.000 ms | 50 % |"), "{table}");
    assert!(table.contains("- products: cuBLASLt 1"), "{table}");
}

#[test]
fn several_devices_have_to_come_to_the_bits_of_one() {
    // TRAINS with another state hash if parameters are sharded.
    let trains = format!(
        "hash=a; case \"$*\" in *'--zero 3'*) hash=$OTHER; \
         echo 'lowtide: note: tensors go through the host: no NCCL' >&2;; esac; {TRAINS}; \
         echo \"{{\\\"final_state_hash\\\": \\\"$hash\\\", \\\"predicted_peak_bytes\\\": 5, \
         \\\"measured_peak_bytes\\\": 5, \\\"batch_size\\\": 4}}\" > summary.json"
    );
    for (other, succeeds) in [("a", true), ("b", false)] {
        let folder = bundle("exit 0", &trains, "exit 0");
        let Some(mut command) = command(folder.path(), &["ranks", "--devices", "4"]) else {
            return;
        };
        let output = command.env("OTHER", other).output().expect("a shell");
        assert_eq!(output.status.success(), succeeds, "{output:?}");
        assert_lines(
            &output,
            &["4 ranks, zero 2: peak 5 bytes, the predicted one, a step in 2.00 ms"],
        );
        let note = "2 ranks, zero 3, note: lowtide: note: tensors go through the host: no NCCL";
        assert_lines(&output, &[note]);
        if !succeeds {
            assert_lines(&output, &["4 ranks, zero 3: broke: the bits are not those of one rank"]);
        }
    }
}

#[test]
fn test_that_fails_or_a_program_that_breaks_is_told_by_the_exit_code() {
    let fails = "echo 'test storage::b ... FAILED'; \
                 echo 'test result: FAILED. 1 passed; 1 failed; 0 ignored'; exit 101";
    let figures = "echo '{\"name\": \"a\", \"text\": \"b\"}'";
    for (test, figures) in [(fails, figures), ("exit 3", figures), (SKIPS, "exit 3")] {
        let folder = bundle(test, "exit 1", figures);
        let Some((output, results, _)) = run(folder.path(), &["tests"]) else { return };
        assert_eq!(output.status.code(), Some(1), "{test} {figures}");
        if test == fails {
            let tests = &results["tests"]["sections"]["tests tensor-cuda"];
            assert_eq!(tests["failures"][0], "storage::b");
            let log = fs::read_to_string(folder.path().join("tensor-cuda.log"));
            assert!(log.expect("the log is kept").contains("FAILED"));
        }
    }
}

/// A binary of three tests: `a` passes, `b` kills its process, and `c` fails after another test.
const CRASHES: &str = "test \"$1\" = --list && printf 'a: test\\nb: test\\nc: test\\n' && exit; \
    for name; do case \"$name\" in \
        a) echo 'test a ... ok';; \
        b) echo 'test b ... '; exit 9;; \
        c) if test $# -eq 4; then echo 'test c ... ok'; else echo 'test c ... FAILED'; fi;; \
    esac; done; echo 'test result: ok. 1 passed; 0 failed; 0 ignored'";

#[test]
fn tests_after_one_that_ends_its_process_run_and_what_fails_is_tried_alone() {
    let folder = bundle(CRASHES, "exit 1", "echo '{\"name\": \"a\", \"text\": \"b\"}'");
    script_at(&folder.path().join("tests/tensor-cuda"), CRASHES);
    let Some((output, results, _)) = run(folder.path(), &["tests"]) else { return };
    assert_eq!(output.status.code(), Some(1));
    assert_lines(&output, &["tests tensor-cuda: 2 passed, 1 failed, 0 skipped"]);
    let tests = &results["tests"]["sections"]["tests tensor-cuda"];
    assert_eq!(tests["failures"], serde_json::json!(["b"]), "{results}");

    let beside = "test \"$1\" = --list && printf 'a: test\\nc: test\\n' && exit; \
        test $# -eq 4 && word=ok || word=FAILED; echo \"test c ... $word\"; \
        echo 'test result: ok. 1 passed; 0 failed; 0 ignored'";
    script_at(&folder.path().join("tests/tensor-cuda"), beside);
    let Some((_, results, _)) = run(folder.path(), &["tests"]) else { return };
    let tests = &results["tests"]["sections"]["tests tensor-cuda"];
    assert_eq!(tests["failed_beside_others"], serde_json::json!(["c"]), "{results}");
    assert_eq!([&tests["passed"], &tests["failed"]], [1, 0], "{results}");
}

#[test]
fn section_that_runs_out_of_time_keeps_what_it_has() {
    let test =
        "echo 'test a ... ok'; echo 'test b ... FAILED'; echo 'test c ... '; exec sleep 1000";
    // One figure, and the beginning of another.
    let figures = "echo '{\"name\": \"a\", \"value\": 1e12, \"unit\": \"FLOP/s\"}'; \
                   printf '{\"name\": '; exec sleep 1000";
    let folder = bundle(test, "exit 1", figures);
    let limit = ["--seconds", "3"];
    let arguments = [&["tests", "kernels"], &limit[..]].concat();
    let Some((output, results, table)) = run(folder.path(), &arguments) else { return };
    assert_eq!(output.status.code(), Some(1));
    let kernels = &results["kernels"]["sections"]["versions"];
    assert_eq!(kernels["figures"][0]["name"], "a", "{results}");
    assert!(kernels["broken"].as_str().is_some_and(|text| text.starts_with("it took over")));
    let late = &results["kernels"]["sections"]["kernels"]["broken"];
    assert_eq!(late, "no time was left for it");
    assert!(table.contains("1.00 TFLOP/s"), "{table}");
    // After the versions there was no time for tests. With more time the tests keep their results,
    // too.
    let folder = bundle(test, "exit 1", "echo '{\"name\": \"a\", \"text\": \"b\"}'");
    let Some((_, results, _)) = run(folder.path(), &[&["tests"], &limit[..]].concat()) else {
        return;
    };
    let tests = &results["tests"]["sections"]["tests tensor-cuda"];
    assert_eq!([&tests["passed"], &tests["failed"]], [1, 1], "{results}");
    assert_eq!([&tests["failures"][0], &tests["last"]], ["b", "b"]);
}

#[test]
fn results_are_on_disk_when_everything_is_killed() {
    // The shell replaces itself by the interpreter, so the interpreter is the program's parent.
    let figures = "test \"$2\" != versions && kill -9 $PPID; \
                   echo '{\"name\": \"a\", \"value\": 1e12, \"unit\": \"FLOP/s\"}'";
    let folder = bundle(SKIPS, "exit 1", figures);
    let Some(mut command) = command(folder.path(), &["kernels"]) else { return };
    assert!(!command.output().expect("a shell").status.success());
    let text = fs::read_to_string(folder.path().join("results-kernels.json")).expect("results");
    let results: Value = serde_json::from_str(&text).expect("whole");
    assert_eq!(results["sections"]["versions"]["figures"][0]["name"], "a");
    // Parts that were copied into one folder are one table.
    let Some((_, results, table)) = run(folder.path(), &["table"]) else { return };
    assert_eq!(results["kernels"]["machine"]["commit"], "abc");
    assert!(table.contains("## kernels"), "{table}");
}

#[test]
fn what_is_missing_is_named_and_libraries_are_those_of_the_interpreter_with_torch() {
    let figures =
        "echo \"{\\\"name\\\": \\\"products\\\", \\\"text\\\": \\\"$LOWTIDE_CUDA_LIBS\\\"}\"";
    let folder = bundle(SKIPS, "exit 1", figures);
    let Some(mut command) = command(folder.path(), &["tests"]) else { return };
    // `python3` has no torch. `python` claims to have torch, and otherwise runs the real Python.
    let bin = folder.path().join("path");
    let real = Command::new("sh").args(["-c", "command -v python3"]).output().expect("a shell");
    let real = String::from_utf8_lossy(&real.stdout).trim().to_owned();
    script_at(&bin.join("python3"), "exit 1");
    let used = folder.path().join("used");
    let python = format!("test \"$1\" = -c && exit 0\n: > {}\nexec {real} \"$@\"", used.display());
    script_at(&bin.join("python"), &python);
    let base = folder.path().join("base");
    let ask = ["-c", "import site; print(site.getusersitepackages())"];
    let packages = Command::new(&real).args(ask).env("PYTHONUSERBASE", &base).output();
    let packages = String::from_utf8_lossy(&packages.expect("python").stdout).trim().to_owned();
    let libraries = Path::new(&packages).join("nvidia/cu13/lib");
    fs::create_dir_all(&libraries).expect("a folder");
    // The Python of a virtual environment may have torch, so torch is hidden.
    let hidden = folder.path().join("hidden");
    fs::create_dir_all(&hidden).expect("a folder");
    let hides = "import sys\nsys.modules['torch'] = None\n";
    fs::write(hidden.join("sitecustomize.py"), hides).expect("a file");
    command.env_remove("LOWTIDE_PYTHON").env("PYTHONUSERBASE", &base).env("PYTHONPATH", &hidden);
    command.env("PATH", format!("{}:/usr/bin:/bin", bin.display()));
    let output = command.output().expect("a shell");
    assert!(used.exists(), "{}", String::from_utf8_lossy(&output.stdout));
    let text = fs::read_to_string(folder.path().join("results.json")).expect("results");
    let results: Value = serde_json::from_str(&text).expect("results are JSON");
    let sections = &results["tests"]["sections"];
    let found = sections["versions"]["figures"][0]["text"].as_str().expect("a text");
    assert!(found.contains(&*libraries.to_string_lossy()), "{found}");
    assert_eq!(sections["sanitizer memcheck"]["refused"], "no compute-sanitizer on the PATH");
    let lines = &results["tests"]["lines"];
    assert_eq!(lines["compute-sanitizer"], "not on the PATH");
    assert!(lines["python"].as_str().is_some_and(|line| line.ends_with("has no torch")), "{lines}");
    let refused = &sections["cudnn"]["figures"][0]["refused"];
    assert!(refused.as_str().is_some_and(|text| text.contains("torch")), "{refused}");
}
