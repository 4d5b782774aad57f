//! `cargo xtask house [CRATE]`: sizes of files and functions, by crate.

mod survey;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use crate::tree::Tree;
pub use survey::{Place, Survey};

/// Prints the table of all crates, or the places that are counted for one crate.
///
/// # Errors
/// One line about arguments, or about files that cannot be read.
pub fn run(root: &Path, arguments: &[String]) -> Result<bool, String> {
    let tree = Tree::read(root)?;
    match arguments {
        [] => print!("{}", table(&surveys(&tree))),
        [folder] if tree.crates().contains(&folder.as_str()) => {
            print!("{}", names(&Survey::of(&tree, folder, &survey::Readers::of(&tree))));
        }
        _ => {
            let (crates, found) = (tree.crates().join(", "), arguments.join(" "));
            return Err(format!("house takes one of {crates}, got `{found}`"));
        }
    }
    Ok(true)
}

/// The surveys of all crates, by folder.
pub fn surveys(tree: &Tree) -> Vec<Survey> {
    let readers = survey::Readers::of(tree);
    tree.crates().into_iter().map(|folder| Survey::of(tree, folder, &readers)).collect()
}

type Column = (&'static str, fn(&Survey) -> usize);

const COLUMNS: &[Column] = &[
    ("files", |survey| survey.file_count),
    ("lines", |survey| survey.line_count),
    ("circles", |survey| survey.circles.len()),
    ("largest", |survey| survey.circles.first().map_or(0, Vec::len)),
    ("files>400", |survey| survey.long_files.len()),
    ("fns>70", |survey| survey.long_functions.len()),
    ("params>7", |survey| survey.wide_functions.len()),
    ("public", |survey| survey.public_count),
    ("unnamed", |survey| survey.unnamed.len()),
    ("words", |survey| survey.words.len()),
];

/// A line for each crate, their sums, and the members of the largest circle.
pub fn table(surveys: &[Survey]) -> String {
    let mut text = format!("{:10}", "crate");
    COLUMNS.iter().for_each(|(title, _)| text += &format!(" {title:>9}"));
    text.push('\n');
    for survey in surveys {
        let _ = write!(text, "{:10}", survey.folder);
        COLUMNS.iter().for_each(|(_, value)| text += &format!(" {:>9}", value(survey)));
        text.push('\n');
    }
    let _ = write!(text, "{:10}", "all");
    for (title, value) in COLUMNS {
        let values = surveys.iter().map(value);
        let all: usize = if *title == "largest" { values.max().unwrap_or(0) } else { values.sum() };
        let _ = write!(text, " {all:>9}");
    }
    text += "\n\n";
    let largest = surveys.iter().filter_map(|survey| survey.circles.first());
    if let Some(circle) = largest.max_by_key(|circle| circle.len()) {
        let _ = writeln!(text, "the largest circle: {}", circle.join(", "));
    }
    text + LEGEND
}

const LEGEND: &str = "\
Source files and lines, without tests. A circle is files that import each other. `unnamed` are
public items whose name no other crate, example or Markdown file has; `words` are comments that
begin without a subject. `cargo xtask house CRATE` lists all of them.
";

/// The places that are counted for a crate.
pub fn names(survey: &Survey) -> String {
    let mut text = String::new();
    for circle in &survey.circles {
        let _ = writeln!(text, "a circle of {} files\n  {}\n", circle.len(), circle.join("\n  "));
    }
    for (title, places) in [
        ("files of more than 400 lines", &survey.long_files),
        ("functions of more than 70 lines", &survey.long_functions),
        ("functions with more than seven parameters", &survey.wide_functions),
        ("comments that begin without a subject", &survey.words),
    ] {
        if !places.is_empty() {
            let _ = writeln!(text, "{} {title}", places.len());
            places.iter().for_each(|place| text += &format!("  {place}\n"));
            text.push('\n');
        }
    }
    let (all, count) = (survey.public_count, survey.unnamed.len());
    let _ = writeln!(text, "{all} public items, {count} named by no other crate, example or page");
    let mut by_file: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for place in &survey.unnamed {
        by_file.entry(&place.path).or_default().push(&place.what);
    }
    by_file.iter().for_each(|(path, names)| text += &format!("  {path}: {}\n", names.join(", ")));
    text
}
