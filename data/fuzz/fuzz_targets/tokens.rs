//! Bytes of a stranger as a file of tokens, nanoGPT's or llm.c's: refused, or rows.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lowtide_data::TokenFile;
use lowtide_data_fuzz::{file, read_some};

fuzz_target!(|bytes: &[u8]| {
    let path = file("tokens.bin", bytes);
    if let Ok(rows) = TokenFile::open(&[&path], 3) {
        assert!(rows.token_count() <= bytes.len());
        read_some(rows.clone());
        if let Ok((train, test)) = rows.split() {
            read_some(train);
            read_some(test);
        }
        read_some(rows.in_pairs());
    }
});
