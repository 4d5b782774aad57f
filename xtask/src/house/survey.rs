//! The measures of one crate.

use std::collections::{HashMap, HashSet};
use std::fmt;

use crate::tidy::words;
use crate::tree::circles::circles;
use crate::tree::items::{functions, public_items};
use crate::tree::modules::{Module, imports, modules};
use crate::tree::tokens::{is_of_name, tokens};
use crate::tree::{File, Tree};

const FILE_LINES_MAX: usize = 400;
const FUNCTION_LINES_MAX: usize = 70;
const PARAMETERS_MAX: usize = 7;

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Path relative to the root.
    pub path: String,
    /// Number of the line, from 1.
    pub line: usize,
    /// A name or a measure.
    pub what: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// The measures of a crate's sources, without tests unless stated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// The folder of the crate.
    pub folder: String,
    /// Number of source files.
    pub file_count: usize,
    /// Number of lines of these files.
    pub line_count: usize,
    /// Paths of files that import each other, the largest circle first.
    pub circles: Vec<Vec<String>>,
    /// Files of more than 400 lines.
    pub long_files: Vec<Place>,
    /// Functions of more than 70 lines.
    pub long_functions: Vec<Place>,
    /// Functions with more than seven parameters.
    pub wide_functions: Vec<Place>,
    /// Number of public items.
    pub public_count: usize,
    /// Public items whose names do not occur outside the crate.
    pub unnamed: Vec<Place>,
    /// Comments that begin without a subject, in tests too.
    pub words: Vec<Place>,
}

impl Survey {
    pub(super) fn of(tree: &Tree, folder: &str, readers: &Readers<'_>) -> Self {
        let modules = modules(tree, folder);
        let mut survey = Self {
            folder: folder.to_owned(),
            file_count: modules.len(),
            line_count: modules.iter().map(|module| module.code.line_count).sum(),
            ..Self::default()
        };
        let path = |index: usize| modules[index].file.path.clone();
        let paths = |circle: Vec<usize>| circle.into_iter().map(path).collect();
        survey.circles = circles(&imports(&modules)).into_iter().map(paths).collect();
        for module in &modules {
            survey.add_sizes(module);
            for item in public_items(&module.code.tokens) {
                survey.public_count += 1;
                if !readers.have(item.name, folder) {
                    survey.unnamed.push(place(module.file, item.line, item.name.to_owned()));
                }
            }
        }
        for file in tree.rust_files().filter(|file| file.folder() == folder) {
            let found = words::findings_in(file).into_iter();
            survey.words.extend(found.map(|finding| place(file, finding.line, finding.message)));
        }
        survey
    }

    fn add_sizes(&mut self, module: &Module<'_>) {
        let line_count = module.code.line_count;
        if line_count > FILE_LINES_MAX {
            self.long_files.push(place(module.file, 1, format!("{line_count} lines")));
        }
        for function in functions(&module.code.tokens) {
            let place =
                |what| place(module.file, function.line, format!("{}, {what}", function.name));
            if function.line_count > FUNCTION_LINES_MAX {
                self.long_functions.push(place(format!("{} lines", function.line_count)));
            }
            if function.parameter_count > PARAMETERS_MAX {
                self.wide_functions.push(place(format!("{} parameters", function.parameter_count)));
            }
        }
    }
}

fn place(file: &File, line: usize, what: String) -> Place {
    Place { path: file.path.clone(), line, what }
}

/// The names in code and Markdown, by the crates that use them.
pub(super) struct Readers<'a> {
    /// The folders of the crates with a name in their sources, tests or benches.
    folders: HashMap<&'a str, HashSet<&'a str>>,
    /// The names in examples and Markdown, which are written for users.
    for_users: HashSet<&'a str>,
}

impl<'a> Readers<'a> {
    pub(super) fn of(tree: &'a Tree) -> Self {
        let mut readers = Self { folders: HashMap::new(), for_users: HashSet::new() };
        for file in tree.rust_files() {
            let names = tokens(file.source()).into_iter().map(|token| token.text);
            if file.path.contains("/examples/") {
                readers.for_users.extend(names);
                continue;
            }
            for name in names {
                readers.folders.entry(name).or_default().insert(file.folder());
            }
        }
        for (_, text) in tree.with_extension("md") {
            readers.for_users.extend(text.split(|c| !is_of_name(c)));
        }
        readers
    }

    /// True if a name occurs outside the crate in `folder`, or in a text for users.
    fn have(&self, name: &str, folder: &str) -> bool {
        let is_other = |folders: &HashSet<&str>| folders.iter().any(|other| *other != folder);
        self.for_users.contains(name) || self.folders.get(name).is_some_and(is_other)
    }
}
