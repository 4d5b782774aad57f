//! Shared parts of the targets: untrusted bytes as a file, and reading of samples.
//!
//! `RUSTC_BOOTSTRAP=1 cargo fuzz run TARGET CORPUS seeds/TARGET` begins with valid files of a few
//! samples. The files were written by NumPy 2, Pillow and pyarrow, with ascending numbers and
//! images of one colour, or by hand.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use lowtide_data::{Dataset, Loader, LoaderOptions, Sequential};

/// A folder of this process, in memory if there is such a file system.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let shared_memory = Path::new("/dev/shm");
    let parent =
        if shared_memory.is_dir() { shared_memory.to_owned() } else { std::env::temp_dir() };
    let folder = parent.join(format!("lowtide-fuzz-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("room");
    folder
});

/// The folder in which [`file`] writes.
pub fn folder() -> &'static Path {
    &FOLDER
}

/// Writes a file with this name and these bytes.
pub fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = FOLDER.join(name);
    fs::write(&path, bytes).expect("room");
    path
}

/// Reads the first samples of a dataset, in order. A sample may be an error. Returns the number of
/// good samples.
pub fn read_some(dataset: impl Dataset + 'static) -> usize {
    if dataset.is_empty() {
        return 0;
    }
    let options = LoaderOptions { batch_size: 2, workers: 0, ..Default::default() };
    let loader = Loader::with_sampler(dataset, Sequential, options).expect("samples of a size");
    let mut count = 0;
    for batch in loader.epoch(0).take(8) {
        let Ok(batch) = batch else { break };
        assert!((1..=2).contains(&batch.len()));
        count += batch.len();
    }
    count
}

/// Checks that a target reads samples from each of its `seeds`, which are valid files.
///
/// # Panics
/// If a seed gives no samples, because the target would then find no faults.
pub fn reads_all(target: fn(&[u8]) -> usize, seeds: &[&[u8]]) {
    seeds.iter().for_each(|seed| assert!(target(seed) > 0, "a seed is not read"));
}
