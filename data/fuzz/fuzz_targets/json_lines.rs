//! Lines of a stranger as texts, prompts and chats: refused with a line, or rows; the stream gives
//! those of the file.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use lowtide_data::{Bytes, ChatTemplate, JsonLines, LineFormat, PackedRows, StreamLoader};
use lowtide_data_fuzz::{file, read_some};

fuzz_target!(|bytes: &[u8]| {
    let path = file("lines.jsonl", bytes);
    let chat = LineFormat::chat(ChatTemplate::chat_ml());
    for format in [LineFormat::text(), LineFormat::completion(), chat] {
        let tokenizer = Bytes::new().with_special("<|im_start|>").with_special("<|im_end|>");
        let lines = JsonLines::new(format, Arc::new(tokenizer)).expect("with special tokens");
        if let Ok(documents) = lines.read(&[&path]) {
            read_some(PackedRows::new(documents, 4).expect("a context"));
        }
        let stream = lines.stream(&[&path], 4).expect("a context");
        let loader = StreamLoader::new(stream, Default::default()).expect("in range");
        for batch in loader.take(4) {
            if batch.is_err() {
                break;
            }
        }
    }
});
