//! `cargo xtask gpu-bundle`: a folder that shows on a machine with a device, without Rust, what the
//! tests and the measurements say there.
//!
//! ```text
//! cargo xtask gpu-bundle && tar -C target -czf gpu-bundle.tar.gz gpu-bundle
//! # on the machine with the device: a driver, Python 3.8 and, for the comparison, torch
//! tar -xzf gpu-bundle.tar.gz && LOWTIDE_PYTHON=python3 sh gpu-bundle/run.sh
//! ```
//!
//! Within 8 minutes `results.json` has everything and `results.md` a table of it: the tests that
//! can do with any driver, the main job by `lowtide train --device cuda`, and figures beside the
//! same in PyTorch. What cannot be done is a line that says why; without a device every section is
//! one. The exit code is 1 if a test failed or a program broke, 2 without Python, else 0.
//!
//! The tests are the binaries that `cargo xtask test` runs, those of every target called
//! [`TARGET`]: with `LOWTIDE_TEST_DRIVER=system` they take the driver of the machine, and those
//! that need the pretend one skip themselves. `LOWTIDE_CUDA_LIBS` may name the folder of a pretend
//! driver with the kernels of the allocator's tests (below `target/tmp/pretend-gpu`, the one with
//! `basics.ptx`): with `--small` the whole script runs on that.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::workspace;

/// Test binaries that run on a device.
pub const TARGET: &str = "cuda";

/// What lets tests run where there is no device; they carry it to where there is one.
const FEATURE: &str = "pretend";

/// The bundle is sent about.
pub const BYTES_MAX: u64 = 50_000_000;

/// What is no binary: name, text.
const SCRIPTS: [(&str, &str); 3] = [
    ("run.sh", include_str!("run.sh")),
    ("run.py", include_str!("run.py")),
    ("torch_figures.py", include_str!("torch_figures.py")),
];

/// Folders that tests read kernels from.
const KERNELS: [&str; 2] = ["tensor/src/cuda/kernels", "allocator/tests/cuda/kernels"];

/// A test binary of a package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tests {
    /// The package.
    pub package: String,
    /// Features that it is built with.
    pub features: Vec<String>,
}

/// How the `lowtide` command and the measurements are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// As for users.
    Release,
    /// As for tests: what is built already is used.
    Dev,
}

/// Runs the command. True if the bundle is there and small enough.
///
/// # Errors
/// One line about arguments, a build that failed, or files that cannot be read or written.
pub fn run(root: &Path, arguments: &[String]) -> Result<bool, String> {
    let profile = match arguments {
        [] => Profile::Release,
        [only] if only == "--dev" => Profile::Dev,
        [other, ..] => return Err(format!("gpu-bundle does not understand `{other}`")),
    };
    let folder = root.join("target/gpu-bundle");
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|error| at(&folder, &error))?;
    }
    for test in tests(&metadata(root)?)? {
        let built = build(root, &test_command(&test))?;
        let name = test.package.trim_start_matches("lowtide-");
        put_binary(&built, &folder.join("tests").join(format!("{name}-{TARGET}")))?;
    }
    for (name, command) in commands(profile) {
        put_binary(&build(root, &command)?, &folder.join("bin").join(name))?;
    }
    for (name, text) in SCRIPTS {
        put(&folder.join(name), text.as_bytes())?;
    }
    make_executable(&folder.join("run.sh"))?;
    for kernels in KERNELS {
        copy_tree(&root.join(kernels), &folder.join("workspace").join(kernels))?;
    }
    put(&folder.join("commit.txt"), commit(root).as_bytes())?;
    let size_bytes = size_of_tree(&folder)?;
    println!("{}: {:.1} MB", folder.display(), size_bytes as f64 / 1e6);
    if size_bytes > BYTES_MAX {
        println!("too large: {} MB are the limit", BYTES_MAX / 1_000_000);
    }
    Ok(size_bytes <= BYTES_MAX)
}

/// The test binaries of a workspace, by the output of `cargo metadata`, in the order of packages.
///
/// # Errors
/// The output is no such thing.
pub fn tests(metadata: &str) -> Result<Vec<Tests>, String> {
    let metadata: Value = serde_json::from_str(metadata).map_err(|error| error.to_string())?;
    let packages = metadata["packages"].as_array().ok_or("no packages in cargo's metadata")?;
    let mut tests = Vec::new();
    for package in packages {
        let has_kind = |target: &Value, kind: &str| {
            target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|other| other == kind))
        };
        let is_wanted = |target: &Value| target["name"] == TARGET && has_kind(target, "test");
        let mut targets = package["targets"].as_array().into_iter().flatten();
        let Some(target) = targets.find(|target| is_wanted(target)) else { continue };
        let name = package["name"].as_str().ok_or("a package without a name")?;
        let required = target["required-features"].as_array().into_iter().flatten();
        let mut features: Vec<String> =
            required.filter_map(Value::as_str).map(str::to_owned).collect();
        if package["features"].get(FEATURE).is_some() && !features.iter().any(|f| f == FEATURE) {
            features.push(FEATURE.to_owned());
        }
        tests.push(Tests { package: name.to_owned(), features });
    }
    tests.sort_by(|a, b| a.package.cmp(&b.package));
    Ok(tests)
}

