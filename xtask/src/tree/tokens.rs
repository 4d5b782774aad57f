//! Code as words and marks, and such code without tests.

use super::source::Source;

/// A name, a number, a lifetime, `::`, `->` or another single mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    /// The text of the token.
    pub text: &'a str,
    /// Number of the line, from 1.
    pub line: usize,
}

/// True for the characters of names.
pub(crate) fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The tokens of a file, in order. Strings and character literals are left out.
pub fn tokens(source: &Source) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    for (index, line) in source.lines.iter().enumerate() {
        let mut rest = line.code.trim_start();
        while !rest.is_empty() {
            let (text, after) = rest.split_at(token_len(rest));
            if !text.starts_with('"') && text != "'" {
                found.push(Token { text, line: index + 1 });
            }
            rest = after.trim_start();
        }
    }
    found
}

fn token_len(rest: &str) -> usize {
    let name_len = |text: &str| text.find(|c| !is_of_name(c)).unwrap_or(text.len());
    let first = rest.chars().next().map_or(1, char::len_utf8);
    match &rest[..first] {
        "'" => first + name_len(&rest[first..]),
        _ if rest.starts_with("::") || rest.starts_with("->") => 2,
        _ => name_len(rest).max(first),
    }
}

/// Code without tests, and its number of lines.
#[derive(Clone, Debug, Default)]
pub struct Shipped<'a> {
    /// The tokens in order.
    pub tokens: Vec<Token<'a>>,
    /// Number of lines of the file, without the lines of tests.
    pub line_count: usize,
    /// The modules in separate files that only tests use.
    pub test_modules: Vec<&'a str>,
}

/// Leaves out every item with `#[test]` or with a `#[cfg(..)]` for tests.
pub fn without_tests(source: &Source) -> Shipped<'_> {
    let all = tokens(source);
    // A text that ends with a line break has an empty line after it.
    let last_is_empty = source.lines.last().is_some_and(|line| *line == Default::default());
    let line_count = source.lines.len() - usize::from(last_is_empty);
    let mut shipped = Shipped { line_count, ..Shipped::default() };
    let mut at = 0;
    while at < all.len() {
        let attribute = attribute_len(&all[at..]);
        if !is_for_tests(&all[at..at + attribute]) {
            let kept = attribute.max(1);
            shipped.tokens.extend_from_slice(&all[at..at + kept]);
            at += kept;
            continue;
        }
        let start = at;
        while attribute_len(&all[at..]) > 0 {
            at += attribute_len(&all[at..]);
        }
        let item = &all[at..at + item_len(&all[at..])];
        if let Some(module) = module_in_file(item) {
            shipped.test_modules.push(module);
        }
        at += item.len();
        shipped.line_count -= all[at - 1].line + 1 - all[start].line;
    }
    shipped
}

/// Number of tokens of the attribute `#[..]` or `#![..]` at the start; 0 if there is no attribute.
fn attribute_len(tokens: &[Token<'_>]) -> usize {
    let text = |index: usize| tokens.get(index).map_or("", |token| token.text);
    match (text(0), text(1), text(2)) {
        ("#", "[", _) => 1 + group_len(&tokens[1..]),
        ("#", "!", "[") => 2 + group_len(&tokens[2..]),
        _ => 0,
    }
}

fn is_for_tests(attribute: &[Token<'_>]) -> bool {
    let has = |text: &str| attribute.iter().any(|token| token.text == text);
    let name = attribute.get(2).map_or("", |token| token.text);
    name == "test" || (name == "cfg" && has("test") && !has("not"))
}

/// Number of tokens from an opening bracket to its closing bracket.
pub(crate) fn group_len(tokens: &[Token<'_>]) -> usize {
    let mut depth = 0_usize;
    for (index, token) in tokens.iter().enumerate() {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return index + 1;
        }
    }
    tokens.len()
}

/// Number of tokens of the item, field or statement at the start.
fn item_len(tokens: &[Token<'_>]) -> usize {
    const ENDS_IN_SEMICOLON: [&str; 4] = ["use", "static", "const", "let"];
    const ITEMS: [&str; 10] =
        ["pub", "fn", "mod", "impl", "struct", "enum", "trait", "type", "unsafe", "macro_rules"];
    let first = tokens.first().map_or("", |token| token.text);
    let is_item = ITEMS.contains(&first) || ENDS_IN_SEMICOLON.contains(&first);
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match token.text {
            ")" | "]" | "}" => return at,
            "(" | "[" => at += group_len(&tokens[at..]),
            "{" => {
                at += group_len(&tokens[at..]);
                if !ENDS_IN_SEMICOLON.contains(&first) {
                    return at;
                }
            }
            ";" => return at + 1,
            "," if !is_item => return at + 1,
            _ => at += 1,
        }
    }
    at
}

/// The `name` in `mod name;`.
fn module_in_file<'a>(item: &[Token<'a>]) -> Option<&'a str> {
    let at = item.iter().position(|token| token.text == "mod")?;
    let is_short = item.get(at + 2).is_some_and(|token| token.text == ";");
    is_short.then(|| item[at + 1].text)
}
