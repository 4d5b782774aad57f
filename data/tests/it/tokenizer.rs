//! Tokenizers: decoding inverts encoding, special tokens are only in markup, and the libraries give
//! the tokens of the Python packages.

use crate::Folder;
use lowtide_data::{
    Bytes, Characters, DataError, FilePlace, SpecialRole, Text, Tiktoken, Tokenizer,
    TokenizerError, TokenizerJson,
};
use proptest::prelude::*;
use std::fs;

const _: fn(&dyn Tokenizer) -> usize = |tokenizer| tokenizer.vocabulary_len();

/// A byte-pair encoding of two merges. The Python package `tokenizers` 0.23.3 gives the same tokens
/// for this file.
const SMALL: &str = r#"{
    "version": "1.0",
    "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
    "padding": null,
    "added_tokens": [
        {"id": 7, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
         "normalized": false, "special": true},
        {"id": 8, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
         "normalized": false, "special": true}
    ],
    "normalizer": null,
    "pre_tokenizer": null,
    "post_processor": {"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [7], "tokens": ["<s>"]}}},
    "decoder": {"type": "Fuse"},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
        "vocab": {"a": 0, "b": 1, "<": 2, "s": 3, ">": 4, "ab": 5, "aba": 10},
        "merges": ["a b", "ab a"]}
}"#;

fn small() -> TokenizerJson {
    TokenizerJson::from_bytes(SMALL.as_bytes()).unwrap()
}

/// Checks the laws of every tokenizer on a text that it can encode.
fn check(tokenizer: &dyn Tokenizer, text: &str) {
    let tokens = tokenizer.encode(text).unwrap();
    assert_eq!(tokenizer.decode(&tokens).unwrap(), text);
    assert!(tokens.iter().all(|&token| (token as usize) < tokenizer.vocabulary_len()));
    for special in tokenizer.special_tokens() {
        assert!(!tokens.contains(&special.token), "{text:?} has the token {}", special.name);
        assert_eq!(tokenizer.special_named(&special.name), Some(special.token));
        assert_eq!(tokenizer.decode(&[special.token]).unwrap(), special.name);
        assert_eq!(tokenizer.encode_markup(&special.name).unwrap(), [special.token]);
    }
    let unknown = tokenizer.vocabulary_len() as u32;
    for token in [unknown, u32::MAX] {
        let error = tokenizer.decode(&[token]).unwrap_err();
        assert!(matches!(error, TokenizerError::UnknownToken { token: of } if of == token));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..Default::default() })]

    #[test]
    fn every_text_comes_back(text in "\\PC{0,40}|(<\\|endoftext\\|>| ){0,3}") {
        check(&Bytes::new().with_special("<|endoftext|>").with_special("<pad>"), &text);
        check(&Tiktoken::gpt2(), &text);
        let seen = format!("{text}abc");
        check(&Characters::new(&seen).with_special("<|endoftext|>"), &text);
    }

    #[test]
    fn texts_of_a_small_vocabulary_come_back(text in "[ab<s>]{0,12}") {
        check(&small(), &text);
    }

    #[test]
    fn any_bytes_are_a_tokenizer_or_an_error(
        bytes in prop::collection::vec(any::<u8>(), 0..64),
        cut in any::<prop::sample::Index>(),
        with in any::<u8>(),
    ) {
        prop_assert!(TokenizerJson::from_bytes(&bytes).is_err());
        let mut damaged = SMALL.as_bytes().to_vec();
        let at = cut.index(damaged.len());
        damaged[at] = with;
        if let Ok(tokenizer) = TokenizerJson::from_bytes(&damaged) {
            let _ = tokenizer.encode("aba<s>b");
        }
        prop_assert!(TokenizerJson::from_bytes(&SMALL.as_bytes()[..at]).is_err());
    }
}

#[test]
fn encodings_of_openai_have_their_published_numbers() {
    let cases = [
        (Tiktoken::gpt2(), 50_257, 50_256, "Hello world", [15_496, 995]),
        (Tiktoken::cl100k(), 100_277, 100_257, "hello world", [15_339, 1_917]),
        (Tiktoken::o200k(), 200_019, 199_999, "hello world", [24_912, 2_375]),
    ];
    for (tokenizer, vocabulary_len, end, text, tokens) in cases {
        assert_eq!(tokenizer.vocabulary_len(), vocabulary_len);
        assert_eq!(tokenizer.special(SpecialRole::EndOfText), Some(end));
        assert_eq!(tokenizer.encode(text).unwrap(), tokens);
        let markup = format!("<|endoftext|>{text}<|endoftext|>");
        let framed = [&[end], &tokens[..], &[end]].concat();
        assert_eq!(tokenizer.encode_markup(&markup).unwrap(), framed);
    }
}

