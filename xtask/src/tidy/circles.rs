//! Circles of files that import each other: no file of a circle can be understood without the
//! others.

use super::Finding;
use crate::tree::Tree;
use crate::tree::circles::circles;
use crate::tree::modules::{imports, modules};

/// Maximum size of a circle that a reader can still follow.
const FILES_MAX: usize = 6;

/// The sizes of known circles that are larger than `FILES_MAX`, by the folder of their crate.
const KNOWN: &[(&str, &[usize])] = &[("tensor", &[12])];

/// Circles of more than `FILES_MAX` files that are not in `KNOWN`, and circles that are smaller
/// than in `KNOWN`, reported at their first file.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for folder in tree.crates() {
        let modules = modules(tree, folder);
        let known = KNOWN.iter().find(|(name, _)| *name == folder).map_or(&[][..], |(_, of)| of);
        for (nth, circle) in circles(&imports(&modules)).iter().enumerate() {
            let allowed = match known.get(nth) {
                Some(&size) => size..=size,
                None => 0..=FILES_MAX,
            };
            if allowed.contains(&circle.len()) {
                continue;
            }
            let limit = allowed.end();
            let paths: Vec<&str> =
                circle.iter().map(|&index| modules[index].file.path.as_str()).collect();
            let message = format!(
                "a circle of {} files, not the {limit} that are known or allowed: {}",
                paths.len(),
                paths.join(", ")
            );
            findings.push(Finding::at(modules[circle[0]].file, 0, message));
        }
    }
    findings
}
