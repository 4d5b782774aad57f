//! A Python with packages of other libraries: a Python of the machine, or one below `target`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Packages of a Python.
pub(crate) struct Packages {
    /// Names and versions, in pip's notation.
    pub(crate) names: &'static [&'static str],
    /// Python code that ends without an error if the packages are installed.
    pub(crate) probe: &'static str,
    /// The size of the installation.
    pub(crate) size: &'static str,
}

/// A Python with the packages: from `LOWTIDE_PYTHON`, `python3`, or below `target`.
pub(crate) fn find(root: &Path, packages: &Packages) -> Option<PathBuf> {
    let named = std::env::var_os("LOWTIDE_PYTHON").map(PathBuf::from);
    let candidates = [named, Some("python3".into()), Some(below_target(root).join("bin/python"))];
    candidates.into_iter().flatten().find(|python| {
        let mut probe = Command::new(python);
        let probe =
            probe.args(["-c", packages.probe]).stdout(Stdio::null()).stderr(Stdio::null()).status();
        probe.is_ok_and(|status| status.success())
    })
}

/// The result of [`find`], or a Python below `target` with newly installed packages.
///
/// # Errors
/// One line about a program that fails.
pub(crate) fn find_or_install(root: &Path, packages: &Packages) -> Result<PathBuf, String> {
    if let Some(python) = find(root, packages) {
        return Ok(python);
    }
    let folder = below_target(root);
    let python = folder.join("bin/python");
    let (names, place) = (packages.names.join(", "), folder.display());
    println!("installing {names} in {place}: with what they need, {}", packages.size);
    call(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    call(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(packages.names))?;
    Ok(python)
}

fn below_target(root: &Path) -> PathBuf {
    root.join("target/python")
}

/// Runs a command to its end.
///
/// # Errors
/// One line if the command does not start or fails.
pub(crate) fn call(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.stdin(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name} failed: {status}")),
        Err(error) => Err(format!("{name} does not start: {error}")),
    }
}
