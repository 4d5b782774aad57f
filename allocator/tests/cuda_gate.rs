//! Answers of the gate on a machine without a driver. These tests have a binary of their own: the
//! system's loader would find the pretend driver once another test has loaded it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lowtide_allocator::cuda::{CudaError, Driver, Libraries};

/// An empty folder for one test.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("gate-{name}"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn open_in(folder: &Path) -> Result<Driver, CudaError> {
    Driver::open(&Libraries::in_folders([folder.to_path_buf()]))
}

#[test]
fn missing_driver_is_an_error_that_says_what_was_looked_for_and_where() {
    let folder = folder("empty");
    let error = match open_in(&folder) {
        Ok(driver) => {
            let path = driver.path().display();
            println!("skipped: missing driver: this machine has one, {path}");
            return;
        }
        Err(error) => error,
    };
    let CudaError::NoLibrary { names, folders, loader_message } = &error else { panic!("{error}") };
    assert!(names.iter().all(|name| name.contains("cuda")), "{names:?}");
    assert_eq!(folders, std::slice::from_ref(&folder));
    assert!(!loader_message.is_empty());
    let message = error.to_string();
    for part in [names[0], folder.to_str().unwrap(), Libraries::VARIABLE] {
        assert!(message.contains(part), "{message}");
    }
    assert!(!error.is_out_of_memory() && !error.is_fault());
}

#[test]
fn file_that_is_no_library_is_named() {
    let folder = folder("text");
    for name in ["libcuda.so.1", "nvcuda.dll"] {
        fs::write(folder.join(name), "no library").unwrap();
    }
    let error = open_in(&folder).unwrap_err();
    let CudaError::BadLibrary { path, loader_message } = &error else { panic!("{error}") };
    assert_eq!(path.parent(), Some(folder.as_path()));
    assert!(!loader_message.is_empty());
}

#[cfg(target_os = "linux")]
#[test]
fn library_without_the_functions_is_told_by_the_first_that_it_lacks() {
    let folder = folder("other");
    let source = folder.join("other.c");
    fs::write(&source, "int cuInit(unsigned flags) { return (int)flags; }\n").unwrap();
    let library = folder.join("libcuda.so.1");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source);
    if !compiler.status().is_ok_and(|status| status.success()) {
        println!("skipped: library without the functions: `cc` does not build a library here");
        return;
    }
    let error = open_in(&folder).unwrap_err();
    assert_eq!(error, CudaError::MissingSymbol { path: library, symbol: "cuDriverGetVersion" });
}