/// A text with a contraction, digits, newlines, accents, scripts, a no-break space, the name of a
/// special token, and identifiers.
const MIXED: &str = "It's 12345 o'clock,\r\n\t naïve façade — 東京へ 行く 🦀🦀!  \
    Здравствуй\u{a0}мир\n\n  <|endoftext|>x86_64 = 0xFF;";

#[test]
fn encodings_of_openai_are_those_of_their_python_package() {
    // Tokens of `encode_ordinary` of tiktoken 0.14.0.
    let gpt2: &[u32] = &[
        1026, 338, 17031, 2231, 267, 6, 15750, 11, 201, 198, 197, 41492, 24685, 16175, 671, 851,
        10545, 251, 109, 12859, 105, 2515, 116, 5525, 94, 234, 31917, 12520, 99, 222, 8582, 99,
        222, 0, 220, 12466, 245, 43666, 21169, 16142, 38857, 21727, 20375, 38857, 35072, 140, 117,
        1849, 43108, 18849, 21169, 628, 220, 1279, 91, 437, 1659, 5239, 91, 29, 87, 4521, 62, 2414,
        796, 657, 87, 5777, 26,
    ];
    let cl100k: &[u32] = &[
        2181, 596, 220, 4513, 1774, 297, 63510, 1909, 197, 95980, 588, 95972, 1037, 2001, 61696,
        109, 47653, 2243, 116, 78507, 234, 47884, 11410, 99, 222, 9468, 99, 222, 0, 220, 53677,
        7094, 28086, 20812, 83680, 4194, 64880, 2233, 271, 220, 83739, 8862, 728, 428, 91, 29, 87,
        4218, 62, 1227, 284, 220, 15, 9448, 26,
    ];
    let o200k: &[u32] = &[
        15834, 220, 7633, 2548, 293, 141801, 3467, 197, 153475, 737, 114665, 2733, 185244, 40026,
        123305, 10459, 9552, 99, 222, 4103, 99, 222, 0, 220, 8835, 65233, 2820, 36012, 5310, 500,
        2479, 279, 220, 464, 91, 419, 1440, 919, 91, 29, 87, 7189, 62, 2220, 314, 220, 15, 87,
        3254, 26,
    ];
    let cases =
        [(Tiktoken::gpt2(), gpt2), (Tiktoken::cl100k(), cl100k), (Tiktoken::o200k(), o200k)];
    for (tokenizer, tokens) in cases {
        assert_eq!(tokenizer.encode(MIXED).unwrap(), tokens, "{tokenizer:?}");
        check(&tokenizer, MIXED);
    }
}

#[test]
fn json_tokenizer_merges_and_frames_nothing_by_itself() {
    let tokenizer = small();
    assert_eq!(tokenizer.encode("aba").unwrap(), [10]);
    assert_eq!(tokenizer.encode("abab").unwrap(), [5, 5]);
    assert_eq!(tokenizer.encode("ab<s>").unwrap(), [5, 2, 3, 4]);
    assert_eq!(tokenizer.encode_markup("<s>ab</s>").unwrap(), [7, 5, 8]);
    let roles = [SpecialRole::BeginOfText, SpecialRole::EndOfText, SpecialRole::Padding];
    assert_eq!(roles.map(|role| tokenizer.special(role)), [Some(7), Some(8), None]);
    // The vocabulary has a gap: there is no token 9.
    assert_eq!(tokenizer.vocabulary_len(), 11);
    assert!(matches!(tokenizer.decode(&[9]), Err(TokenizerError::UnknownToken { token: 9 })));
}

#[test]
fn text_and_its_tokenizer_have_the_same_tokens() {
    let text = Text::new("one two", 2).unwrap();
    let tokens = text.tokenizer().encode("two one").unwrap();
    let tokens: Vec<i64> = tokens.into_iter().map(i64::from).collect();
    assert_eq!(text.encode("two one"), Some(tokens));
    let error = text.tokenizer().encode("no möwe").unwrap_err();
    let TokenizerError::UnknownCharacter { character, byte } = error else { panic!("{error}") };
    assert_eq!((character, byte), ('m', 3));
}

