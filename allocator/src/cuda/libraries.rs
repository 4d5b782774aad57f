//! Finding and loading the libraries of CUDA.

use std::env;
use std::error::Error as _;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use libloading::Library;
use thiserror::Error;

/// Folders that are searched before the system's loader is asked.
///
/// The driver's library comes with the driver, and the loader usually finds it. Folders are for
/// machines on which the loader does not, and for libraries that `pip` installs (`nvidia-*`
/// wheels).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Libraries {
    folders: Vec<PathBuf>,
}

impl Libraries {
    /// The variable that names folders, separated as in `PATH`.
    pub const VARIABLE: &'static str = "LOWTIDE_CUDA_LIBS";

    /// The folders of [`VARIABLE`](Self::VARIABLE), then the folders of the `nvidia-*` wheels.
    /// Wheels are searched in the active Python environment (`VIRTUAL_ENV`, else `CONDA_PREFIX`).
    /// Without an active environment they are searched where `pip` installs for a user
    /// (`PYTHONUSERBASE`, else `~/.local`) and for all users (`/usr/local`). If the variable is not
    /// set, the packages of the interpreter `python3` come before these: the interpreter prints
    /// their folders.
    pub fn from_environment() -> Libraries {
        let named = env::var_os(Libraries::VARIABLE);
        let packages = if named.is_some() { Vec::new() } else { packages_of("python3") };
        let prefixes = python_prefixes(|name| env::var_os(name));
        Libraries::from_values(named, &packages, &prefixes)
    }

    /// These folders and no others.
    pub fn in_folders(folders: impl IntoIterator<Item = PathBuf>) -> Libraries {
        Libraries { folders: folders.into_iter().collect() }
    }

    /// The folders, in the order of the search.
    pub fn folders(&self) -> &[PathBuf] {
        &self.folders
    }

    /// The first file with one of these names. The order of folders comes before the order of
    /// names.
    pub fn find(&self, names: &[&str]) -> Option<PathBuf> {
        let paths =
            self.folders.iter().flat_map(|folder| names.iter().map(|name| folder.join(name)));
        paths.into_iter().find(|path| path.exists())
    }

    /// The first library with one of these names, and its path. A library in one of the folders is
    /// loaded by its path, without a look elsewhere; else the system's loader searches by name.
    ///
    /// # Errors
    /// `NotFound`, `Unusable`.
    pub fn load(&self, names: &[&'static str]) -> Result<(Library, PathBuf), MissingLibrary> {
        if let Some(path) = self.find(names) {
            return match Libraries::open(&path) {
                Ok(library) => Ok((library, path)),
                Err(loader_message) => Err(MissingLibrary::Unusable { path, loader_message }),
            };
        }
        let mut loader_message = String::new();
        for name in names {
            match Libraries::open(Path::new(name)) {
                Ok(library) => return Ok((library, PathBuf::from(name))),
                Err(message) => loader_message = message,
            }
        }
        let folders = self.folders.clone();
        Err(MissingLibrary::NotFound { names: names.to_vec(), folders, loader_message })
    }

    /// Loads a library of CUDA.
    ///
    /// # Errors
    /// The loader's message.
    pub fn open(path: &Path) -> Result<Library, String> {
        // SAFETY: loading runs the library's own initialisation. The user installed or named the
        // library of CUDA, and such libraries are made to be loaded so.
        let opened = unsafe { Library::new(path) };
        // The message of the loader is the cause of an error that names only the loader.
        opened
            .map_err(|error| error.source().map_or_else(|| error.to_string(), ToString::to_string))
    }

    /// The files of a folder, in the order of their names; empty if there is no such folder.
    pub fn entries(folder: &Path) -> Vec<PathBuf> {
        entries(folder)
    }

    fn from_values(
        named: Option<OsString>,
        packages: &[PathBuf],
        prefixes: &[PathBuf],
    ) -> Libraries {
        let named = named.map(|value| env::split_paths(&value).collect::<Vec<_>>());
        let named = named.unwrap_or_default().into_iter().filter(|path| path.is_absolute());
        let prefixed = prefixes.iter().flat_map(|prefix| package_folders(prefix));
        let packages = packages.iter().cloned().chain(prefixed);
        let mut folders: Vec<PathBuf> = Vec::new();
        for folder in named.chain(packages.flat_map(|folder| wheel_folders(&folder))) {
            if !folders.contains(&folder) {
                folders.push(folder);
            }
        }
        Libraries { folders }
    }
}

/// Reasons why an optional library is not used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MissingLibrary {
    /// The library is not on this machine, or only in a folder that is not searched.
    #[error(
        "looked for {} in {} and by the system's loader ({loader_message})",
        names.join(", "),
        searched(folders)
    )]
    NotFound {
        /// File names that were looked for.
        names: Vec<&'static str>,
        /// Folders that were searched before the loader was asked.
        folders: Vec<PathBuf>,
        /// Message of the system's loader about the last name.
        loader_message: String,
    },
    /// A file has the library's name and cannot be loaded.
    #[error("{path:?} cannot be loaded: {loader_message}")]
    Unusable {
        /// The file of the library.
        path: PathBuf,
        /// Message of the system's loader.
        loader_message: String,
    },
    /// The file is too old, or is another library.
    #[error("{path:?} has no function {symbol}")]
    MissingSymbol {
        /// Path of the library's file.
        path: PathBuf,
        /// Name of the function that the library lacks.
        symbol: &'static str,
    },
}

