//! The files of the repository, read once, and parsers of their text: [`source`] separates code
//! from comments, [`tokens`] splits code into words, [`modules`] follows paths between the files of
//! a crate, [`circles`] finds files that import each other, [`items`] lists functions and public
//! items.

pub mod circles;
pub mod items;
pub mod modules;
pub mod source;
pub mod tokens;

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use crate::workspace;
use source::Source;

/// One tracked file.
#[derive(Clone, Debug)]
pub struct File {
    /// Path relative to the root, with `/`.
    pub path: String,
    /// The text; `None` if the file is not UTF-8.
    pub text: Option<String>,
    source: OnceLock<Source>,
}

impl File {
    /// A file at `path`, relative to the root. `text` is `None` if the file is not UTF-8.
    pub fn new(path: impl Into<String>, text: Option<String>) -> Self {
        Self { path: path.into(), text, source: OnceLock::new() }
    }

    /// The text as lines of Rust, split at the first call.
    pub fn source(&self) -> &Source {
        self.source.get_or_init(|| Source::parse(self.text.as_deref().unwrap_or_default()))
    }

    pub(crate) fn has_extension(&self, extension: &str) -> bool {
        Path::new(&self.path).extension().is_some_and(|e| e == extension)
    }

    /// The folder of the root that contains the file: `tensor` for `tensor/src/lib.rs`.
    pub(crate) fn folder(&self) -> &str {
        self.path.split_once('/').map_or("", |(folder, _)| folder)
    }

    /// `tensor` for `tensor/NAME`, such as the manifest or README of a crate.
    pub(crate) fn folder_of(&self, name: &str) -> Option<&str> {
        let folder = self.path.strip_suffix(name)?.strip_suffix('/')?;
        (!folder.contains('/')).then_some(folder)
    }
}

/// The files that git tracks or would track, read once.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// The files, sorted by path.
    pub files: Vec<File>,
}

impl Tree {
    /// Reads the files under `root` that git does not ignore.
    ///
    /// # Errors
    /// One line if git does not answer or a file cannot be read.
    pub fn read(root: &Path) -> Result<Self, String> {
        let read = |path: String| match fs::read(root.join(&path)) {
            Ok(bytes) => Ok(File::new(path, String::from_utf8(bytes).ok())),
            Err(error) => Err(format!("{path}: {error}")),
        };
        let files: Result<Vec<File>, String> =
            workspace::tracked_files(root)?.into_iter().map(read).collect();
        Ok(Self { files: files? })
    }

    /// The folders in the root that have a manifest, sorted.
    pub fn crates(&self) -> Vec<&str> {
        self.files.iter().filter_map(|file| file.folder_of("Cargo.toml")).collect()
    }

    /// Rust files.
    pub(crate) fn rust_files(&self) -> impl Iterator<Item = &File> {
        self.with_extension("rs").map(|(file, _)| file)
    }

    /// Text files, each with its text.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (&File, &str)> {
        self.files.iter().filter_map(|file| Some((file, file.text.as_deref()?)))
    }

    /// Text files whose name ends in `.extension`.
    pub(crate) fn with_extension(&self, extension: &str) -> impl Iterator<Item = (&File, &str)> {
        self.texts().filter(move |(file, _)| file.has_extension(extension))
    }

    pub(crate) fn get(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    pub(crate) fn has_folder(&self, path: &str) -> bool {
        let prefix = format!("{path}/");
        path.is_empty() || self.files.iter().any(|file| file.path.starts_with(&prefix))
    }
}
