//! Markdown: relative links and anchors exist, and the recipes name existing files.

use super::Finding;
use crate::tree::{File, Tree};

/// Relative links to files that are not tracked, and anchors without a heading.
///
/// Addresses with a scheme are not followed: the check needs no network.
pub fn check_links(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, text) in tree.with_extension("md") {
        for (index, line) in prose_lines(text) {
            for target in link_targets(&line) {
                if let Err(message) = follow(tree, file, &target) {
                    findings.push(Finding::at(file, index, message));
                }
            }
        }
    }
    findings
}

/// Paths in the code spans of `CONTRIBUTING.md` that are neither a file nor a folder. A part in
/// capital letters, as in `src/ops/NAME`, stands for any name.
pub fn check_recipes(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let Some(file) = tree.get("CONTRIBUTING.md") else { return findings };
    for (index, line) in file.text.as_deref().unwrap_or_default().lines().enumerate() {
        for span in line.split('`').skip(1).step_by(2).filter(|span| span.contains('/')) {
            let is_named = |part: &&str| part.chars().any(|c| !c.is_ascii_uppercase());
            let path = span.split('/').take_while(is_named).collect::<Vec<_>>().join("/");
            if tree.get(&path).is_none() && !tree.has_folder(&path) {
                findings.push(Finding::at(file, index, format!("`{span}` is not there")));
            }
        }
    }
    findings
}

fn follow(tree: &Tree, from: &File, target: &str) -> Result<(), String> {
    if has_scheme(target) {
        return Ok(());
    }
    let (path, anchor) = match target.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor)),
        None => (target, None),
    };
    let path = if path.is_empty() {
        from.path.clone()
    } else {
        resolve(&from.path, path).ok_or_else(|| format!("`{target}` leaves the repository"))?
    };
    let Some(file) = tree.get(&path) else {
        let is_folder = tree.has_folder(&path) && anchor.is_none();
        return is_folder.then_some(()).ok_or_else(|| format!("`{target}` leads to no file"));
    };
    match (anchor, file.text.as_deref()) {
        (Some(anchor), Some(text)) if file.has_extension("md") => anchors(text)
            .contains(&anchor.to_owned())
            .then_some(())
            .ok_or_else(|| format!("`{target}` leads to no heading")),
        _ => Ok(()),
    }
}

/// True for `https:` and `mailto:`, but not for a path or a Rust path such as `crate::Tensor`.
fn has_scheme(target: &str) -> bool {
    target.split_once(':').is_some_and(|(scheme, rest)| {
        !rest.starts_with(':') && scheme.chars().all(|c| c.is_ascii_alphanumeric() || c == '+')
    })
}

/// `link` in the file `from` as a path relative to the root; `None` if the link leads above the
/// root.
fn resolve(from: &str, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// The lines outside fenced code, without code spans, each with its index.
fn prose_lines(text: &str) -> impl Iterator<Item = (usize, String)> {
    let mut fence: Option<&str> = None;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let trimmed = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|mark| trimmed.starts_with(mark));
        match (fence, mark) {
            (None, Some(mark)) => fence = Some(mark),
            (Some(open), Some(mark)) if open == mark => fence = None,
            (None, None) => return Some((index, without_code_spans(line))),
            (Some(_), _) => {}
        }
        None
    })
}

/// Replaces each code span by a letter, so that a link whose text is code keeps a text.
fn without_code_spans(line: &str) -> String {
    let parts: Vec<&str> = line.split('`').collect();
    let closed = parts.len() % 2 == 1;
    let mut text = String::new();
    for (index, part) in parts.iter().enumerate() {
        let is_code = index % 2 == 1 && (closed || index + 1 < parts.len());
        text.push_str(if is_code { "c" } else { part });
    }
    text
}

/// The targets of `[text](target)`, `![image](target)` and `[label]: target` on a line.
fn link_targets(line: &str) -> Vec<String> {
    let mut targets = Vec::new();
    for (at, opening) in line.match_indices("](") {
        let rest = &line[at + opening.len()..];
        targets.extend(target_at_start(rest, ')'));
    }
    let definition = line.trim_start().strip_prefix('[').and_then(|rest| rest.split_once("]: "));
    if let Some((label, rest)) = definition
        && !label.starts_with('^')
    {
        targets.extend(target_at_start(rest.trim(), '\n'));
    }
    targets
}

/// The target of `target`, `<target>` or `target "title"`, up to `end`. Names in this project have
/// no blanks.
fn target_at_start(rest: &str, end: char) -> Option<String> {
    let inner = rest.split(end).next().unwrap_or_default();
    let target = match inner.trim_start().strip_prefix('<') {
        Some(bracketed) => bracketed.split('>').next(),
        None => inner.split_whitespace().next(),
    }?;
    (!target.is_empty()).then(|| target.to_owned())
}

/// The anchors that a hosting site makes from the headings of `text`, and explicit `id`s and
/// `name`s.
fn anchors(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let prose: Vec<(usize, &str)> = {
        let lines: Vec<&str> = text.lines().collect();
        prose_lines(text).map(|(index, _)| (index, lines[index])).collect()
    };
    for (_, line) in prose {
        for attribute in ["id=\"", "name=\""] {
            let explicit = line.split(attribute).skip(1).filter_map(|rest| rest.split('"').next());
            found.extend(explicit.map(str::to_owned));
        }
        let level = line.chars().take_while(|c| *c == '#').count();
        let Some(title) = line.get(level..).and_then(|rest| rest.strip_prefix(' ')) else {
            continue;
        };
        if (1..=6).contains(&level) {
            let base = slug(title);
            let mut anchor = base.clone();
            let mut repeat = 0;
            while found.contains(&anchor) {
                repeat += 1;
                anchor = format!("{base}-{repeat}");
            }
            found.push(anchor);
        }
    }
    found
}

/// The anchor of a heading: lower case, hyphens for blanks, no punctuation. A link counts by its
/// text.
fn slug(title: &str) -> String {
    let mut text = String::new();
    let mut rest = title;
    while let Some((before, after)) = rest.split_once("](") {
        text.push_str(before);
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    text.push_str(rest);
    let kept = text.trim().chars().filter_map(|c| match c {
        ' ' => Some('-'),
        '-' | '_' => Some(c),
        c if c.is_alphanumeric() => Some(c),
        _ => None,
    });
    kept.flat_map(char::to_lowercase).collect()
}
