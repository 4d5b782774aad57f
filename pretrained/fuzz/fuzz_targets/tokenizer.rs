//! Untrusted bytes as a tokenizer: refused, or tokens below the length of the vocabulary. A GGUF
//! file with the tokenizer is complete or absent.

#![no_main]

use std::fs;

use libfuzzer_sys::fuzz_target;
use lowtide_data::{Tokenizer, TokenizerJson};
use lowtide_pretrained::{Config, GgufOptions, save_gguf};
use lowtide_pretrained_fuzz::{folder, model, reads_all};

const SEEDS: &[&[u8]] = &[
    include_bytes!("../../tests/fixtures/gguf/bytes/tokenizer.json"),
    include_bytes!("../../tests/fixtures/gguf/characters/tokenizer.json"),
];

/// Number of tokens of a text.
fn check(bytes: &[u8]) -> usize {
    let folder = folder("llama");
    fs::write(folder.join("tokenizer.json"), bytes).expect("room");
    let (config, path) = (Config::open(&folder).expect("a good one"), folder.join("m.gguf"));
    drop(fs::remove_file(&path));
    let saved = save_gguf(&mut model(&folder), &config, &path, &GgufOptions::default());
    assert!(saved.is_ok() == path.exists());
    let Ok(tokenizer) = TokenizerJson::from_bytes(bytes) else { return 0 };
    let Ok(tokens) = tokenizer.encode("Licensed, to a\u{e9}  <s>\n") else { return 0 };
    assert!(tokens.iter().all(|token| (*token as usize) < tokenizer.vocabulary_len()));
    drop(tokenizer.decode(&tokens));
    tokens.len()
}

fuzz_target!(init: reads_all(check, SEEDS), |bytes: &[u8]| {
    check(bytes);
});
