//! Untrusted bytes as a token file of nanoGPT or llm.c: refused, or rows.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lowtide_data::TokenFile;
use lowtide_data_fuzz::{file, read_some, reads_all};

const SEEDS: &[&[u8]] =
    &[include_bytes!("../seeds/tokens/words.bin"), include_bytes!("../seeds/tokens/llmc.bin")];

/// Number of samples that are read.
fn check(bytes: &[u8]) -> usize {
    let path = file("tokens.bin", bytes);
    let Ok(rows) = TokenFile::open(&[&path], 3) else { return 0 };
    assert!(rows.token_count() <= bytes.len());
    let mut count = read_some(rows.clone());
    if let Ok((train, test)) = rows.split() {
        count += read_some(train) + read_some(test);
    }
    count + read_some(rows.in_pairs())
}

fuzz_target!(init: reads_all(check, SEEDS), |bytes: &[u8]| {
    check(bytes);
});
