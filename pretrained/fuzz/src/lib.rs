//! Parts that the targets share: untrusted bytes as a file of a model's folder, and a small model.
//!
//! `RUSTC_BOOTSTRAP=1 cargo fuzz run TARGET CORPUS ../tests/fixtures/llama` begins with valid
//! files, the fixtures of the tests. Other targets need other folders of fixtures.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use lowtide_nn::Parameters;
use lowtide_pretrained::{Config, Decoder};
use lowtide_tensor::{CpuOptions, DType, Device, RandomKey};

/// A folder of this process with a copy of a fixture, in memory if there is such a file system.
///
/// # Panics
/// If there is no room.
pub fn folder(case: &str) -> PathBuf {
    let shared_memory = Path::new("/dev/shm");
    let parent =
        if shared_memory.is_dir() { shared_memory.to_owned() } else { std::env::temp_dir() };
    let folder = parent.join(format!("lowtide-fuzz-{}", std::process::id())).join(case);
    fs::create_dir_all(&folder).expect("room");
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(case);
    for file in fs::read_dir(from).expect("the fixture") {
        let path = file.expect("an entry").path();
        fs::copy(&path, folder.join(path.file_name().expect("a file"))).expect("room");
    }
    folder
}

/// A CPU device of one thread.
///
/// # Panics
/// If there is no address space.
pub fn device() -> Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    let options =
        CpuOptions { budget_bytes: Some(64 << 20), threads: Some(1), ..CpuOptions::default() };
    DEVICE.get_or_init(|| Device::cpu(options).expect("the address space")).clone()
}

/// A model of the configuration in `folder`, with random weights.
///
/// # Panics
/// If the configuration is not valid.
pub fn model(folder: &Path) -> Decoder {
    let config = Config::open(folder).expect("a good one");
    config.decoder(&device(), RandomKey::new(0), DType::F32).expect("memory")
}

/// The bits of all tensors.
///
/// # Panics
/// Never: the values of a CPU model can be read.
pub fn bits(model: &mut Decoder) -> Vec<Vec<u8>> {
    let mut bits = Vec::new();
    model.visit_tensors(&mut |_, value| bits.push(value.to_bytes().expect("of the processor")));
    bits
}

/// Checks that a target reads each of its `seeds`, which are valid files.
///
/// # Panics
/// If a seed is not read, because the target would then find no faults.
pub fn reads_all(target: fn(&[u8]) -> usize, seeds: &[&[u8]]) {
    seeds.iter().for_each(|seed| assert!(target(seed) > 0, "a seed is not read"));
}
