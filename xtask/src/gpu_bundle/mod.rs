//! `cargo xtask gpu-bundle`: a folder that tests and measures on a machine with a device, without
//! Rust.
//!
//! ```text
//! cargo xtask gpu-bundle # and target/gpu-bundle.tar.xz, to be copied to other machines
//! # on the machine with the device: a driver, Python 3.8 and, for the comparison, torch
//! tar -xJf gpu-bundle.tar.xz
//! for part in tests kernels models torch pretrained ranks; do
//!     sh gpu-bundle/run.sh $part --out results
//! done
//! ```
//!
//! Each part takes less than ten minutes:
//!
//! - `tests`: versions, the tests that run on any driver, compute-sanitizer, cuDNN's description of
//!   the device.
//! - `kernels`: every kernel against its floor, launches, calls of the driver, copies.
//! - `models`: trainings by lowtide on the device, and their longest kernels.
//! - `torch`: the same trainings in PyTorch.
//! - `pretrained`: models of transformers, fine-tuned by lowtide and by PyTorch with peft.
//! - `ranks`: trainings on several devices. No machine with several devices has run these yet.
//!
//! Each result is written to disk at once, so an interrupted part keeps its results: `results.json`
//! has everything, `results.md` is a table. `run.sh table --out FOLDER` joins the results of parts
//! that were copied into one folder. A part that cannot run prints one line with the reason.
//! Without a device every section prints such a line. The exit code is 1 if a test failed or a
//! program broke, 2 without Python, else 0.
//!
//! The tests are binaries that `cargo xtask test` runs too: every target called [`TARGET`]. With
//! `LOWTIDE_TEST_DRIVER=system` the tests use the driver of the machine, and tests of the pretend
//! driver skip themselves. `LOWTIDE_CUDA_LIBS` may name the folder of a pretend driver with the
//! kernels of tensor's tests (below `target/tmp/pretend-gpu`, the folder with `basics.ptx`): with
//! `--small` the whole script runs on that driver.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::{kernels, test, workspace};

/// The name of test targets that run on a device.
pub const TARGET: &str = "cuda";

/// The option that makes cargo print the paths of programs, and the compiler's messages as usual.
const MESSAGES: &str = "--message-format=json-render-diagnostics";

/// Maximum size of the packed bundle, which is copied over slow lines.
pub const BYTES_MAX: u64 = 40_000_000;

/// The programs of a bundle, apart from the tests.
const PROGRAMS: [&str; 2] = ["lowtide", "gpu_figures"];

/// The files that are not binaries: name and text.
const SCRIPTS: [(&str, &str); 6] = [
    ("run.sh", include_str!("run.sh")),
    ("run.py", include_str!("run.py")),
    ("table.py", include_str!("table.py")),
    ("cudnn_device.py", include_str!("cudnn_device.py")),
    ("torch_figures.py", include_str!("torch_figures.py")),
    ("pretrained_figures.py", include_str!("pretrained_figures.py")),
];

/// A program that cargo built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The folder of the program's package.
    pub folder: String,
    /// The target: `lowtide`, `gpu_figures` or [`TARGET`].
    pub target: String,
    /// Path of the built program.
    pub path: PathBuf,
}

/// The folders that tests read, apart from kernels.
const CASES: [&str; 3] =
    ["pretrained/tests/fixtures", "scoreboard/tests/moduleinfo", "scoreboard/tests/opinfo"];

/// The build profile of the `lowtide` command and of the measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// The build for users.
    Release,
    /// The build of the tests, which is reused.
    Dev,
}

/// Runs the command. True if the bundle is made and small enough.
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
    let with_ptx = match profile {
        Profile::Release => make_ptx(root),
        // The tests run on the pretend driver, which needs no PTX.
        Profile::Dev => "",
    };
    for arguments in commands(profile, with_ptx) {
        for Program { folder: package, target, path } in build(root, &arguments)? {
            let name = match target.as_str() {
                TARGET => format!("tests/{package}-{TARGET}"),
                other if PROGRAMS.contains(&other) => format!("bin/{target}"),
                // Only tests of the command start this program.
                _ => continue,
            };
            put_binary(&path, &folder.join(name))?;
        }
    }
    for (name, text) in SCRIPTS {
        put(&folder.join(name), text.as_bytes())?;
    }
    make_executable(&folder.join("run.sh"))?;
    let workspace = folder.join("workspace");
    let is_kernels = |path: &Path| path.extension().is_some_and(|of| of == "cu" || of == "xz");
    for set in kernels::KERNELS {
        copy(&root.join(set.folder), &workspace.join(set.folder), &is_kernels)?;
    }
    for folder in CASES {
        copy(&root.join(folder), &workspace.join(folder), &|_| true)?;
    }
    put(&folder.join("commit.txt"), commit(root).as_bytes())?;
    println!("{}: {:.1} MB", folder.display(), size_of_tree(&folder)? as f64 / 1e6);
    // Programs of tests are large and are not packed.
    if profile == Profile::Dev { Ok(true) } else { pack(root, &folder) }
}

