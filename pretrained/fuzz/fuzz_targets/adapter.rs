//! Untrusted bytes as the configuration of adapters, and as their weights: refused without a change
//! of the model, or read as adapters.

#![no_main]

use std::fs;

use libfuzzer_sys::fuzz_target;
use lowtide_nn::{load_adapters, remove_adapters};
use lowtide_pretrained_fuzz::{bits, folder, model, reads_all};

const SEEDS: &[&[u8]] = &[
    include_bytes!("../../tests/fixtures/lora-llama/adapter_config.json"),
    include_bytes!("../../tests/fixtures/lora-llama/adapter_model.safetensors"),
];

/// Number of the two files that the bytes can be read as.
fn check(bytes: &[u8]) -> usize {
    let mut model = model(&folder("llama"));
    let before = bits(&mut model);
    let mut read = 0;
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        let folder = folder("lora-llama");
        fs::write(folder.join(name), bytes).expect("room");
        if load_adapters(&mut model, &folder).is_ok() {
            remove_adapters(&mut model);
            read += 1;
        }
        assert!(bits(&mut model) == before);
    }
    read
}

fuzz_target!(init: reads_all(check, SEEDS), |bytes: &[u8]| {
    check(bytes);
});
