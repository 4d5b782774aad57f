//! The pretend driver, for every test that runs on a device.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use lowtide_allocator::cuda::pretend::{Library, LibraryError, Watch};

/// Its folder; `None`, said aloud, where it cannot be built.
pub(crate) fn folder() -> Option<PathBuf> {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match FOLDER.get_or_init(build) {
        Ok(folder) => Some(folder.clone()),
        Err(reason) => {
            let test = std::thread::current().name().unwrap_or("a CUDA test").to_owned();
            println!("skipped: {test}: {reason}");
            None
        }
    }
}

/// Compiles the driver and the kernels of tensors.
fn build() -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (sources, kernels) = (root.join("xtask/pretend-gpu"), root.join("tensor/src/cuda/kernels"));
    if !sources.exists() {
        return Err("the pretend driver is no part of this package".to_owned());
    }
    // The tests of tensors watch the accesses.
    let library = Library { sources: &sources, kernels: &[&kernels], watch: Watch::Barriers };
    match library.build(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("pretend-gpu")) {
        Ok(folder) => Ok(folder),
        Err(error @ (LibraryError::OtherMachine | LibraryError::NoCompiler { .. })) => {
            Err(error.to_string())
        }
        Err(error) => panic!("{error}"),
    }
}