/// Folders for a message.
pub(super) fn searched(folders: &[PathBuf]) -> String {
    if folders.is_empty() {
        return "no folder".to_owned();
    }
    let folders: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
    folders.join(", ")
}

/// Prefixes of the folders of Python's packages, by the variables of the environment.
fn python_prefixes(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let set = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(active) = set("VIRTUAL_ENV").or_else(|| set("CONDA_PREFIX")) {
        return vec![active];
    }
    let of_user = set("PYTHONUSERBASE").or_else(|| Some(set("HOME")?.join(".local")));
    of_user.into_iter().chain([PathBuf::from("/usr/local")]).collect()
}

/// A program that makes an interpreter print the folders of its packages, one folder a line.
const ASK_PACKAGES: &str =
    "import site; print(*site.getsitepackages(), site.getusersitepackages(), sep='\\n')";

/// The folders of an interpreter's packages; empty if the interpreter does not start.
fn packages_of(interpreter: &str) -> Vec<PathBuf> {
    let mut command = Command::new(interpreter);
    command.args(["-c", ASK_PACKAGES]).stdin(Stdio::null()).stderr(Stdio::null());
    let Ok(output) = command.output() else { return Vec::new() };
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(PathBuf::from).filter(|path| path.is_absolute()).collect()
}

/// `lib/python3.x/site-packages` of a prefix. Debian calls its own `dist-packages`.
fn package_folders(prefix: &Path) -> Vec<PathBuf> {
    let pythons = entries(&prefix.join("lib")).into_iter().filter(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python"))
    });
    let names = ["site-packages", "dist-packages"];
    pythons.flat_map(|python| names.map(|name| python.join(name))).collect()
}

/// `nvidia/*/lib` below a folder of packages, sorted: `cu13` with CUDA 13, one folder for each
/// library with CUDA 12.
fn wheel_folders(packages: &Path) -> Vec<PathBuf> {
    let wheels = entries(&packages.join("nvidia")).into_iter();
    wheels.map(|package| package.join("lib")).filter(|folder| folder.is_dir()).collect()
}

/// Paths of a folder's entries, sorted; empty if the folder cannot be read.
pub(super) fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_folders_come_first_and_wheels_are_found() {
        let prefix = env::temp_dir().join(format!("lowtide-libraries-{}", std::process::id()));
        let packages = prefix.join("lib/python3.12/site-packages/nvidia");
        for folder in ["cu13/lib", "cudnn/lib", "no-libraries"] {
            fs::create_dir_all(packages.join(folder)).unwrap();
        }
        fs::write(packages.join("cu13/lib/libnvrtc.so.13"), "").unwrap();
        let [one, two] = ["one", "two"].map(|name| prefix.join(name));
        let named = env::join_paths([&one, Path::new("relative"), &two]).unwrap();
        let own = prefix.join("lib/python3.12/site-packages");
        let libraries = Libraries::from_values(Some(named), &[own], std::slice::from_ref(&prefix));
        let wheels = ["cu13/lib", "cudnn/lib"].map(|folder| packages.join(folder));
        assert_eq!(libraries.folders(), [one, two, wheels[0].clone(), wheels[1].clone()]);
        let found = libraries.find(&["libnvrtc.so", "libnvrtc.so.13"]);
        assert_eq!(found, Some(wheels[0].join("libnvrtc.so.13")));
        assert_eq!(libraries.find(&["libcuda.so.1"]), None);
        assert_eq!(Libraries::from_values(None, &[], &[]), Libraries::default());
        fs::remove_dir_all(prefix).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn interpreter_says_where_its_packages_are() {
        use std::os::unix::fs::PermissionsExt;

        let folder = env::temp_dir().join(format!("lowtide-interpreter-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let python = folder.join("python3");
        fs::write(&python, "#!/bin/sh\ntest \"$1\" = -c && printf '/opt/a\\nnot one\\n/b\\n'\n")
            .unwrap();
        fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
        let found = packages_of(&python.to_string_lossy());
        assert_eq!(found, [Path::new("/opt/a"), Path::new("/b")]);
        assert!(packages_of("/no/such/interpreter").is_empty());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn wheels_are_those_of_the_active_environment_or_of_user_and_system() {
        let of = |set: &[(&str, &str)]| {
            let value = |name: &str| set.iter().find(|(other, _)| *other == name);
            python_prefixes(|name| value(name).map(|(_, value)| OsString::from(value)))
        };
        let home = ("HOME", "/h");
        assert_eq!(of(&[("VIRTUAL_ENV", "/v"), ("CONDA_PREFIX", "/c"), home]), [Path::new("/v")]);
        assert_eq!(of(&[("VIRTUAL_ENV", ""), ("CONDA_PREFIX", "/c"), home]), [Path::new("/c")]);
        assert_eq!(of(&[home]), [Path::new("/h/.local"), Path::new("/usr/local")]);
        let base = ("PYTHONUSERBASE", "/u");
        assert_eq!(of(&[base, home]), [Path::new("/u"), Path::new("/usr/local")]);
        assert_eq!(of(&[]), [Path::new("/usr/local")]);
    }
}
