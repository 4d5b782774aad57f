//! Untrusted text as a configuration: refused by name, or a configuration whose model a simulated
//! device makes or has no memory for.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lowtide_pretrained::{
    BertShape, DecoderShape, ModelConfig, ResNetShape, Shape, T5Shape, ViTShape,
};
use lowtide_pretrained_fuzz::reads_all;
use lowtide_tensor::{DType, Device, RandomKey, SimSpec};

const SEEDS: &[&[u8]] = &[
    include_bytes!("../../tests/fixtures/llama-3.1/config.json"),
    include_bytes!("../../tests/fixtures/gemma3/config.json"),
    include_bytes!("../../tests/fixtures/gpt2/config.json"),
    include_bytes!("../../tests/fixtures/neox/config.json"),
    include_bytes!("../../tests/fixtures/quantized-nf4/config.json"),
    include_bytes!("../../tests/fixtures/bert-classes/config.json"),
    include_bytes!("../../tests/fixtures/t5/config.json"),
    include_bytes!("../../tests/fixtures/vit/config.json"),
    include_bytes!("../../tests/fixtures/resnet-basic/config.json"),
];

fn check_of<S: Shape>(text: &str) -> usize {
    let Ok(config) = ModelConfig::<S>::from_text("place", text) else { return 0 };
    assert!(config.parameter_count() <= 1 << 46);
    let device = Device::sim(SimSpec::like_this_machine(1 << 40)).expect("it takes nothing");
    drop(config.model(&device, RandomKey::new(0), DType::BF16));
    1
}

/// Number of kinds of models that the text configures.
fn check(bytes: &[u8]) -> usize {
    let Ok(text) = std::str::from_utf8(bytes) else { return 0 };
    check_of::<DecoderShape>(text)
        + check_of::<BertShape>(text)
        + check_of::<T5Shape>(text)
        + check_of::<ViTShape>(text)
        + check_of::<ResNetShape>(text)
}

fuzz_target!(init: reads_all(check, SEEDS), |bytes: &[u8]| {
    check(bytes);
});
