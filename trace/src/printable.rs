//! Texts of strangers, such as names in their files, for a terminal.

/// The text on one line in printable characters. Control characters, line breaks, marks of
/// direction and invisible characters become escapes such as `\u{1b}`: the text cannot control a
/// terminal or change the direction of the text around it.
pub fn printable(text: &str) -> String {
    let mut shown = String::new();
    for char in text.chars() {
        if char.is_control() || is_format(char) {
            shown.extend(char.escape_unicode());
        } else {
            shown.push(char);
        }
    }
    shown
}

/// The beginning of a text that is longer than `len_max` characters, with `…` as the last one.
pub fn beginning(text: &str, len_max: usize) -> String {
    if text.chars().count() <= len_max {
        return text.to_owned();
    }
    let beginning: String = text.chars().take(len_max.saturating_sub(1)).collect();
    format!("{beginning}…")
}

/// The end of a text that is longer than `len_max` characters, with `…` as the first one.
pub(crate) fn end(text: &str, len_max: usize) -> String {
    let len = text.chars().count();
    if len <= len_max {
        return text.to_owned();
    }
    let end: String = text.chars().skip(len - len_max.saturating_sub(1)).collect();
    format!("…{end}")
}

/// True for line breaks, marks of direction and invisible characters: the general categories Zl, Zp
/// and Cf of Unicode 16.
fn is_format(char: char) -> bool {
    matches!(char,
        '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{180e}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}
