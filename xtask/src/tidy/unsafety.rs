//! Each piece of unsafe code has its argument directly above it.
//!
//! Clippy requires the comment. This check requires a minimum length, also above `unsafe impl` and
//! `unsafe fn`.

use super::Finding;
use crate::tree::Tree;
use crate::tree::source::Line;

/// Minimum number of words. A shorter comment cannot name both an obligation and the fact that
/// meets it.
const WORDS_MIN: usize = 5;

/// Unsafe blocks, functions, impls, traits and extern blocks without an argument of
/// `WORDS_MIN` words, as `// SAFETY:` or in a `# Safety` section.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust_files() {
        let source = file.source();
        for index in 0..source.lines.len() {
            let Some(what) = unsafe_item(&source.lines, index) else { continue };
            let words = argument_words(&source.lines, index);
            if words < WORDS_MIN {
                let message = format!(
                    "`{what}` needs a `SAFETY:` comment or `# Safety` section of {WORDS_MIN} words \
                     directly above, found {words}"
                );
                findings.push(Finding::at(file, index, message));
            }
        }
    }
    findings
}

/// The kind of item that begins with `unsafe` on this line, if it has an obligation.
fn unsafe_item(lines: &[Line], index: usize) -> Option<&'static str> {
    let code = &lines[index].code;
    code.match_indices("unsafe").find_map(|(at, word)| {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_') {
            return None;
        }
        // rustfmt sometimes puts a brace on the next line.
        let next = lines.get(index + 1).map(|line| line.code.trim()).unwrap_or_default();
        let rest = code[at + word.len()..].trim_start();
        classify(if rest.is_empty() { next } else { rest })
    })
}

/// The kind of item after `unsafe`. A pointer type (`unsafe fn(usize)`) and an attribute
/// (`unsafe(no_mangle)`) have no obligation.
fn classify(rest: &str) -> Option<&'static str> {
    let keyword_end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
    match &rest[..keyword_end] {
        "" if rest.starts_with('{') => Some("unsafe {"),
        "impl" => Some("unsafe impl"),
        "trait" => Some("unsafe trait"),
        "fn" => names_a_function(rest).then_some("unsafe fn"),
        "extern" if rest.contains("fn") => names_a_function(rest).then_some("unsafe fn"),
        "extern" => Some("unsafe extern"),
        _ => None,
    }
}

fn names_a_function(rest: &str) -> bool {
    rest.split_once("fn").is_some_and(|(_, after)| !after.trim_start().starts_with('('))
}

/// The words of the argument in the comments above line `index`. Attributes, and earlier lines of
/// the same statement, may stand in between.
fn argument_words(lines: &[Line], index: usize) -> usize {
    let mut comments = Vec::new();
    for line in lines[..index].iter().rev() {
        let code = line.code.trim();
        if code.is_empty() && !line.has_comment {
            break;
        }
        let is_attribute = code.starts_with("#[") || (code == "]" || code == ")]");
        let continues = comments.is_empty() && !code.ends_with([';', '{', '}', ',']);
        if !code.is_empty() && !is_attribute && !continues {
            break;
        }
        if code.is_empty() {
            comments.push(line.comment.as_str());
        }
    }
    comments.reverse();
    let text = comments.join(" ");
    let argument = text.split_once("SAFETY:").or_else(|| text.split_once("# Safety"));
    argument.map_or(0, |(_, argument)| {
        argument.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count()
    })
}
