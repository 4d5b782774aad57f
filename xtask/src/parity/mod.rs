//! `cargo xtask parity`: makes the reference values again with the installed PyTorch, compares them
//! with the checked-in values, and runs the tests that compare lowtide with these values.
//!
//! The scripts below `CRATE/tests/fixtures` write into their own folder, so copies of the scripts
//! are run.

mod tensor_file;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{test, workspace};
use tensor_file::Tensor;

/// A crate with reference values.
struct References {
    folder: &'static str,
    /// A part of the names of the tests that read the values.
    tests: &'static str,
}

const REFERENCES: &[References] = &[
    References { folder: "tensor", tests: "golden" },
    References { folder: "autograd", tests: "pytorch" },
    References { folder: "nn", tests: "pytorch" },
    References { folder: "amp", tests: "pytorch" },
];

/// Maximum difference of two values, relative to the larger of their size and 1. CPUs and versions
/// of PyTorch differ in the order of sums, and some values are the results of 20 steps.
pub const TOLERANCE: f64 = 2e-3;

/// The imports of the scripts.
const IMPORTS: &str = "import torch, numpy, safetensors";

/// Restricts PyTorch to the instructions that made the checked-in values. With AVX-512, its GELU of
/// infinity is not a number, and sums of half types differ.
const INSTRUCTIONS: [(&str, &str); 2] =
    [("ATEN_CPU_CAPABILITY", "avx2"), ("ONEDNN_MAX_CPU_ISA", "AVX2")];

/// Runs the command; `Ok(false)` if a value differs or a test fails.
///
/// # Errors
/// One line about arguments, and about files or programs that cannot be used.
pub fn run(root: &Path, arguments: &[String]) -> Result<bool, String> {
    let only = match arguments {
        [] => None,
        [folder] if REFERENCES.iter().any(|of| of.folder == folder) => Some(folder.as_str()),
        _ => {
            let found = arguments.join(" ");
            return Err(format!("parity takes tensor, autograd, nn or amp, got `{found}`"));
        }
    };
    let Some(python) = python() else {
        println!(
            "skipped: parity: no Python with torch, numpy and safetensors; LOWTIDE_PYTHON names \
             one, made with\n  python3 -m venv venv && venv/bin/pip install torch numpy safetensors"
        );
        return Ok(true);
    };
    let mut good = true;
    let is_wanted = |of: &&References| only.is_none_or(|only| only == of.folder);
    let wanted = REFERENCES.iter().filter(is_wanted);
    for References { folder, .. } in wanted.clone() {
        let checked_in = root.join(folder).join("tests/fixtures");
        let fresh = root.join("target/parity").join(folder);
        make(&python, &checked_in, &fresh)?;
        for path in files(&fresh)?.into_iter().filter(|path| extension(path) != "py") {
            let name = path.file_name().unwrap_or_default();
            let outcome = compare_files(&path, &checked_in.join(name));
            good &= outcome.is_ok();
            println!("{folder}/{}: {}", name.display(), outcome.unwrap_or_else(|why| why));
        }
    }
    // The selection of `cargo xtask test`, so that its builds are reused.
    let status = workspace::cargo(root)
        .args(["test"].into_iter().chain(test::scope(None).split_whitespace()))
        .args(["--no-fail-fast", "--test", "it", "--"])
        .args(wanted.map(|of| of.tests))
        .status()
        .map_err(|error| format!("cargo does not start: {error}"))?;
    good &= status.success();
    Ok(good)
}

/// A Python that has the imports of the scripts.
fn python() -> Option<PathBuf> {
    let python = std::env::var_os("LOWTIDE_PYTHON").unwrap_or_else(|| "python3".into());
    let mut command = Command::new(&python);
    let status = command.args(["-c", IMPORTS]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success()).then(|| python.into())
}

/// Runs copies of the scripts of a folder in `fresh`, which is emptied before.
fn make(python: &Path, scripts: &Path, fresh: &Path) -> Result<(), String> {
    let at = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    if fresh.exists() {
        fs::remove_dir_all(fresh).map_err(|error| at(fresh, error))?;
    }
    fs::create_dir_all(fresh).map_err(|error| at(fresh, error))?;
    let is_script = |path: &PathBuf| extension(path) == "py";
    let scripts: Vec<PathBuf> = files(scripts)?.into_iter().filter(is_script).collect();
    for script in &scripts {
        let copy = fresh.join(script.file_name().unwrap_or_default());
        fs::copy(script, &copy).map_err(|error| at(script, error))?;
    }
    for script in &scripts {
        let text = fs::read_to_string(script).map_err(|error| at(script, error))?;
        if !text.contains("import torch") {
            continue;
        }
        println!("running {}", script.display());
        let name = script.file_name().unwrap_or_default();
        let output = Command::new(python).arg(name).envs(INSTRUCTIONS).current_dir(fresh).output();
        let output = output.map_err(|error| at(python, error))?;
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(format!("{} failed:\n{message}", script.display()));
        }
    }
    Ok(())
}

