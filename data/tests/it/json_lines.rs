//! JSON lines: each format, and every kind of malformed line.

use crate::Folder;
use lowtide_data::{
    Bytes, Characters, ChatTemplate, DataError, Dataset, Documents, FilePlace, JsonLines,
    LineError, LineFormat, Loader, LoaderOptions, PreferenceLines, Preferences, ReadProgress,
    Sequential, Tokenizer, TokenizerError,
};
use proptest::prelude::*;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

const END: u32 = 256;

/// A tokenizer of bytes with the tokens of ChatML.
fn bytes() -> Arc<Bytes> {
    let end = Bytes::new().with_special("<|endoftext|>");
    Arc::new(end.with_special("<|im_start|>").with_special("<|im_end|>"))
}

fn reader(format: LineFormat) -> JsonLines {
    JsonLines::new(format, bytes()).unwrap()
}

/// The text of a document, and the text of its learned tokens.
fn texts(documents: &Documents, index: usize) -> (String, String) {
    let tokens: Vec<u32> = documents.tokens(index).collect();
    let learned = tokens.iter().zip(documents.learned(index));
    let learned: Vec<u32> =
        learned.filter(|(_, learned)| *learned).map(|(&token, _)| token).collect();
    (bytes().decode(&tokens).unwrap(), bytes().decode(&learned).unwrap())
}

fn read(format: LineFormat, text: &str) -> Result<Documents, DataError> {
    let folder = Folder::new("json");
    let path = folder.path("data.jsonl");
    fs::write(&path, text).unwrap();
    reader(format).read(&[path])
}

/// The line and the cause of a malformed file.
fn cause(error: &DataError) -> (u64, &LineError) {
    match error {
        DataError::Malformed { place: FilePlace::Line(line), source, .. } => {
            (*line, source.downcast_ref().expect("a cause of this kind"))
        }
        other => panic!("{other}"),
    }
}

#[test]
fn texts_are_learned_whole_with_the_end_of_the_text() {
    let lines = [
        "\u{feff}{\"text\": \"one\"}\r\n\n  ",
        r#"{"id": [1, {"text": 2}], "text": "zwei\n<|endoftext|>"}"#,
        r#"{"text": ""}"#,
        r#"{"text":"d"}"#,
    ];
    let text = &lines.join("\n");
    let documents = read(LineFormat::text(), text).unwrap();
    assert_eq!(documents.len(), 3, "a text without tokens is no document");
    let first: Vec<u32> = documents.tokens(0).collect();
    assert_eq!(first, [u32::from(b'o'), u32::from(b'n'), u32::from(b'e'), END]);
    // The name of a special token in a document is ordinary text.
    let second: Vec<u32> = documents.tokens(1).collect();
    assert_eq!(second.iter().filter(|&&token| token == END).count(), 1);
    assert_eq!(texts(&documents, 1).0, "zwei\n<|endoftext|><|endoftext|>");
    assert!(documents.learned(1).all(|learned| learned));
}

#[test]
fn completions_are_learned_and_prompts_only_read() {
    let text = r#"{"completion": "b", "prompt": "a"}"#;
    let documents = read(LineFormat::completion(), text).unwrap();
    let expected = ("ab<|endoftext|>".to_owned(), "b<|endoftext|>".to_owned());
    assert_eq!(texts(&documents, 0), expected);
    let named = LineFormat::Completion { prompt: "q".to_owned(), completion: "a".to_owned() };
    let documents = read(named, r#"{"q": "1", "a": "2"}"#).unwrap();
    assert_eq!(texts(&documents, 0).1, "2<|endoftext|>");
}

#[test]
fn chats_are_framed_and_the_assistant_is_learned() {
    let text = r#"{"messages": [{"role": "user", "content": "hi <|im_end|>"},
        {"role": "assistant", "content": "ho", "name": "x"}]}"#
        .replace('\n', "");
    let documents = read(LineFormat::chat(ChatTemplate::chat_ml()), &text).unwrap();
    let whole = "<|im_start|>user\nhi <|im_end|><|im_end|>\n\
                 <|im_start|>assistant\nho<|im_end|>\n<|endoftext|>";
    assert_eq!(texts(&documents, 0), (whole.to_owned(), "ho<|im_end|>".to_owned()));
    let frame = |token| documents.tokens(0).filter(|&it| it == token).count();
    assert_eq!((frame(257), frame(258)), (2, 2), "a turn cannot end itself");
}

