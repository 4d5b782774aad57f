//! Untrusted bytes as the index of files of weights: refused without a change of the model, or the
//! weights are read.

#![no_main]

use std::fs;

use libfuzzer_sys::fuzz_target;
use lowtide_pretrained::load;
use lowtide_pretrained_fuzz::{bits, folder, model, reads_all};

const SEEDS: &[&[u8]] =
    &[include_bytes!("../../tests/fixtures/llama/model.safetensors.index.json")];

/// 1 if the weights are read, else 0.
fn check(bytes: &[u8]) -> usize {
    let folder = folder("llama");
    let mut model = model(&folder);
    let before = bits(&mut model);
    fs::write(folder.join("model.safetensors.index.json"), bytes).expect("room");
    let loaded = load(&mut model, &folder);
    assert!(loaded.is_ok() || bits(&mut model) == before);
    usize::from(loaded.is_ok())
}

fuzz_target!(init: reads_all(check, SEEDS), |bytes: &[u8]| {
    check(bytes);
});
