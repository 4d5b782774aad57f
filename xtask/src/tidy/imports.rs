//! The import graph of the workspace: the crates that each crate may depend on.

use super::Finding;
use crate::tree::Tree;

/// Each crate with the crates that its arrows point to. A crate may also import the crates that it
/// reaches through other crates.
const ARROWS: [(&str, &[&str]); 13] = [
    ("allocator", &[]),
    ("trace", &["allocator"]),
    ("tensor", &["allocator"]),
    ("autograd", &["tensor"]),
    ("nn", &["autograd", "tensor", "allocator"]),
    ("data", &["allocator"]),
    ("amp", &["autograd", "tensor"]),
    ("ranks", &["tensor", "allocator"]),
    ("pretrained", &["nn", "data", "autograd", "tensor", "allocator"]),
    ("trainer", &["pretrained", "nn", "amp", "ranks", "data", "autograd", "tensor", "allocator"]),
    ("cli", &["trainer", "trace"]),
    ("scoreboard", &["pretrained", "nn", "autograd", "tensor", "allocator"]),
    ("xtask", &[]),
];

/// Dependencies between members without an arrow, and members outside the graph.
///
/// Dev-dependencies are free: they do not reach the users of a crate.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, text) in tree.texts() {
        let Some(folder) = file.folder_of("Cargo.toml") else { continue };
        let Some(allowed) = reachable(folder) else {
            findings.push(Finding::at(file, 0, format!("`{folder}` is not in the import graph")));
            continue;
        };
        for (index, imported) in imports(text) {
            if !allowed.contains(&imported) {
                let message = format!("`{folder}` may not import `lowtide-{imported}`");
                findings.push(Finding::at(file, index, message));
            }
        }
    }
    findings
}

fn reachable(folder: &str) -> Option<Vec<&'static str>> {
    let arrows = |name: &str| ARROWS.iter().find(|(from, _)| *from == name).map(|(_, to)| *to);
    let mut found = arrows(folder)?.to_vec();
    let mut next = 0;
    while next < found.len() {
        for name in arrows(found[next]).unwrap_or_default() {
            if !found.contains(name) {
                found.push(name);
            }
        }
        next += 1;
    }
    Some(found)
}

/// The members that a manifest depends on, each with its line index.
fn imports(manifest: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut counts = false;
    for (index, line) in manifest.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.starts_with('[') {
            counts = is_dependency_table(line);
        }
        if counts {
            found.extend(members_named_in(line).map(|name| (index, name)));
        }
    }
    found
}

/// True for `[dependencies]`, `[build-dependencies]` and their longer forms: `[dependencies.NAME]`,
/// `[target.'cfg(..)'.dependencies]`.
fn is_dependency_table(header: &str) -> bool {
    header.contains("dependencies") && !header.contains("dev-dependencies")
}

/// The members in a line of a manifest, also under another name: `memory = { package =
/// "lowtide-allocator" }`.
fn members_named_in(line: &str) -> impl Iterator<Item = &str> {
    line.split("lowtide-").skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_');
        &rest[..end.unwrap_or(rest.len())]
    })
}