/// Packs the folder, with a compression window over all programs, which have much in common. True
/// if the file is small enough. If tar or xz is missing, prints so and returns true.
fn pack(root: &Path, folder: &Path) -> Result<bool, String> {
    let packed = folder.with_extension("tar.xz");
    let mut tar = Command::new("tar");
    tar.current_dir(root.join("target"))
        .env("XZ_OPT", "-T1 --lzma2=preset=4,dict=192MiB")
        .arg("-cJf")
        .arg(&packed);
    if !tar.arg("gpu-bundle").status().is_ok_and(|status| status.success()) {
        println!("skipped: {}: tar or xz is not here", packed.display());
        return Ok(true);
    }
    let size_bytes = fs::metadata(&packed).map_err(|error| at(&packed, &error))?.len();
    println!("{}: {:.1} MB", packed.display(), size_bytes as f64 / 1e6);
    if size_bytes > BYTES_MAX {
        println!("too large: {} MB are the limit", BYTES_MAX / 1_000_000);
    }
    Ok(size_bytes <= BYTES_MAX)
}

/// Makes the kernels' PTX and returns the cargo arguments that embed it in programs. If the PTX
/// cannot be made, prints so and returns no arguments: the programs then need a machine with NVRTC.
fn make_ptx(root: &Path) -> &'static str {
    match kernels::make_ptx(root) {
        Ok(()) => " --features lowtide-tensor/ptx",
        Err(reason) => {
            println!("skipped: PTX for machines without NVRTC: {reason}");
            ""
        }
    }
}

/// The arguments of cargo for the tests and for the programs, with the arguments for PTX. There are
/// two calls, because every call of cargo unifies features anew.
pub fn commands(profile: Profile, with_ptx: &str) -> [String; 2] {
    let tests = test::scope(None);
    let programs = match profile {
        Profile::Release => {
            "--release -p lowtide-cli -p lowtide-tensor --features lowtide-tensor/cuda"
        }
        // The features of the tests, so that their libraries are reused.
        Profile::Dev => &tests,
    };
    [
        format!("test --no-run {MESSAGES} {tests}{with_ptx} --test {TARGET}"),
        format!("build {MESSAGES} {programs}{with_ptx} --bin lowtide --example gpu_figures"),
    ]
}

/// Builds the programs and returns them.
fn build(root: &Path, arguments: &str) -> Result<Vec<Program>, String> {
    println!("cargo {arguments}");
    let mut cargo = workspace::cargo(root);
    cargo.args(arguments.split_whitespace()).stderr(Stdio::inherit());
    let output = cargo.output().map_err(|error| format!("cargo does not start: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo {arguments} failed"));
    }
    let programs = programs(&String::from_utf8_lossy(&output.stdout));
    if programs.is_empty() {
        return Err(format!("cargo {arguments} built no program"));
    }
    Ok(programs)
}

/// The programs in cargo's messages.
pub fn programs(messages: &str) -> Vec<Program> {
    let program = |line: &str| {
        let message: Value = serde_json::from_str(line).ok()?;
        let manifest = Path::new(message["manifest_path"].as_str()?);
        Some(Program {
            folder: manifest.parent()?.file_name()?.to_str()?.to_owned(),
            target: message["target"]["name"].as_str()?.to_owned(),
            path: PathBuf::from(message["executable"].as_str()?),
        })
    };
    messages.lines().filter_map(program).collect()
}

/// Copies a program without its symbols. If `strip` is missing, prints so and copies the whole
/// program.
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

/// The files and folders in a folder, in the order of names.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|error| at(folder, &error))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

/// Copies the wanted files of a folder and of its subfolders.
fn copy(from: &Path, to: &Path, is_wanted: &dyn Fn(&Path) -> bool) -> Result<(), String> {
    for path in entries(from)? {
        let into = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            copy(&path, &into, is_wanted)?;
        } else if is_wanted(&path) {
            create(to)?;
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

/// The commit of the bundle, marked if the tree had changes.
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