#[test]
fn tokens_of_a_text_that_fails_are_taken_back() {
    let mut tokens = vec![7];
    assert!(Characters::new("ab").encode_into("abc", &mut tokens).is_err());
    assert_eq!(tokens, [7]);
}

#[test]
fn long_runs_are_encoded_or_an_error() {
    for text in [" ".repeat(1 << 20), "\n".repeat(1 << 20), "a".repeat(1 << 20)] {
        for tokenizer in [Tiktoken::gpt2(), Tiktoken::cl100k()] {
            if let Ok(tokens) = tokenizer.encode(&text) {
                assert_eq!(tokenizer.decode(&tokens).unwrap(), text);
            }
        }
    }
}

#[test]
fn garbage_for_a_tokenizer_is_an_error_with_its_place() {
    let folder = Folder::new("tokenizer");
    let path = folder.path("tokenizer.json");
    let nested = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
    let cases: [(&[u8], u64); 5] =
        [(b"", 1), (b"{\n\n  oops", 3), (b"\xff\xfe\x00", 1), (&nested, 1), (b"{\n}", 2)];
    for (bytes, line) in cases {
        fs::write(&path, bytes).unwrap();
        let error = TokenizerJson::open(&path).unwrap_err();
        let DataError::Malformed { place, .. } = &error else { panic!("{error}") };
        assert_eq!(*place, FilePlace::Line(line), "{error}");
        assert!(error.to_string().contains("tokenizer.json, line"), "{error}");
    }
    let absent = TokenizerJson::open(&folder.path("absent")).unwrap_err();
    assert!(matches!(absent, DataError::File { .. }), "{absent}");
}

/// The small tokenizer with one change.
fn changed(change: impl FnOnce(&mut serde_json::Value)) -> String {
    let mut json = serde_json::from_str(SMALL).unwrap();
    change(&mut json);
    json.to_string()
}

