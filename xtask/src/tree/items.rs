//! Functions with their sizes, and public items, of code without tests.

use super::tokens::{Token, group_len, is_of_name};

/// A function that has a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function<'a> {
    /// The name in the declaration.
    pub name: &'a str,
    /// Number of the line with the name, from 1.
    pub line: usize,
    /// Number of lines from the name to the end of the body.
    pub line_count: usize,
    /// Number of parameters, including `self`.
    pub parameter_count: usize,
}

/// The functions in the order of their lines.
pub fn functions<'a>(tokens: &[Token<'a>]) -> Vec<Function<'a>> {
    let is_named = |pair: &&[Token<'_>]| pair[1].text.starts_with(is_of_name);
    let starts = tokens.windows(2).enumerate().filter(|(_, pair)| pair[0].text == "fn");
    starts
        .filter(|(_, pair)| is_named(pair))
        .filter_map(|(at, _)| function(&tokens[at + 1..]))
        .collect()
}

/// The function whose name is the first token; `None` if the function has no body.
fn function<'a>(tokens: &[Token<'a>]) -> Option<Function<'a>> {
    let open = tokens.iter().position(|token| token.text == "(")?;
    let close = open + group_len(&tokens[open..]);
    let mut body = close;
    while tokens.get(body)?.text != "{" {
        match tokens[body].text {
            ";" => return None,
            "(" | "[" => body += group_len(&tokens[body..]),
            _ => body += 1,
        }
    }
    let end = body + group_len(&tokens[body..]) - 1;
    Some(Function {
        name: tokens[0].text,
        line: tokens[0].line,
        line_count: tokens[end].line + 1 - tokens[0].line,
        parameter_count: parameter_count(&tokens[open + 1..close - 1]),
    })
}

fn parameter_count(tokens: &[Token<'_>]) -> usize {
    let mut count = 0;
    let (mut depth, mut is_empty) = (0_usize, true);
    for token in tokens {
        match token.text {
            "(" | "[" | "{" | "<" => depth += 1,
            ")" | "]" | "}" | ">" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if token.text == "," && depth == 0 {
            is_empty = true;
        } else if is_empty {
            is_empty = false;
            count += 1;
        }
    }
    count
}

/// An item that is `pub`, and not `pub(crate)` or similar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublicItem<'a> {
    /// The name in the declaration.
    pub name: &'a str,
    /// Number of the line with the name, from 1.
    pub line: usize,
}

/// The public items in the order of their lines, including methods, but without fields, variants
/// and re-exports.
pub fn public_items<'a>(tokens: &[Token<'a>]) -> Vec<PublicItem<'a>> {
    const BEFORE: [&str; 5] = ["const", "async", "unsafe", "extern", "auto"];
    const KINDS: [&str; 9] =
        ["fn", "struct", "enum", "union", "trait", "type", "static", "mod", "const"];
    let text = |index: usize| tokens.get(index).map_or("", |token| token.text);
    let mut found = Vec::new();
    for at in 0..tokens.len() {
        let mut name = at + 1;
        match text(at) {
            "pub" => {
                while BEFORE.contains(&text(name))
                    && (BEFORE.contains(&text(name + 1)) || KINDS.contains(&text(name + 1)))
                {
                    name += 1;
                }
                if !KINDS.contains(&text(name)) {
                    continue;
                }
            }
            "macro_export" => {
                let Some(next) = tokens[at..].iter().position(|t| t.text == "macro_rules") else {
                    continue;
                };
                name = at + next + 1;
            }
            _ => continue,
        }
        name += 1;
        name += usize::from(text(name) == "mut");
        if let Some(token) = tokens.get(name) {
            found.push(PublicItem { name: token.text, line: token.line });
        }
    }
    found
}
