//! Words of comments: each comment carries a meaning, and begins with its subject.

use super::Finding;
use super::rust::contains_word;
use crate::tree::{File, Tree};

/// Comments with a pronoun for a person that the code does not have, and comments of only a
/// question word or a noun.
pub fn check_meaning(tree: &Tree) -> Vec<Finding> {
    const NO_ONE: &[&str] = &["somebody", "nobody", "anybody", "whoever"];
    const NOTHING: &[&str] = &[
        "it",
        "how",
        "where",
        "which",
        "why",
        "when",
        "likewise",
        "how much",
        "how many",
        "who asked",
        "for whom",
    ];
    let mut findings = Vec::new();
    for file in tree.rust_files().filter(|file| file.path.contains("/src/")) {
        let lines = &file.source().lines;
        for (index, line) in lines.iter().enumerate() {
            let comment = line.comment.to_lowercase();
            for word in NO_ONE {
                if contains_word(&comment, word) {
                    let message = format!("`{word}`: say which thread, stream, owner or reader");
                    findings.push(Finding::at(file, index, message));
                }
            }
            let is_alone = |at: Option<usize>| {
                at.and_then(|at| lines.get(at)).is_none_or(|line| !line.has_comment)
            };
            let sentence = comment.trim().trim_end_matches('.');
            if (NOTHING.contains(&sentence) || is_bare_noun(sentence))
                && is_alone(index.checked_sub(1))
                && is_alone(Some(index + 1))
            {
                findings.push(Finding::at(file, index, "the comment says nothing"));
            }
        }
    }
    findings
}

/// True for an article and a noun, such as "The key", which only repeats the name of a field.
fn is_bare_noun(sentence: &str) -> bool {
    let mut words = sentence.split(' ');
    let is_noun = |word: &str| word.chars().all(|letter| letter.is_ascii_lowercase());
    matches!(words.next(), Some("the" | "its"))
        && words.next().is_some_and(is_noun)
        && words.next().is_none()
}

/// Paragraphs of comments that [`findings_in`] refuses.
pub fn check_openings(tree: &Tree) -> Vec<Finding> {
    tree.rust_files().flat_map(findings_in).collect()
}

/// Paragraphs of comments that open without a subject, and phrases that express a number by
/// pointing at other things.
pub fn findings_in(file: &File) -> Vec<Finding> {
    const PHRASES: &[&str] = &["so many", "as many as there are"];
    let mut findings = Vec::new();
    for paragraph in paragraphs(file) {
        if let Some(opening) = opening_without_subject(&paragraph.text) {
            let message = format!("`{opening} ..`: begin with a noun or a verb, name the subject");
            findings.push(Finding::at(file, paragraph.index, message));
        }
        let text = paragraph.text.to_lowercase();
        for phrase in PHRASES.iter().filter(|phrase| contains_word(&text, phrase)) {
            let message = format!("`{phrase}`: name the number");
            findings.push(Finding::at(file, paragraph.index, message));
        }
    }
    findings
}

/// The first word or two of a text, if they are a pronoun, `Of`, or `What` in place of a noun. A
/// question about a state, such as "What is wrong with a setting", is accepted as a noun.
fn opening_without_subject(text: &str) -> Option<&'static str> {
    let word = |word: &str| word.trim_matches(|c: char| !c.is_alphanumeric()).to_owned();
    let mut words = text.split_whitespace().map(word);
    let (first, second) = (words.next()?, words.next().unwrap_or_default());
    let is_state = matches!(second.as_str(), "is" | "are" | "was" | "were");
    match first.as_str() {
        "The" if second == "same" => Some("The same"),
        "What" if !is_state => Some("What"),
        first => ["Of", "Those", "That", "Who", "It"].into_iter().find(|word| *word == first),
    }
}

struct Paragraph {
    /// The line of the paragraph's beginning, from 0.
    index: usize,
    text: String,
}

/// The paragraphs of all comments, without fenced code and headings.
fn paragraphs(file: &File) -> Vec<Paragraph> {
    let mut found: Vec<Paragraph> = Vec::new();
    let raw = file.text.as_deref().unwrap_or_default().lines();
    let (mut mark, mut continues, mut is_fenced) = ("", false, false);
    for (index, (line, raw)) in file.source().lines.iter().zip(raw).enumerate() {
        let (comment, code) = (line.comment.trim(), line.code.trim());
        let own_mark = ["///", "//!", "//"].into_iter().find(|mark| raw.trim().starts_with(mark));
        let own_mark = if code.is_empty() { own_mark.unwrap_or("/*") } else { "" };
        if !line.has_comment || own_mark != mark || own_mark.is_empty() {
            (mark, continues, is_fenced) = (own_mark, false, false);
        }
        if comment.starts_with("```") {
            is_fenced = !is_fenced;
        }
        let is_heading = comment.starts_with("# ");
        if comment.is_empty() || comment.starts_with("```") || is_fenced || is_heading {
            continues = false;
        } else if let Some(paragraph) = found.last_mut().filter(|_| continues) {
            paragraph.text.push(' ');
            paragraph.text.push_str(comment);
        } else {
            found.push(Paragraph { index, text: comment.to_owned() });
            continues = true;
        }
    }
    found
}
