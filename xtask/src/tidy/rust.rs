//! Rust sources line by line: the first line, the length, imports from the crate's root, and code
//! that must not stay.

use super::Finding;
use crate::tree::Tree;

/// Maximum width of a line, as in `.rustfmt.toml`. rustfmt does not wrap comments and strings.
const COLUMNS_MAX: usize = 100;

/// Files that do not start with a `//!` line or `#![doc`.
///
/// Under `tests/`, only the root of a test binary needs such a line: `tests/NAME.rs` and
/// `tests/NAME/main.rs`. A test module is described by the names of its tests. A bench has one file
/// and states its subject.
pub fn check_headers(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, text) in tree.with_extension("rs") {
        let first = text.lines().next().unwrap_or_default();
        let described = first.starts_with("//!") || first.starts_with("#![doc");
        if !described && !is_test_module(&file.path) {
            findings.push(Finding::at(file, 0, "the file does not start with a `//!` line"));
        }
    }
    findings
}

fn is_test_module(path: &str) -> bool {
    let mut parts = path.split('/').skip_while(|part| *part != "tests").skip(1);
    match (parts.next(), parts.next(), parts.next()) {
        (None, ..) | (Some(_), None, _) | (Some(_), Some("main.rs"), None) => false,
        (Some(_), Some(_), _) => true,
    }
}

/// Lines wider than `COLUMNS_MAX` characters.
pub fn check_line_lengths(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, text) in tree.with_extension("rs") {
        for (index, line) in text.lines().enumerate() {
            let columns = line.chars().count();
            if columns > COLUMNS_MAX {
                let message = format!("{columns} columns, {COLUMNS_MAX} are the limit");
                findings.push(Finding::at(file, index, message));
            }
        }
    }
    findings
}

/// Unit tests that never run: those in a library that its manifest builds for no tests, unless a
/// test of the crate includes the file by `#[path]`.
pub fn check_unit_tests(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let manifests =
        tree.texts().filter_map(|(file, text)| Some((file.folder_of("Cargo.toml")?, text)));
    for (folder, _) in manifests.filter(|(_, manifest)| is_without_unit_tests(manifest)) {
        let [sources, tests] = ["src", "tests"].map(|part| format!("{folder}/{part}/"));
        for file in tree.rust_files().filter(|file| file.path.starts_with(&sources)) {
            let mut lines = file.source().lines.iter();
            let Some(index) = lines.position(|line| line.code.contains("cfg(test)")) else {
                continue;
            };
            let end = format!("{}\"]", &file.path[folder.len()..]);
            let includes = |line: &str| line.starts_with("#[path = ") && line.ends_with(&end);
            let mut others = tree.texts().filter(|(other, _)| other.path.starts_with(&tests));
            if !others.any(|(_, text)| text.lines().any(includes)) {
                let message = "never runs: the library is built for no tests; move it to `tests`";
                findings.push(Finding::at(file, index, message));
            }
        }
    }
    findings
}

/// True if the table `[lib]` of a manifest has `test = false`.
fn is_without_unit_tests(manifest: &str) -> bool {
    let lines = manifest.lines().skip_while(|line| *line != "[lib]").skip(1);
    lines.take_while(|line| !line.starts_with('[')).any(|line| line == "test = false")
}

/// Code that is marked as unfinished, is switched off, or is left from debugging.
pub fn check_leftovers(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust_files() {
        for (index, line) in file.source().lines.iter().enumerate() {
            for leftover in ["#[ignore", "todo!", "unimplemented!", "dbg!"] {
                if contains_word(&line.code, leftover) {
                    findings.push(Finding::at(file, index, format!("`{leftover}` in the code")));
                }
            }
        }
    }
    findings
}

/// Imports of a type from the crate's root, `use crate::Name`, outside of `lib.rs` and `main.rs`.
/// The module of a type shows the layer of the importing file; the root hides this.
pub fn check_root_imports(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust_files() {
        let is_root = file.path.ends_with("/lib.rs") || file.path.ends_with("/main.rs");
        if is_root || !file.path.contains("/src/") {
            continue;
        }
        let mut group_depth = 0;
        for (index, line) in file.source().lines.iter().enumerate() {
            let mut rest = line.code.as_str();
            if group_depth == 0 {
                let Some(at) = rest.find("crate::") else { continue };
                // A macro uses `$crate::Name`, because only the root is known where the macro is
                // expanded.
                if rest[..at].ends_with('$') {
                    continue;
                }
                rest = &rest[at + "crate::".len()..];
                if !rest.starts_with('{') {
                    if rest.starts_with(char::is_uppercase) {
                        findings.push(Finding::at(file, index, ROOT_IMPORT));
                    }
                    continue;
                }
            }
            if names_of_root(rest, &mut group_depth) {
                findings.push(Finding::at(file, index, ROOT_IMPORT));
            }
        }
    }
    findings
}

const ROOT_IMPORT: &str = "imported from the crate's root; name the module that it is in";

/// True if a line inside `use crate::{..}` names a type of the crate's root. `depth` counts the
/// open braces, and is updated.
fn names_of_root(line: &str, depth: &mut usize) -> bool {
    let mut before = ',';
    let mut found = false;
    for c in line.chars() {
        match c {
            '{' => *depth += 1,
            '}' => *depth = depth.saturating_sub(1),
            _ => found |= *depth == 1 && c.is_uppercase() && matches!(before, '{' | ','),
        }
        if !c.is_whitespace() {
            before = c;
        }
    }
    found
}

/// True if `word` occurs in `code`, not at the end of a longer name.
pub(super) fn contains_word(code: &str, word: &str) -> bool {
    code.match_indices(word).any(|(at, _)| {
        !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_')
            && !code[at + word.len()..].starts_with(|c: char| c.is_alphanumeric() || c == '_')
    })
}
