//! Untrusted lines as texts, prompts and chats: refused with a line, or read as rows. A stream
//! gives equal rows.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use lowtide_data::{
    Batch, Bytes, ChatTemplate, DataError, JsonLines, LineFormat, Loader, LoaderOptions,
    PackedRows, Sequential, StreamLoader, StreamOptions,
};
use lowtide_data_fuzz::{file, reads_all};

/// The tokens of the first rows.
fn tokens(batches: impl Iterator<Item = Result<Batch, DataError>>) -> Result<Vec<i64>, DataError> {
    let mut tokens = Vec::new();
    for batch in batches.take(64) {
        let batch = batch?;
        let field = batch.field("tokens").expect("rows of tokens");
        tokens.extend_from_slice(field.values::<i64>().expect("i64"));
    }
    Ok(tokens)
}

const SEEDS: &[&[u8]] = &[
    include_bytes!("../seeds/json_lines/text.jsonl"),
    include_bytes!("../seeds/json_lines/chat.jsonl"),
];

/// Number of tokens that are read.
fn check(bytes: &[u8]) -> usize {
    let path = file("lines.jsonl", bytes);
    let chat = LineFormat::chat(ChatTemplate::chat_ml());
    let mut count = 0;
    for format in [LineFormat::text(), LineFormat::completion(), chat] {
        let tokenizer = Bytes::new().with_special("<|im_start|>").with_special("<|im_end|>");
        let lines = JsonLines::new(format, Arc::new(tokenizer)).expect("with special tokens");
        let options = StreamOptions { batch_size: 1, ..Default::default() };
        let stream = lines.stream(&[&path], 4).expect("a context");
        let streamed = tokens(StreamLoader::new(stream, options).expect("in range"));
        let Ok(rows) = lines.read(&[&path]).and_then(|documents| PackedRows::new(documents, 4))
        else {
            continue;
        };
        let options = LoaderOptions { batch_size: 1, workers: 0, ..Default::default() };
        let loader = Loader::with_sampler(rows, Sequential, options).expect("in range");
        let streamed = streamed.expect("as the file");
        assert_eq!(streamed, tokens(loader.epoch(0)).expect("in memory"));
        count += streamed.len();
    }
    count
}

fuzz_target!(init: reads_all(check, SEEDS), |bytes: &[u8]| {
    check(bytes);
});
