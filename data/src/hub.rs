//! Files of the Hugging Face hub in its local cache.

use lowtide_allocator::files::open_input;
use std::env;
use std::ffi::OsString;
use std::fmt;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

/// The local cache of the Hugging Face hub, which the hub's Python library and other programs fill.
/// Files are found in the cache; nothing is downloaded.
///
/// The layout follows the hub's documentation, "Hub Local Cache":
/// `models--ORG--NAME/snapshots/COMMIT/FILE`, with the commit of a branch in `refs/BRANCH`.
///
/// # Examples
/// ```
/// use lowtide_data::{HubCache, HubRepo};
/// let gpt2 = HubRepo::model("openai-community/gpt2");
/// match HubCache::from_environment().find(&gpt2, "tokenizer.json") {
///     Ok(path) => println!("{}", path.display()),
///     Err(error) => println!("{error}"),
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubCache {
    folder: Option<PathBuf>,
}

/// A repository of the hub at one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubRepo {
    kind: &'static str,
    name: String,
    revision: String,
}

impl HubRepo {
    /// The model `name`, such as `org/name`, on the branch `main`.
    #[must_use]
    pub fn model(name: impl Into<String>) -> Self {
        Self { kind: "models", name: name.into(), revision: "main".to_owned() }
    }

    /// The dataset `name` on the branch `main`.
    #[must_use]
    pub fn dataset(name: impl Into<String>) -> Self {
        Self { kind: "datasets", ..Self::model(name) }
    }

    /// This repository at another branch, tag or commit.
    #[must_use]
    pub fn at(self, revision: impl Into<String>) -> Self {
        Self { revision: revision.into(), ..self }
    }
}

impl fmt::Display for HubRepo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}/{}", self.revision, self.kind, self.name)
    }
}

impl HubCache {
    /// The cache in `folder`, which contains folders such as `models--ORG--NAME`.
    #[must_use]
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()) }
    }

    /// The cache of the hub's own library: `$HF_HUB_CACHE`, or else `$HF_HOME/hub`, or else
    /// `huggingface/hub` in `$XDG_CACHE_HOME` or `~/.cache`.
    #[must_use]
    pub fn from_environment() -> Self {
        Self::from_variables(|name| env::var_os(name))
    }

    /// [`from_environment`](Self::from_environment) with the values of environment variables that
    /// `variable` returns. An empty value counts as not set.
    #[must_use]
    pub fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let path = |name: &str| {
            let value = variable(name).filter(|value| !value.is_empty());
            value.map(PathBuf::from)
        };
        let home = || path("HOME").or_else(|| path("USERPROFILE"));
        let cache = || path("XDG_CACHE_HOME").or_else(|| Some(home()?.join(".cache")));
        let default = || Some(cache()?.join("huggingface"));
        let hub = || Some(path("HF_HOME").or_else(default)?.join("hub"));
        Self { folder: path("HF_HUB_CACHE").or_else(hub) }
    }

    /// The path of a file in a repository, such as `tokenizer.json` or `data/train.jsonl`.
    ///
    /// # Errors
    /// [`HubError::NotFound`] with every path that was tried. [`HubError::Name`] for a name that
    /// would lead out of the cache. [`HubError::NoFolder`] if there is no cache.
    pub fn find(&self, repo: &HubRepo, file: &str) -> Result<PathBuf, HubError> {
        for name in [&repo.name, &repo.revision, file] {
            check_name(name)?;
        }
        let Some(cache) = &self.folder else { return Err(HubError::NoFolder) };
        let folder = cache.join(format!("{}--{}", repo.kind, repo.name.replace('/', "--")));
        let branch = folder.join("refs").join(&repo.revision);
        let mut looked = Vec::new();
        let commit = read_commit(&branch);
        if commit.is_none() {
            looked.push(branch);
        }
        // A revision that is not the name of a branch may be a commit.
        let commit = commit.unwrap_or_else(|| repo.revision.clone());
        check_name(&commit)?;
        let path = folder.join("snapshots").join(commit).join(file);
        if path.is_file() {
            return Ok(path);
        }
        looked.push(path);
        Err(HubError::NotFound { repo: Box::new(repo.clone()), file: file.to_owned(), looked })
    }
}

/// The commit of a branch.
fn read_commit(branch: &Path) -> Option<String> {
    const COMMIT_BYTES_MAX: u64 = 256;
    let mut text = String::new();
    open_input(branch).ok()?.take(COMMIT_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned())
}

/// `Ok` if a path stays inside its folder when `name` is joined to it.
fn check_name(name: &str) -> Result<(), HubError> {
    let leads_down = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    if name.is_empty() || !leads_down {
        return Err(HubError::Name { name: name.to_owned() });
    }
    Ok(())
}

/// An error of finding a file in the local cache of the hub.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// The cache does not have the file.
    #[error("{repo} has no {file} in the local cache; looked at {}", join(looked))]
    NotFound {
        /// The repository that was looked for.
        repo: Box<HubRepo>,
        /// Path of the file inside the repository.
        file: String,
        /// The paths that were tried.
        looked: Vec<PathBuf>,
    },
    /// The name of a repository, a revision or a file is empty or leads out of its folder.
    #[error("{name:?} cannot be the name of a repository, a revision or a file")]
    Name {
        /// The name that was given.
        name: String,
    },
    /// The environment has no variable with a folder for the cache.
    #[error("there is no cache: none of HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME and HOME is set")]
    NoFolder,
}

fn join(paths: &[PathBuf]) -> String {
    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    paths.join(", ")
}