#[test]
fn tokenizers_that_lie_are_errors_that_name_file_and_mistake() {
    let folder = Folder::new("hostile");
    let path = folder.path("tokenizer.json");
    let with = |pointer: &str, value: serde_json::Value| {
        changed(|json| *json.pointer_mut(pointer).expect("an entry") = value)
    };
    let nested = |depth: usize, kind: &str, list: &str| {
        let start = format!("{{\"type\":\"Sequence\",\"{list}\":[").repeat(depth);
        let parts = format!("{start}{{\"type\":\"{kind}\"}}{}", "]}".repeat(depth));
        let place = match list {
            "normalizers" => "\"normalizer\": null",
            _ => "\"pre_tokenizer\": null",
        };
        let (name, _) = place.split_once(':').unwrap();
        SMALL.replace(place, &format!("{name}: {parts}"))
    };
    let table =
        |base64: &str| serde_json::json!({ "type": "Precompiled", "precompiled_charsmap": base64 });
    let sequence = serde_json::json!({ "type": "Sequence", "normalizers": [table("/P///wAA")] });
    let gap = changed(|json| {
        // The library counts tokens to find the number of an added token.
        json["model"]["vocab"]["aba"] = 7.into();
    });
    let json = |value| serde_json::json!(value);
    let cut = changed(|json| {
        json["model"]["continuing_subword_prefix"] = "#".into();
        json["model"]["vocab"]["\u{e9}"] = 6.into();
        json["model"]["merges"] = serde_json::json!([["a", "\u{e9}"]]);
    });
    let cases: Vec<(&str, String, &[&str])> = vec![
        ("a number twice", with("/model/vocab/b", json(0)), &["\"a\", \"b\"", "token 0"]),
        ("a number of an added token", gap, &["token 7"]),
        ("a number of 33 bits", with("/model/vocab/b", serde_json::json!(1_u64 << 32)), &[]),
        ("a negative number", with("/model/vocab/b", json(-1)), &[]),
        ("no number", with("/model/vocab/b", serde_json::json!("1")), &[]),
        ("an added number that is huge", with("/added_tokens/0/id", json(-7)), &[]),
        ("a merge of no token", with("/model/merges", serde_json::json!(["a q"])), &["q"]),
        ("a merge to no token", with("/model/merges", serde_json::json!(["a a"])), &["aa"]),
        ("no pair", with("/model/merges", serde_json::json!(["a b s"])), &[]),
        ("half a pair", with("/model/merges", serde_json::json!([["a"]])), &[]),
        ("half a character", cut, &["continuing_subword_prefix", "#"]),
        ("a table that is not there", with("/normalizer", table("/P///wAA")), &["4294967292"]),
        ("a table in a sequence", with("/normalizer", sequence), &["4294967292"]),
        ("an empty table", with("/normalizer", table("AAAAAAAA")), &["precompiled_charsmap"]),
        ("no base64", with("/normalizer", table("********")), &["precompiled_charsmap"]),
        ("no table", with("/normalizer", table("")), &["precompiled_charsmap"]),
        ("depth", nested(200, "NFC", "normalizers"), &["recursion limit"]),
        ("more depth", nested(100_000, "NFC", "normalizers"), &["recursion limit"]),
        ("depth of steps", nested(200, "Digits", "pretokenizers"), &["recursion limit"]),
        ("no decoder", with("/decoder", serde_json::json!([1])), &[]),
        ("a decoder that ends", SMALL[..SMALL.find("Fuse").unwrap()].to_owned(), &["EOF"]),
        ("no model", with("/model", serde_json::Value::Null), &[]),
        ("another kind", with("/model/type", serde_json::json!("Other")), &[]),
    ];
    for (what, text, words) in cases {
        fs::write(&path, text).unwrap();
        let error = TokenizerJson::open(&path).expect_err(what);
        assert!(matches!(error, DataError::Malformed { .. }), "{what}: {error}");
        let text = error.to_string();
        assert!(text.contains("tokenizer.json"), "{what}: {text}");
        assert!(!text.contains("panicked"), "{what}: {text}");
        for word in words {
            assert!(text.contains(word), "{what}: {text}");
        }
        assert!(text.len() < 600, "{what}: {} bytes", text.len());
    }
    // The parser's maximum depth does not overflow the stack.
    fs::write(&path, nested(60, "NFC", "normalizers")).unwrap();
    check(&TokenizerJson::open(&path).unwrap(), "ab");
    // The token is the largest number of u32.
    fs::write(&path, with("/model/vocab/aba", serde_json::json!(u32::MAX))).unwrap();
    let tokenizer = TokenizerJson::open(&path).unwrap();
    assert_eq!(tokenizer.vocabulary_len(), 1 << 32);
    assert_eq!(tokenizer.encode("aba").unwrap(), [u32::MAX]);
}

/// A pipe is refused, because opening it would wait for a writer.
#[cfg(unix)]
#[test]
fn a_pipe_in_place_of_a_tokenizer_is_an_error() {
    let folder = Folder::new("pipe");
    let path = folder.path("tokenizer.json");
    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    for path in [path.as_path(), path.parent().unwrap()] {
        let error = TokenizerJson::open(path).unwrap_err();
        assert!(matches!(error, DataError::File { .. }), "{error}");
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }
}

/// Every prefix of a file, and the file with each byte changed in a few ways, is a tokenizer or an
/// error. Each such tokenizer encodes and decodes, or returns an error.
#[test]
fn no_cut_and_no_changed_byte_of_a_tokenizer_panics() {
    let good = SMALL.as_bytes();
    for len in 0..good.len() {
        let error = TokenizerJson::from_bytes(&good[..len]).unwrap_err();
        assert!(error.is::<serde_json::Error>(), "{len} bytes: {error}");
    }
    let (mut read, mut refused) = (0, 0);
    for at in 0..good.len() {
        let mixed = (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
        for byte in [good[at] ^ (mixed as u8).max(1), b'9', b'"', b'{'] {
            let mut changed = good.to_vec();
            changed[at] = byte;
            let Ok(tokenizer) = TokenizerJson::from_bytes(&changed) else {
                refused += 1;
                continue;
            };
            read += 1;
            if let Ok(tokens) = tokenizer.encode("<aba s>") {
                assert!(tokens.iter().all(|token| (*token as usize) < tokenizer.vocabulary_len()));
                let _ = tokenizer.decode(&tokens);
            }
        }
    }
    println!("{read} tokenizers, {refused} refused");
    assert!(read > 100 && refused > 1000);
}
