//! Separates code from comments and strings, so that a rule about code does not apply to prose.

use std::iter::Peekable;
use std::str::Chars;

/// One line, split into code and comments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// The code without comments, with every string and character literal emptied: `""`, `''`.
    pub code: String,
    /// The text of the line's comments, without `//`, `///`, `//!`, `/*`.
    pub comment: String,
    /// True if the line has a comment, even an empty one, such as the `///` between paragraphs.
    pub has_comment: bool,
}

/// A Rust file as lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// The lines of the text, with an empty line after a final line break.
    pub lines: Vec<Line>,
}

impl Source {
    /// Splits `text`. Text that is not Rust gives some split, but never a panic.
    pub fn parse(text: &str) -> Self {
        let mut scanner = Scanner { rest: text.chars().peekable(), lines: vec![Line::default()] };
        while let Some(c) = scanner.rest.next() {
            scanner.read(c);
        }
        Self { lines: scanner.lines }
    }
}

struct Scanner<'a> {
    rest: Peekable<Chars<'a>>,
    lines: Vec<Line>,
}

impl Scanner<'_> {
    fn read(&mut self, c: char) {
        match (c, self.rest.peek().copied()) {
            ('/', Some('/')) => self.line_comment(),
            ('/', Some('*')) => self.block_comment(),
            ('"', _) => self.string(),
            ('r', Some('"' | '#')) if !self.inside_a_name() => self.raw_string_or_name(),
            ('\'', _) => self.character_or_lifetime(),
            ('\n', _) => self.lines.push(Line::default()),
            _ => self.line().code.push(c),
        }
    }

    fn line(&mut self) -> &mut Line {
        let last = self.lines.len() - 1;
        &mut self.lines[last]
    }

    /// True if the code so far ends in a name that `r` would continue, as in `for"`. The prefixes
    /// of byte and C strings are no such names.
    fn inside_a_name(&mut self) -> bool {
        let code = &self.line().code;
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        let start = code.rfind(|c| !is_name(c)).map_or(0, |at| at + 1);
        let name = code.get(start..).unwrap_or_default();
        !matches!(name, "" | "b" | "c")
    }

    fn line_comment(&mut self) {
        while self.rest.next_if(|c| matches!(c, '/' | '!')).is_some() {}
        self.line().has_comment = true;
        while let Some(c) = self.rest.next_if(|c| *c != '\n') {
            self.line().comment.push(c);
        }
    }

    /// Reads a block comment, which may contain others.
    fn block_comment(&mut self) {
        let mut depth = 1;
        self.rest.next();
        while let Some(c) = self.rest.next() {
            match (c, self.rest.peek()) {
                ('*', Some('/')) => {
                    self.rest.next();
                    depth -= 1;
                    if depth == 0 {
                        return;
                    }
                }
                ('/', Some('*')) => {
                    self.rest.next();
                    depth += 1;
                }
                ('\n', _) => self.lines.push(Line::default()),
                _ => {
                    self.line().has_comment = true;
                    self.line().comment.push(c);
                }
            }
        }
    }

    fn string(&mut self) {
        self.line().code.push('"');
        while let Some(c) = self.rest.next() {
            match c {
                '"' => break,
                '\\' if self.rest.peek() != Some(&'\n') => {
                    self.rest.next();
                }
                '\n' => self.lines.push(Line::default()),
                _ => {}
            }
        }
        self.line().code.push('"');
    }

    /// Reads on after an `r` that begins `r"`, `r#"` or a raw name such as `r#type`.
    fn raw_string_or_name(&mut self) {
        let mut hashes = 0;
        while self.rest.next_if_eq(&'#').is_some() {
            hashes += 1;
        }
        if self.rest.next_if_eq(&'"').is_none() {
            self.line().code.push_str("r#");
            return;
        }
        self.line().code.push('"');
        while let Some(c) = self.rest.next() {
            if c == '\n' {
                self.lines.push(Line::default());
            }
            if c == '"' && self.take_hashes(hashes) {
                break;
            }
        }
        self.line().code.push('"');
    }

    /// Takes `count` hashes; false if there are fewer.
    fn take_hashes(&mut self, count: usize) -> bool {
        (0..count).all(|_| self.rest.next_if_eq(&'#').is_some())
    }

    /// Reads on after a quote: `'a'`, `'\n'` and `'"'` are literals, `'a` is a lifetime or a label.
    fn character_or_lifetime(&mut self) {
        let mut ahead = self.rest.clone();
        let first = ahead.next();
        let second = ahead.next();
        match (first, second) {
            (Some('\\'), _) => {
                self.rest.next();
                self.rest.next();
                while self.rest.next_if(|c| *c != '\'' && *c != '\n').is_some() {}
                self.rest.next_if_eq(&'\'');
                self.line().code.push_str("''");
            }
            (Some(c), Some('\'')) if c != '\n' => {
                self.rest.next();
                self.rest.next();
                self.line().code.push_str("''");
            }
            _ => self.line().code.push('\''),
        }
    }
}
