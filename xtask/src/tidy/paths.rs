//! Paths that exist on one machine only.

use super::Finding;
use crate::tree::Tree;

/// Split so that this file does not contain the searched paths.
const MACHINE_ROOTS: [&str; 3] =
    [concat!("/", "home/"), concat!("/", "root/"), concat!("/", "work/")];

/// Absolute paths below a `MACHINE_ROOTS` folder, in any text file.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, text) in tree.texts() {
        for (index, line) in text.lines().enumerate() {
            for root in MACHINE_ROOTS {
                if line.match_indices(root).any(|(at, _)| starts_a_path(&line[..at])) {
                    findings.push(Finding::at(file, index, format!("machine path `{root}`")));
                }
            }
        }
    }
    findings
}

/// True if a path begins after `before`, and false inside a longer path or address: `src/work/x`,
/// `https://host/home/`, `../work/`.
fn starts_a_path(before: &str) -> bool {
    !before.ends_with(|c: char| c.is_alphanumeric() || "._-/~}$*".contains(c))
}
