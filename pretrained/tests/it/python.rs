//! Readers of other programs, if a Python has them.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;

/// A Python with some packages.
pub(crate) struct Python(OsString);

impl Python {
    /// `LOWTIDE_PYTHON` or `python3`. If this Python lacks one of `packages`, prints that the test
    /// `name` is skipped.
    pub(crate) fn with(name: &str, packages: &[&str]) -> Option<Self> {
        let python = std::env::var_os("LOWTIDE_PYTHON").unwrap_or_else(|| "python3".into());
        let imports = format!("import {}", packages.join(", "));
        let output = Command::new(&python).args(["-c", &imports]).output();
        if output.is_ok_and(|output| output.status.success()) {
            return Some(Python(python));
        }
        let packages = packages.join(", ");
        println!("skipped: {name}: no Python with {packages}; LOWTIDE_PYTHON names one");
        None
    }

    /// Runs a script of this crate, which prints its comparisons.
    #[track_caller]
    pub(crate) fn run(&self, script: &str, arguments: &[&dyn AsRef<OsStr>]) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(script);
        let mut command = Command::new(&self.0);
        command.arg(script).args(arguments.iter().map(|it| it.as_ref()));
        let output = command.output().expect("Python starts");
        println!("{}", String::from_utf8_lossy(&output.stdout));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
    }
}
