//! What the targets share: bytes of a stranger as a file, and samples read from it.
//!
//! `RUSTC_BOOTSTRAP=1 cargo fuzz run TARGET CORPUS seeds/TARGET` begins with good files of a few
//! samples: written by NumPy 2, Pillow and pyarrow with numbers that count up and images of one
//! colour, or by hand.

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

/// A file of this name with these bytes.
pub fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = FOLDER.join(name);
    fs::write(&path, bytes).expect("room");
    path
}

/// Reads the first samples, each of which is there or an error, in the order of the dataset; how
/// many are there.
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

/// That a target reads something: of each of its `seeds`, which are good files.
///
/// # Panics
/// When it does not, and would find nothing.
pub fn reads_all(target: fn(&[u8]) -> usize, seeds: &[&[u8]]) {
    seeds.iter().for_each(|seed| assert!(target(seed) > 0, "a seed is not read"));
}
