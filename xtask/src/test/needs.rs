//! The needs of a section of `cargo xtask test`, and the reason why a section cannot run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::{scoreboard, workspace};

/// The target of the sanitizer sections.
pub(super) const SANITIZER_TARGET: &str = "x86_64-unknown-linux-gnu";

/// A need of a section, apart from cargo and the compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing is needed.
    Nothing,
    /// A cargo subcommand that answers `--version`.
    Subcommand(&'static str),
    /// A C++ compiler.
    CppCompiler,
    /// A machine of the target of the sanitizer sections.
    SanitizerTarget,
    /// A machine of the target of the sanitizer sections, with the sources of the standard library.
    StandardSources,
    /// A Python with the libraries whose suites are run.
    Suites,
    /// A machine of the target of the sanitizer sections, with a C++ compiler and the library of
    /// its address sanitizer.
    CompilerSanitizer,
    /// An MPI that starts processes, its compiler, and libclang, which reads MPI's headers.
    Mpi,
}

impl Needs {
    /// The reason why the section cannot run here; `None` if it can run.
    pub(super) fn missing(self, root: &Path) -> Option<String> {
        let target_is_here = cfg!(all(target_arch = "x86_64", target_os = "linux"));
        match self {
            Self::Nothing => None,
            Self::Subcommand(tool) => {
                (!answers(root, tool)).then(|| format!("`cargo {tool}` is not installed here"))
            }
            Self::SanitizerTarget | Self::StandardSources | Self::CompilerSanitizer
                if !target_is_here =>
            {
                Some(format!("needs {SANITIZER_TARGET}"))
            }
            Self::Suites => (!scoreboard::is_ready(root)).then(|| {
                "there is no Python with the PyTorch and the ONNX of `cargo xtask scoreboard`"
                    .to_owned()
            }),
            Self::CppCompiler => {
                let compiler = cpp_compiler();
                workspace::first_line_of(root, &compiler, &["--version"])
                    .is_none()
                    .then(|| format!("there is no C++ compiler `{compiler}`"))
            }
            Self::Mpi => missing_mpi(root),
            Self::CompilerSanitizer => {
                let compiler = cpp_compiler();
                (!has_sanitizer(root, &compiler))
                    .then(|| format!("the C++ compiler `{compiler}` has no libasan.so"))
            }
            Self::SanitizerTarget => None,
            Self::StandardSources => (!has_standard_sources(root)).then(|| {
                "the compiler has no sources of the standard library (`.ci/standard-sources` \
                 brings them); one that is not instrumented makes every contended lock look like \
                 a race"
                    .to_owned()
            }),
        }
    }
}

/// The reason why MPI cannot start processes here.
fn missing_mpi(root: &Path) -> Option<String> {
    for tool in ["mpicc", "mpirun"] {
        if workspace::first_line_of(root, tool, &["--version"]).is_none() {
            return Some(format!("there is no `{tool}` (Debian's mpich and libmpich-dev)"));
        }
    }
    if !has_libclang() {
        return Some("there is no libclang (Debian's libclang-dev)".to_owned());
    }
    let mut started = Command::new("mpirun");
    started.args(["-n", "2", "true"]).stdin(Stdio::null()).stdout(Stdio::null());
    (!ends_well(started.stderr(Stdio::null()))).then(|| "`mpirun -n 2 true` fails".to_owned())
}

/// True if libclang is in a place that `clang-sys` searches.
fn has_libclang() -> bool {
    if std::env::var_os("LIBCLANG_PATH").is_some() {
        return true;
    }
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
    let has_it = |folder: &Path| {
        entries(folder).any(|entry| entry.file_name().to_string_lossy().starts_with("libclang"))
    };
    let versions = entries(Path::new("/usr/lib")).map(|entry| entry.path().join("lib"));
    let others = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib"];
    versions.chain(others.map(PathBuf::from)).any(|folder| has_it(&folder))
}

/// True if a program ends without an error within 15 seconds.
fn ends_well(command: &mut Command) -> bool {
    let Ok(mut child) = command.spawn() else { return false };
    for _ in 0..150 {
        if let Ok(Some(status)) = child.try_wait() {
            return status.success();
        }
        thread::sleep(Duration::from_millis(100));
    }
    drop(child.kill());
    drop(child.wait());
    false
}

fn cpp_compiler() -> String {
    std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned())
}

fn answers(root: &Path, tool: &str) -> bool {
    let mut command = workspace::cargo(root);
    command.args([tool, "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// True if the compiler has the sanitizer's library. A compiler without the library prints the bare
/// name.
fn has_sanitizer(root: &Path, compiler: &str) -> bool {
    workspace::first_line_of(root, compiler, &["-print-file-name=libasan.so"])
        .is_some_and(|path| Path::new(&path).is_absolute() && Path::new(&path).exists())
}

fn has_standard_sources(root: &Path) -> bool {
    workspace::first_line_of(root, "rustc", &["--print", "sysroot"])
        .is_some_and(|sysroot| Path::new(&sysroot).join("lib/rustlib/src/rust/library").is_dir())
}
