//! The root of the workspace, the files that it tracks, and cargo in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The nearest folder at or above `start` whose `Cargo.toml` has a `[workspace]` table.
///
/// `CARGO_MANIFEST_DIR` at compile time would be wrong in a checkout that was moved together with
/// its build outputs.
pub fn root_above(start: &Path) -> Option<PathBuf> {
    start.ancestors().find(|folder| is_workspace(folder)).map(Path::to_path_buf)
}

fn is_workspace(folder: &Path) -> bool {
    fs::read_to_string(folder.join("Cargo.toml"))
        .is_ok_and(|text| text.lines().any(|line| line.trim() == "[workspace]"))
}

/// The package name in `folder/Cargo.toml`; `None` if there is no such crate.
pub fn package_in(root: &Path, folder: &str) -> Option<String> {
    let text = fs::read_to_string(root.join(folder).join("Cargo.toml")).ok()?;
    let package = text.lines().skip_while(|line| line.trim() != "[package]");
    let line = package.skip(1).find(|line| line.trim_start().starts_with("name"))?;
    line.split('"').nth(1).map(str::to_owned)
}

/// Paths of the files that git tracks or would track, relative to `root`, sorted.
///
/// # Errors
/// One line if git is missing or `root` is in no repository.
pub fn tracked_files(root: &Path) -> Result<Vec<String>, String> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("git does not start: {e}"))?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        return Err(format!("git lists no files: {}", message.trim()));
    }
    let listing = String::from_utf8_lossy(&output.stdout);
    // The index still lists a file that was deleted but is not yet staged.
    let present = |path: &&str| root.join(path).is_file();
    let paths = listing.split('\0').filter(|path| !path.is_empty()).filter(present);
    let mut files: Vec<String> = paths.map(str::to_owned).collect();
    files.sort();
    files.dedup();
    Ok(files)
}

/// The cargo that runs this xtask, in `root`, without standard input.
pub fn cargo(root: &Path) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.current_dir(root).stdin(Stdio::null());
    command
}

/// The folder that cargo builds in.
pub fn target(root: &Path) -> PathBuf {
    let folder = std::env::var_os("CARGO_TARGET_DIR");
    folder.map_or_else(|| root.join("target"), |folder| root.join(folder))
}

/// The first line that `program arguments` prints, if the program runs and succeeds.
pub fn first_line_of(root: &Path, program: &str, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    let output = command.args(arguments).current_dir(root).stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().next().unwrap_or_default().trim().to_owned();
    (output.status.success() && !line.is_empty()).then_some(line)
}
