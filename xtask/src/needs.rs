//! What a section of `cargo xtask test` needs of the machine, and why it cannot run without it.

use std::path::Path;
use std::process::Stdio;

use crate::{scoreboard, workspace};

/// The target whose standard library the sanitizers of stable Rust know.
pub(crate) const SANITIZER_TARGET: &str = "x86_64-unknown-linux-gnu";

/// What a section needs beside cargo and the compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing.
    Nothing,
    /// A cargo subcommand that answers `--version`.
    Subcommand(&'static str),
    /// A C++ compiler.
    CppCompiler,
    /// A machine of the one target that the sanitizer sections are written for.
    SanitizerTarget,
    /// That machine, and the sources of the standard library to build it from.
    StandardSources,
    /// A Python with the libraries whose suites are run.
    Suites,
    /// That machine, and a C++ compiler with the library of its address sanitizer.
    CompilerSanitizer,
}

impl Needs {
    /// Why the section cannot run here; `None` if it can.
    pub(crate) fn missing(self, root: &Path) -> Option<String> {
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

fn cpp_compiler() -> String {
    std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned())
}

fn answers(root: &Path, tool: &str) -> bool {
    let mut command = workspace::cargo(root);
    command.args([tool, "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// A compiler that has no such file says its bare name.
fn has_sanitizer(root: &Path, compiler: &str) -> bool {
    workspace::first_line_of(root, compiler, &["-print-file-name=libasan.so"])
        .is_some_and(|path| Path::new(&path).is_absolute() && Path::new(&path).exists())
}

fn has_standard_sources(root: &Path) -> bool {
    workspace::first_line_of(root, "rustc", &["--print", "sysroot"])
        .is_some_and(|sysroot| Path::new(&sysroot).join("lib/rustlib/src/rust/library").is_dir())
}