/// The arguments of cargo that build a test binary.
pub fn test_command(test: &Tests) -> Vec<String> {
    let mut command = words("test --no-run --message-format=json-render-diagnostics");
    command.extend(["-p".to_owned(), test.package.clone()]);
    command.extend(["--test".to_owned(), TARGET.to_owned()]);
    if !test.features.is_empty() {
        command.extend(["--features".to_owned(), test.features.join(",")]);
    }
    command
}

/// The programs of a bundle, and the arguments of cargo that build them.
fn commands(profile: Profile) -> [(&'static str, Vec<String>); 2] {
    let build = |what: &str| {
        let mut command = words("build --message-format=json-render-diagnostics");
        command.extend(words(what));
        command.extend(words(match profile {
            Profile::Release => "--release",
            // The features of tests, so that the same libraries serve.
            Profile::Dev => "-p lowtide-tensor --features lowtide-tensor/pretend",
        }));
        command
    };
    [
        ("lowtide", build("-p lowtide-trainer --bin lowtide")),
        (
            "gpu_figures",
            build("-p lowtide-tensor --features lowtide-tensor/cuda --example gpu_figures"),
        ),
    ]
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn metadata(root: &Path) -> Result<String, String> {
    let mut cargo = workspace::cargo(root);
    cargo.args(["metadata", "--no-deps", "--format-version", "1"]).stderr(Stdio::inherit());
    let output = cargo.output().map_err(|error| format!("cargo does not start: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Builds one program, and says where it is.
fn build(root: &Path, arguments: &[String]) -> Result<PathBuf, String> {
    println!("cargo {}", arguments.join(" "));
    let mut cargo = workspace::cargo(root);
    cargo.args(arguments).stderr(Stdio::inherit());
    let output = cargo.output().map_err(|error| format!("cargo does not start: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo {} failed", arguments.join(" ")));
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    executable(&messages).ok_or_else(|| format!("cargo {} built no program", arguments.join(" ")))
}

/// The last program that cargo's messages tell of.
pub fn executable(messages: &str) -> Option<PathBuf> {
    let mut messages = messages.lines().rev().filter_map(|line| serde_json::from_str(line).ok());
    messages.find_map(|message: Value| message["executable"].as_str().map(PathBuf::from))
}

/// Copies a program without its symbols; with them, said aloud, where nothing takes them away.
fn put_binary(from: &Path, to: &Path) -> Result<(), String> {
    create(to.parent().unwrap_or(Path::new("")))?;
    fs::copy(from, to).map_err(|error| at(from, &error))?;
    let stripped = Command::new("strip").arg(to).stdin(Stdio::null()).status();
    if !stripped.is_ok_and(|status| status.success()) {
        println!("skipped: strip: the binutils are not here, {} stays whole", to.display());
    }
    Ok(())
}

fn put(path: &Path, bytes: &[u8]) -> Result<(), String> {
    create(path.parent().unwrap_or(Path::new("")))?;
    fs::write(path, bytes).map_err(|error| at(path, &error))
}

#[cfg(unix)]
fn make_executable(path: &Path) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt;
    let permissions = fs::Permissions::from_mode(0o755);
    fs::set_permissions(path, permissions).map_err(|error| at(path, &error))
}

#[cfg(not(unix))]
fn make_executable(_path: &Path) -> Result<(), String> {
    Err("a bundle is for Linux, and made there".to_owned())
}

/// What lies in a folder, in the order of names.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|error| at(folder, &error))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

fn copy_tree(from: &Path, to: &Path) -> Result<(), String> {
    create(to)?;
    for path in entries(from)? {
        let into = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            copy_tree(&path, &into)?;
        } else {
            fs::copy(&path, &into).map_err(|error| at(&path, &error))?;
        }
    }
    Ok(())
}

fn size_of_tree(folder: &Path) -> Result<u64, String> {
    let mut size_bytes = 0;
    for path in entries(folder)? {
        size_bytes += match fs::metadata(&path) {
            Ok(about) if about.is_dir() => size_of_tree(&path)?,
            Ok(about) => about.len(),
            Err(error) => return Err(at(&path, &error)),
        };
    }
    Ok(size_bytes)
}

/// The commit that it is made of, marked if the tree had changes.
fn commit(root: &Path) -> String {
    let arguments = ["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"];
    workspace::first_line_of(root, "git", &arguments).unwrap_or_else(|| "unknown".to_owned())
}

fn create(folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| at(folder, &error))
}

fn at(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}