/// Chats as rendered by the models' own templates: the `chat_template` of
/// Llama-3.1-8B-Instruct without its date, and of gemma-2-2b-it.
#[test]
fn formats_are_chosen_by_the_vocabulary_and_rendered_as_its_own_template_does() {
    let with =
        |names: &[&str]| names.iter().fold(Bytes::new(), |bytes, name| bytes.with_special(*name));
    let llama =
        with(&["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]);
    let gemma = with(&["<bos>", "<start_of_turn>", "<end_of_turn>"]);
    let turns = [("user", "hi <bos>"), ("assistant", "ho"), ("user", "so?")];
    let cases = [
        (
            &llama,
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi <bos><|eot_id|>\
             <|start_header_id|>assistant<|end_header_id|>\n\nho<|eot_id|>\
             <|start_header_id|>user<|end_header_id|>\n\nso?<|eot_id|>\
             <|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        (
            &gemma,
            "<bos><start_of_turn>user\nhi <bos><end_of_turn>\n\
             <start_of_turn>model\nho<end_of_turn>\n\
             <start_of_turn>user\nso?<end_of_turn>\n<start_of_turn>model\n",
        ),
    ];
    for (tokenizer, expected) in cases {
        let template = ChatTemplate::of(tokenizer);
        let tokens = template.prompt(tokenizer, &turns).unwrap().unwrap();
        assert_eq!(tokenizer.decode(&tokens).unwrap(), expected);
        let special = tokens.iter().filter(|&&token| token == END).count();
        assert_eq!(special, 1, "a turn has no special tokens of its own");
    }
    assert_eq!(ChatTemplate::of(&*bytes()), ChatTemplate::chat_ml());
    let strangers = ChatTemplate::gemma().prompt(&gemma, &[("system", "be brief")]);
    assert_eq!(strangers.unwrap(), None, "the format has no such role");
}

#[test]
fn frame_is_what_the_reader_is_told() {
    let folder = Folder::new("frame");
    let path = folder.path("data.jsonl");
    fs::write(&path, r#"{"prompt": "a", "completion": ""}"#).unwrap();
    let documents = reader(LineFormat::completion()).with_frame(Some(7), Some(8)).read(&[path]);
    let documents = documents.unwrap();
    assert_eq!(documents.tokens(0).collect::<Vec<_>>(), [7, 97, 8]);
    assert!(documents.learned(0).all(|learned| !learned), "nothing is there to be learned");
}

#[test]
fn folders_are_read_in_the_order_of_their_names_with_progress() {
    let folder = Folder::new("folder");
    for name in ["b.jsonl", "a.jsonl", "c.txt"] {
        fs::write(folder.path(name), format!("{{\"text\": \"{name}\"}}\n")).unwrap();
    }
    let mut seen = Vec::new();
    let documents =
        reader(LineFormat::text()).read_with(&[folder.root()], |at| seen.push(at)).unwrap();
    assert_eq!(documents.len(), 2);
    assert_eq!(texts(&documents, 0).0, "a.jsonl<|endoftext|>");
    let end = ReadProgress { bytes: 40, bytes_total: 40, documents: 2, tokens: 16 };
    assert_eq!(seen, [end]);
    fs::create_dir(folder.path("empty")).unwrap();
    let error = reader(LineFormat::text()).read(&[folder.path("empty")]).unwrap_err();
    assert!(error.to_string().contains("contains no file called *.jsonl"), "{error}");
}

#[test]
fn lines_that_are_not_of_the_format_are_errors_with_their_number() {
    type Check = fn(&LineError) -> bool;
    let json: Check = |error| matches!(error, LineError::Json { .. });
    let missing: Check =
        |error| matches!(error, LineError::MissingField { field } if field == "text");
    let good = "{\"text\": \"a\"}\n\n{\"text\": \"b\"}\n";
    let nested = "[".repeat(1 << 20);
    let inside = format!("{{\"text\": {nested}");
    let cases: [(&str, Check); 10] = [
        ("{\"text\": \"a\"", json),
        ("{\"text\": \"a\"} x", json),
        ("{\"text\": 7}", json),
        ("{\"text\": null}", json),
        ("[\"text\"]", json),
        ("{\"text\": \"\\ud800\"}", json),
        (&nested, json),
        (&inside, json),
        ("{}", missing),
        ("{\"Text\": \"a\"}", missing),
    ];
    for (line, check) in cases {
        let error = read(LineFormat::text(), &format!("{good}{line}\n{good}")).unwrap_err();
        let (number, cause) = cause(&error);
        assert!(number == 4 && check(cause), "{error}");
        assert!(error.to_string().contains("data.jsonl, line 4: "), "{error}");
        assert!(!error.to_string().contains("at line 1"), "{error}");
    }
    let chat = LineFormat::chat(ChatTemplate::chat_ml());
    for turns in [nested.clone(), format!("[{{\"role\": {nested}")] {
        let error = read(chat.clone(), &format!("{{\"messages\": {turns}")).unwrap_err();
        assert!(json(cause(&error).1), "{error}");
    }
    // An ignored member may be nested as deeply as the length of the line allows.
    let deep = format!("{{\"x\": {nested}{}, \"text\": \"a\"}}", "]".repeat(1 << 20));
    assert_eq!(read(LineFormat::text(), &deep).unwrap().len(), 1);
}

#[test]
fn bytes_that_are_no_utf_8_are_an_error_of_their_line() {
    let folder = Folder::new("utf8");
    let path = folder.path("data.jsonl");
    fs::write(&path, b"{\"text\": \"a\"}\n{\"text\": \"\xff\"}\n").unwrap();
    let error = reader(LineFormat::text()).read(&[path]).unwrap_err();
    assert!(matches!(cause(&error), (2, LineError::Json { .. })), "{error}");
}

#[test]
fn line_beyond_the_limit_is_an_error_that_reads_no_more_than_the_limit() {
    let folder = Folder::new("long");
    let path = folder.path("data.jsonl");
    let mut file = fs::File::create(&path).unwrap();
    file.write_all(b"{\"text\": \"1234\"}\n{\"text\": \"").unwrap();
    // 100 MB of zeros, which take no space on the disk.
    file.set_len(100 << 20).unwrap();
    let reader = reader(LineFormat::text()).with_line_bytes_max(16);
    let error = reader.read(&[&path]).unwrap_err();
    assert!(matches!(cause(&error), (2, LineError::TooLong { bytes_max: 16 })), "{error}");
    // A line of exactly the limit is read, with a newline and without.
    for text in ["{\"text\": \"1234\"}", "{\"text\": \"1234\"}\n"] {
        fs::write(&path, text).unwrap();
        assert_eq!(reader.read(&[&path]).unwrap().len(), 1);
    }
    // One byte more is too much, even if a byte order mark is removed from the line.
    for text in ["{\"text\": \"12345\"}", "\u{feff}{\"text\": \"12\"}     \n{\"text\": \"3\"}"] {
        fs::write(&path, text).unwrap();
        let error = reader.read(&[&path]).unwrap_err();
        assert!(matches!(cause(&error), (1, LineError::TooLong { bytes_max: 16 })), "{error}");
    }
}

#[test]
fn roles_and_characters_that_are_not_known_are_errors() {
    let chat = LineFormat::chat(ChatTemplate::chat_ml());
    let line = r#"{"messages": [{"role": "judge", "content": ""}]}"#;
    let error = read(chat.clone(), line).unwrap_err();
    assert!(matches!(cause(&error), (1, LineError::UnknownRole { role }) if role == "judge"));
    assert!(read(chat.clone(), r#"{"messages": [{"role": "user"}]}"#).is_err());
    let letters = Arc::new(Characters::new("abc"));
    let folder = Folder::new("unknown");
    let path = folder.path("data.jsonl");
    fs::write(&path, "{\"text\": \"ab\"}\n{\"text\": \"abX\"}").unwrap();
    let error = JsonLines::new(LineFormat::text(), letters.clone()).unwrap().read(&[path]);
    let error = error.unwrap_err();
    let expected = TokenizerError::UnknownCharacter { character: 'X', byte: 2 };
    let (2, LineError::Tokenizer(found)) = cause(&error) else { panic!("{error}") };
    assert_eq!(found.to_string(), expected.to_string());
    let error = JsonLines::new(chat, letters).unwrap_err();
    assert!(matches!(error, DataError::Tokenizer { .. }), "{error}");
    let absent = reader(LineFormat::text()).read(&[Path::new("absent.jsonl")]).unwrap_err();
    assert!(matches!(absent, DataError::File { .. }), "{absent}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..Default::default() })]

    #[test]
    fn any_bytes_are_documents_or_an_error(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        pieces in prop::collection::vec(
            prop::sample::select(vec![
                "{", "}", "[", "]", "\"text\"", ":", ",", "\"", "\\u", "\n", "1e9", "null", " ",
                "\"role\"", "\"content\"", "\"messages\"", "\"prompt\"", "\"completion\"",
            ]),
            0..40,
        ),
    ) {
        let folder = Folder::new("any");
        let path = folder.path("any.jsonl");
        for content in [bytes, pieces.concat().into_bytes()] {
            fs::write(&path, &content).unwrap();
            for format in [
                LineFormat::text(),
                LineFormat::completion(),
                LineFormat::chat(ChatTemplate::chat_ml()),
            ] {
                let read = reader(format).with_line_bytes_max(64).read(&[&path]);
                if let Ok(documents) = read {
                    prop_assert!(documents.len() <= content.len());
                }
            }
        }
    }

    #[test]
    fn every_text_comes_back_from_its_line(texts in prop::collection::vec("\\PC{1,20}", 1..8)) {
        let line = |text: &String| serde_json::json!({ "text": text }).to_string();
        let content: Vec<String> = texts.iter().map(line).collect();
        let documents = read(LineFormat::text(), &content.join("\n")).unwrap();
        for (index, text) in texts.iter().enumerate() {
            let tokens: Vec<u32> = documents.tokens(index).collect();
            prop_assert_eq!(&bytes().decode(&tokens[..tokens.len() - 1]).unwrap(), text);
        }
    }
}

fn pairs(text: &str) -> Result<Preferences, DataError> {
    let folder = Folder::new("pairs");
    let path = folder.path("data.jsonl");
    fs::write(&path, text).unwrap();
    PreferenceLines::new(bytes()).read(&[path])
}

#[test]
fn preferences_are_two_documents_of_one_prompt_and_their_answers_are_learned() {
    let lines = [
        r#"{"prompt": "a", "chosen": "bc", "rejected": "d", "score": [1]}"#,
        "",
        r#"{"rejected": "", "prompt": "p", "chosen": "q"}"#,
    ];
    let pairs = pairs(&lines.join("\n")).unwrap();
    assert_eq!(pairs.len(), 2);
    let [chosen, rejected] = pairs.documents();
    let ends = |text: &str| format!("{text}<|endoftext|>");
    assert_eq!(texts(chosen, 0), (ends("abc"), ends("bc")));
    assert_eq!(texts(rejected, 0), (ends("ad"), ends("d")));
    assert_eq!(texts(rejected, 1), (ends("p"), ends("")), "an empty answer is its end");

    let rows = pairs.rows(4, 7).unwrap();
    let names: Vec<&str> = rows.fields().iter().map(|field| &*field.name).collect();
    assert_eq!(names, ["chosen", "chosen.labels", "rejected", "rejected.labels"]);
    let options = LoaderOptions { batch_size: 2, ..Default::default() };
    let loader = Loader::with_sampler(rows, Sequential, options).unwrap();
    let batch = loader.epoch(0).next().unwrap().unwrap();
    let values = |name| batch.field(name).unwrap().values::<i64>().unwrap().to_vec();
    let [a, b, c, d, end] = [97, 98, 99, 100, i64::from(END)];
    assert_eq!(values("chosen")[..5], [a, b, c, end, 7]);
    assert_eq!(values("chosen.labels")[..4], [b, c, end, -100]);
    assert_eq!(values("rejected")[..5], [a, d, end, 7, 7]);
    assert_eq!(values("rejected.labels")[..4], [d, end, -100, -100]);
}

#[test]
fn pairs_without_a_label_in_their_rows_are_left_out_and_others_named() {
    let long = r#"{"prompt": "abcdef", "chosen": "g", "rejected": "h"}"#;
    let short = r#"{"q": "a", "good": "b", "bad": "c"}"#;
    let both = pairs(long).unwrap();
    let rows = both.rows(4, 0).unwrap();
    assert_eq!((rows.len(), rows.left_out()), (0, 1));
    assert_eq!(both.rows(7, 0).unwrap().len(), 1);
    assert!(matches!(both.rows(0, 0), Err(DataError::InvalidOption { option: "context", .. })));

    let folder = Folder::new("named pairs");
    let path = folder.path("data.jsonl");
    fs::write(&path, short).unwrap();
    let named = PreferenceLines::new(bytes()).with_names(["q", "good", "bad"]);
    let framed = named.with_frame(Some(1), None).read(&[path]).unwrap();
    let [chosen, _] = framed.documents();
    assert_eq!(chosen.tokens(0).collect::<Vec<_>>(), [1, 97, 98]);
    let ten = [r#"{"prompt": "a", "chosen": "b", "rejected": "c"}"#; 20].join("\n");
    let (train, test) = pairs(&ten).unwrap().split().unwrap();
    assert_eq!((train.len(), test.len()), (18, 2));
}

#[test]
fn preferences_of_chats_are_the_chats_of_their_turns() {
    let turn = |role: &str, content: &str| serde_json::json!({ "role": role, "content": content });
    let (question, good, bad) = (turn("user", "a"), turn("assistant", "b"), turn("assistant", "c"));
    let apart = serde_json::json!({ "prompt": [question], "chosen": [good], "rejected": [bad] });
    let whole = serde_json::json!({ "chosen": [question, good], "rejected": [question, bad] });
    let folder = Folder::new("chat pairs");
    let path = folder.path("data.jsonl");
    let pairs_of = |text: &str| {
        fs::write(&path, text).unwrap();
        PreferenceLines::chat(&ChatTemplate::llama3(), bytes()).unwrap().read(&[&path])
    };
    let pairs = pairs_of(&format!("{apart}\n{whole}")).unwrap();
    let chats = |answer: &serde_json::Value| {
        let line = serde_json::json!({ "messages": [question, answer] });
        read(LineFormat::chat(ChatTemplate::llama3()), &line.to_string()).unwrap()
    };
    for (documents, answer) in pairs.documents().into_iter().zip([&good, &bad]) {
        for index in 0..2 {
            assert_eq!(texts(documents, index), texts(&chats(answer), 0));
        }
    }
    let error = pairs_of(&serde_json::json!({ "chosen": [question] }).to_string()).unwrap_err();
    let (line, error) = cause(&error);
    assert!(line == 1 && matches!(error, LineError::MissingField { field } if field == "rejected"));
    let stranger = serde_json::json!({ "chosen": [turn("judge", "a")], "rejected": [good] });
    let error = pairs_of(&stranger.to_string()).unwrap_err();
    assert!(matches!(cause(&error), (1, LineError::UnknownRole { role }) if role == "judge"));
}

#[test]
fn preferences_that_lack_something_are_named_by_their_lines() {
    let good = r#"{"prompt": "a", "chosen": "b", "rejected": "c"}"#;
    let error = pairs(&format!("{good}\n{{\"prompt\": \"a\", \"chosen\": \"b\"}}")).unwrap_err();
    let (line, error) = cause(&error);
    assert!(line == 2 && matches!(error, LineError::MissingField { field } if field == "rejected"));
    let error = pairs(r#"{"prompt": "a", "chosen": ["b"], "rejected": "c"}"#).unwrap_err();
    assert!(matches!(cause(&error), (1, LineError::Json { .. })));
}
