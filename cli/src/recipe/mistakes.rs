//! Mistakes in the text of a recipe: their lines, and clear words for the parser's messages.

use std::path::Path;

/// The parser's message in one line, without names of Rust types, and with the nearest known name.
pub(super) fn readable(message: &str) -> String {
    if is_beyond_integers(message) {
        return format!("whole numbers are {} to {}", i64::MIN, i64::MAX);
    }
    let problem = message.lines().collect::<Vec<_>>().join(" ");
    let problem = problem.replace("expected usize", "expected u64") + &near(message);
    let problem = problem.replace("expected u64", "expected a whole number, 0 or more");
    let problem = problem.replace("expected a nonzero usize", "expected a whole number, 1 or more");
    problem.replace("expected f64", "expected a number")
}

/// True for a parser's message about an integer that does not fit TOML's 64 bits with a sign.
pub(super) fn is_beyond_integers(message: &str) -> bool {
    let marks = ["u64 value was too large", "` as i128", "` as u128", "number overflowed"];
    marks.iter().any(|mark| message.contains(mark))
}

/// The nearest known name, to be added to a parser's message about an unknown name.
fn near(message: &str) -> String {
    let is_unknown = message.contains("unknown field `") || message.contains("unknown variant `");
    let mut names = message.split('`').skip(1).step_by(2);
    let Some(wrong) = names.next().filter(|_| is_unknown) else { return String::new() };
    let distance = |name: &str| strsim::damerau_levenshtein(wrong, name);
    let nearest = names.min_by_key(|name| distance(name));
    // A third of the letters may be wrong; in a short name, two.
    let is_near = |name: &&str| distance(name) <= (wrong.chars().count() / 3).max(2);
    let suggestion = nearest.filter(is_near).map(|name| format!("; did you mean `{name}`?"));
    suggestion.unwrap_or_default()
}

/// A place in a recipe: the file, the line's number and the line itself.
pub(super) fn place(path: &Path, text: &str, line: Option<usize>) -> String {
    let Some(line) = line else { return path.display().to_string() };
    let source = text.lines().nth(line - 1).unwrap_or_default().trim();
    let source = if source.is_empty() { String::new() } else { format!(" ({source})") };
    format!("{}, line {line}{source}", path.display())
}

/// The line of an error that begins at `start`. For an unknown key the parser points at the table's
/// header, so the key is searched below the header.
pub(super) fn line_of_error(text: &str, start: usize, message: &str) -> usize {
    let start = text.floor_char_boundary(start);
    let first = text[..start].matches('\n').count() + 1;
    let after = |mark| message.strip_prefix(mark).and_then(|rest: &str| rest.split('`').next());
    let key = after("unknown field `").or_else(|| after("unfit value of `"));
    let key = key.or_else(|| message.starts_with("unknown variant").then_some("kind"));
    key.and_then(|key| line_of_key(text, first, key)).unwrap_or(first)
}

/// The line that sets `table.key`.
pub(super) fn line_of_name(text: &str, name: &str) -> Option<usize> {
    let (table, key) = name.split_once('.')?;
    let header = text.lines().position(|line| line.trim() == format!("[{table}]"))?;
    line_of_key(text, header + 1, key)
}

/// The line, from `first` on and counted from 1, that sets `key` in the same table.
fn line_of_key(text: &str, first: usize, key: &str) -> Option<usize> {
    let sets = |line: &str| line.split_once('=').is_some_and(|(left, _)| left.trim() == key);
    let lines = text.lines().enumerate().skip(first - 1);
    lines
        .take_while(|(index, line)| *index < first || !line.trim_start().starts_with('['))
        .find(|(_, line)| sets(line))
        .map(|(index, _)| index + 1)
}
