//! Lines of 80 columns, and the numbers in them.

use std::fmt;

use lowtide_allocator::Bytes;

use super::advice::percent;
use crate::recording::Site;

const COLUMNS: usize = 80;
/// Length of the longest bar, in columns.
const BAR_COLUMNS: u64 = 30;

/// A writer of lines that fit into the columns.
pub(super) struct Page<'a, 'f> {
    pub(super) f: &'a mut fmt::Formatter<'f>,
}

impl Page<'_, '_> {
    pub(super) fn blank(&mut self) -> fmt::Result {
        writeln!(self.f)
    }

    pub(super) fn heading(&mut self, text: &str) -> fmt::Result {
        writeln!(self.f, "\n{text}")
    }

    pub(super) fn row(&mut self, name: &str, bytes: u64, more: &str) -> fmt::Result {
        self.item(&format!("  {name:<15} {:>12}  ", Bytes(bytes).to_string()), more)
    }

    /// Writes a part of a whole, with a bar in proportion.
    pub(super) fn share(&mut self, name: &str, bytes: u64, whole_bytes: u64) -> fmt::Result {
        let part = u128::from(bytes) * u128::from(BAR_COLUMNS);
        // A sum that saturated is smaller than its parts.
        let len = part.div_ceil(u128::from(whole_bytes.max(1)));
        let bar = "#".repeat(len.min(u128::from(BAR_COLUMNS)) as usize);
        let (size, share) = (Bytes(bytes).to_string(), percent(bytes, whole_bytes));
        self.line(&format!("  {name:<15} {size:>12} {share:>7}  {bar}"))
    }

    pub(super) fn site(&mut self, figures: &str, site: Option<&Site>) -> fmt::Result {
        let room = COLUMNS.saturating_sub(columns(figures)).max(8);
        let site = site.map_or_else(|| "unknown site".into(), |site| fitting(site, room));
        self.line(&format!("{figures}{site}"))
    }

    /// Wraps a text and keeps its indent.
    pub(super) fn paragraph(&mut self, text: &str) -> fmt::Result {
        let indent = &text[..text.len() - text.trim_start().len()];
        self.item(indent, text.trim_start())
    }

    /// Wraps a text behind `head`. Later lines are indented by the length of `head`.
    pub(super) fn item(&mut self, head: &str, text: &str) -> fmt::Result {
        let room = COLUMNS - columns(head);
        let indent = " ".repeat(columns(head));
        let mut line = String::new();
        let mut start = head;
        for word in text.split(' ').flat_map(|word| pieces(word, room)) {
            if !line.is_empty() && columns(&line) + 1 + columns(word) > room {
                self.line(&format!("{start}{line}"))?;
                line.clear();
                start = &indent;
            }
            // An empty word stands for a second space.
            line.push_str(if line.is_empty() { "" } else { " " });
            line.push_str(word);
        }
        self.line(&format!("{start}{line}"))
    }

    pub(super) fn line(&mut self, line: &str) -> fmt::Result {
        writeln!(self.f, "{}", line.trim_end())
    }
}

/// A word, cut into pieces if it is longer than a line.
fn pieces(word: &str, room: usize) -> Vec<&str> {
    let mut pieces = Vec::new();
    let (mut from, mut len) = (0, 0);
    for (at, char) in word.char_indices() {
        let wide = char_columns(char);
        if len + wide > room && len > 0 {
            pieces.push(&word[from..at]);
            (from, len) = (at, 0);
        }
        len += wide;
    }
    pieces.push(&word[from..]);
    pieces
}

/// The end of a site's text, as far as it fits into `room` columns.
fn fitting(site: &Site, room: usize) -> String {
    let mut len = room;
    loop {
        let shown = site.shown(len);
        let excess = columns(&shown).saturating_sub(room);
        if excess == 0 || len <= 1 {
            return shown;
        }
        len -= excess.div_ceil(2).min(len - 1);
    }
}

/// Columns of a text on a terminal. Characters from the Hangul letters on may be two columns wide.
fn columns(text: &str) -> usize {
    text.chars().map(char_columns).sum()
}

fn char_columns(char: char) -> usize {
    if char >= '\u{1100}' && char != '…' { 2 } else { 1 }
}

/// A number with its noun. For several, the noun gets an s or takes its second form.
pub(super) fn counted(count: u64, noun: &str) -> String {
    let (one, many) = match noun.split_once('|') {
        Some((one, many)) => (one, many.to_owned()),
        None => (noun, format!("{noun}s")),
    };
    format!("{} {}", grouped(count), if count == 1 { one } else { &many })
}

/// Digits in groups of three.
pub(super) fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.char_indices() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

pub(super) fn duration(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..1_000_000 => tenths(us, 1000, "ms"),
        1_000_000..60_000_000 => tenths(us, 1_000_000, "s"),
        _ => tenths(us, 60_000_000, "min"),
    }
}

fn tenths(us: u64, unit_us: u64, name: &str) -> String {
    let tenths = us.saturating_add(unit_us / 20) / (unit_us / 10);
    format!("{}.{} {name}", grouped(tenths / 10), tenths % 10)
}
