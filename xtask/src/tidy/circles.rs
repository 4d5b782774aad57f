//! Circles of files that import each other: no file of a circle can be understood without the
//! others.

use super::Finding;
use crate::tree::Tree;
use crate::tree::circles::circles;
use crate::tree::modules::{imports, modules};

/// Maximum size of a circle that a reader can still follow.
const FILES_MAX: usize = 6;

/// Circles of more than `FILES_MAX` files, reported at their first file.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for folder in tree.crates() {
        let modules = modules(tree, folder);
        let circles = circles(&imports(&modules)).into_iter();
        for circle in circles.filter(|circle| circle.len() > FILES_MAX) {
            let paths: Vec<&str> =
                circle.iter().map(|&index| modules[index].file.path.as_str()).collect();
            let message = format!(
                "a circle of {} files, {FILES_MAX} are the limit: {}",
                paths.len(),
                paths.join(", ")
            );
            findings.push(Finding::at(modules[circle[0]].file, 0, message));
        }
    }
    findings
}
