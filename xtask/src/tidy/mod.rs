//! `cargo xtask tidy`: what the compiler and clippy do not check. Pure functions over [`Tree`].
//!
//! One file per kind of file read: [`imports`] manifests, [`rust`] Rust sources line by line,
//! [`unsafety`] the argument above each `unsafe`, [`markdown`] links and README length, [`paths`]
//! every text file. [`source`] tells code from comments and strings.

pub mod imports;
pub mod markdown;
pub mod paths;
pub mod rust;
pub mod source;
pub mod unsafety;

use std::fmt;
use std::fs;
use std::path::Path;

use crate::workspace;

/// One place that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Relative to the root, with `/`.
    pub path: String,
    /// From 1.
    pub line: usize,
    /// What is wrong and what would be right.
    pub message: String,
}

impl Finding {
    /// A finding in `file` at `index`, which counts lines from 0.
    pub(crate) fn at(file: &File, index: usize, message: impl Into<String>) -> Self {
        Self { path: file.path.clone(), line: index + 1, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// One tracked file.
#[derive(Clone, Debug)]
pub struct File {
    /// Relative to the root, with `/`.
    pub path: String,
    /// `None` if it is not UTF-8.
    pub text: Option<String>,
}

impl File {
    fn has_extension(&self, extension: &str) -> bool {
        Path::new(&self.path).extension().is_some_and(|e| e == extension)
    }

    /// `tensor` for `tensor/NAME`, the place of a crate's manifest and README.
    fn folder_of(&self, name: &str) -> Option<&str> {
        let folder = self.path.strip_suffix(name)?.strip_suffix('/')?;
        (!folder.contains('/')).then_some(folder)
    }
}

/// The files that git tracks or would track, read once.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// Sorted by path.
    pub files: Vec<File>,
}

impl Tree {
    /// Reads the files under `root` that git does not ignore.
    ///
    /// # Errors
    /// One line if git does not answer or a file cannot be read.
    pub fn read(root: &Path) -> Result<Self, String> {
        let read = |path: String| match fs::read(root.join(&path)) {
            Ok(bytes) => Ok(File { path, text: String::from_utf8(bytes).ok() }),
            Err(error) => Err(format!("{path}: {error}")),
        };
        let files: Result<Vec<File>, String> =
            workspace::tracked_files(root)?.into_iter().map(read).collect();
        Ok(Self { files: files? })
    }

    /// Text files, each with its text.
    fn texts(&self) -> impl Iterator<Item = (&File, &str)> {
        self.files.iter().filter_map(|file| Some((file, file.text.as_deref()?)))
    }

    /// Text files whose name ends in `.extension`.
    fn with_extension(&self, extension: &str) -> impl Iterator<Item = (&File, &str)> {
        self.texts().filter(move |(file, _)| file.has_extension(extension))
    }

    fn get(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    fn has_folder(&self, path: &str) -> bool {
        let prefix = format!("{path}/");
        path.is_empty() || self.files.iter().any(|file| file.path.starts_with(&prefix))
    }
}

/// A named rule over the tree.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// What the rule is about.
    pub name: &'static str,
    /// Every place that breaks it.
    pub run: fn(&Tree) -> Vec<Finding>,
}

/// Every check, in the order they run.
pub const CHECKS: [Check; 10] = [
    Check { name: "imports follow the graph", run: imports::check },
    Check { name: "imports name the module", run: rust::check_root_imports },
    Check { name: "files say what they are", run: rust::check_headers },
    Check { name: "unsafe code has its argument", run: unsafety::check },
    Check { name: "markdown links lead somewhere", run: markdown::check_links },
    Check { name: "lines fit", run: rust::check_line_lengths },
    Check { name: "comments say who and what", run: rust::check_words },
    Check { name: "crate READMEs are short", run: markdown::check_readme_lengths },
    Check { name: "nothing is left to do", run: rust::check_leftovers },
    Check { name: "no machine paths", run: paths::check },
];