/// The files of a folder, sorted.
fn files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.is_file());
    paths.sort();
    Ok(paths)
}

fn extension(path: &Path) -> &str {
    path.extension().and_then(|extension| extension.to_str()).unwrap_or_default()
}

fn compare_files(fresh: &Path, checked_in: &Path) -> Result<String, String> {
    let read = |path: &Path| fs::read(path).map_err(|e| format!("{}: {e}", path.display()));
    let (fresh_bytes, known) = (read(fresh)?, read(checked_in)?);
    let difference = match extension(fresh) {
        "safetensors" => compare_tensors(&fresh_bytes, &known)?,
        "txt" => compare_text(&text(&fresh_bytes)?, &text(&known)?)?,
        other => return Err(format!("how to compare `.{other}` files is not known")),
    };
    Ok(format!("largest difference {difference:.1e}"))
}

fn text(bytes: &[u8]) -> Result<String, String> {
    String::from_utf8(bytes.to_vec()).map_err(|error| format!("no text: {error}"))
}

/// The largest difference of the numbers in two texts.
///
/// # Errors
/// The first place where words differ, or where numbers differ by more than the tolerance.
pub fn compare_text(fresh: &str, known: &str) -> Result<f64, String> {
    let (fresh, known): (Vec<&str>, Vec<&str>) = (fresh.lines().collect(), known.lines().collect());
    if fresh.len() != known.len() {
        return Err(format!("{} lines, checked in are {}", fresh.len(), known.len()));
    }
    let mut largest = 0.0_f64;
    for (line, (fresh, known)) in (1..).zip(fresh.iter().zip(&known)) {
        let (fresh, known) = (fresh.split_whitespace(), known.split_whitespace());
        let (fresh, known): (Vec<&str>, Vec<&str>) = (fresh.collect(), known.collect());
        if fresh.len() != known.len() {
            return Err(format!("line {line}: {} words, not {}", fresh.len(), known.len()));
        }
        for (fresh, known) in fresh.iter().zip(&known) {
            let differ = || format!("line {line}: {fresh}, checked in is {known}");
            match (fresh.parse::<f64>(), known.parse::<f64>()) {
                (Ok(a), Ok(b)) => largest = largest.max(difference(a, b).ok_or_else(differ)?),
                _ if fresh == known => {}
                _ => return Err(differ()),
            }
        }
    }
    Ok(largest)
}

/// The largest difference of the values in two safetensors files.
///
/// # Errors
/// The first tensor that only one file has, or that differs by more than the tolerance.
pub fn compare_tensors(fresh: &[u8], known: &[u8]) -> Result<f64, String> {
    let (fresh, known) = (tensor_file::read(fresh)?, tensor_file::read(known)?);
    if let Some(name) = known.keys().find(|name| !fresh.contains_key(*name)) {
        return Err(format!("{name} is not made any more"));
    }
    let mut largest = 0.0_f64;
    for (name, tensor) in &fresh {
        let Some(known) = known.get(name) else {
            return Err(format!("{name} is not checked in"));
        };
        let Tensor { dtype, shape, .. } = tensor;
        if (dtype, shape) != (&known.dtype, &known.shape) {
            return Err(format!(
                "{name}: {dtype} {shape:?}, not {} {:?}",
                known.dtype, known.shape
            ));
        }
        for (index, (a, b)) in tensor.numbers().into_iter().zip(known.numbers()).enumerate() {
            let differ = || format!("{name}[{index}]: {a}, checked in is {b}");
            largest = largest.max(difference(a, b).ok_or_else(differ)?);
        }
    }
    Ok(largest)
}

/// The difference of two numbers, relative to the larger of `b` and 1; `None` above the tolerance.
fn difference(a: f64, b: f64) -> Option<f64> {
    if a == b || (a.is_nan() && b.is_nan()) {
        return Some(0.0);
    }
    let difference = (a - b).abs() / b.abs().max(1.0);
    (difference <= TOLERANCE).then_some(difference)
}
