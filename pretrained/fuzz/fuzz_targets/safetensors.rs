//! Untrusted bytes as a file of weights: refused without a change of the model, or tensors that lie
//! in the file, each name once. The model may lack a tensor of that name.

#![no_main]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use lowtide_nn::parse_safetensors;
use lowtide_pretrained::load;
use lowtide_pretrained_fuzz::{bits, folder, model, reads_all};

const SEEDS: &[&[u8]] = &[
    include_bytes!("../../tests/fixtures/gpt2/model.safetensors"),
    include_bytes!("../../tests/fixtures/quantized-nf4/model.safetensors"),
    include_bytes!("../../tests/fixtures/quantized-int8/model.safetensors"),
];

/// Number of tensors in the file.
fn check(bytes: &[u8]) -> usize {
    let parsed = parse_safetensors(bytes, Path::new("file"));
    let mut names = BTreeSet::new();
    let range = bytes.as_ptr_range();
    for (name, view) in parsed.iter().flat_map(|file| file.iter()) {
        assert!(names.insert(name.to_owned()), "{name} twice");
        let data = view.data().as_ptr_range();
        assert!(range.start <= data.start && data.end <= range.end, "{name} outside");
    }
    for case in ["gpt2", "quantized-nf4", "quantized-int8"] {
        let folder = folder(case);
        let mut model = model(&folder);
        let before = bits(&mut model);
        fs::write(folder.join("model.safetensors"), bytes).expect("room");
        let loaded = load(&mut model, &folder);
        assert!(loaded.is_ok() || bits(&mut model) == before);
        let config = lowtide_pretrained::Config::open(&folder).expect("a good one");
        let mapped = config.load(&lowtide_pretrained_fuzz::device(), lowtide_tensor::DType::BF16);
        assert!(parsed.is_ok() || (loaded.is_err() && mapped.is_err()));
    }
    names.len()
}

fuzz_target!(init: reads_all(check, SEEDS), |bytes: &[u8]| {
    check(bytes);
});
