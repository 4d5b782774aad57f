//! Rows of documents: context, learned tokens, and the starts of documents.

use crate::{Folder, options};
use lowtide_data::{
    Bytes, Characters, Collate, Dataset, Document, DocumentRows, Documents, IGNORED_LABEL, Loader,
    PackedRows, RowFit, Sequential, TokenFile, TokenFormat, TokenTooLarge, Tokenizer,
};
use proptest::prelude::*;
use std::fs;

const NOT: i64 = IGNORED_LABEL;

/// A document of `tokens`. The first `context` tokens are context.
fn document(tokens: &[u32], context: usize) -> Document {
    let mut document = Document::new();
    document.push_context(&tokens[..context]).unwrap();
    document.push_learned(&tokens[context..]).unwrap();
    document
}

/// All samples of one field in one batch, concatenated.
fn values(dataset: impl Dataset + 'static, field: &str) -> Vec<i64> {
    let len = dataset.len();
    let loader = Loader::with_sampler(dataset, Sequential, options(len, 0, 0)).unwrap();
    let batch = loader.epoch(0).next().unwrap().unwrap();
    batch.field(field).unwrap().values::<i64>().unwrap().to_vec()
}

#[test]
fn packed_rows_name_labels_documents_and_positions() {
    let documents: Documents =
        [document(&[1, 2, 3, 4], 2), document(&[5, 6], 0), document(&[7, 8, 9, 10, 11], 1)]
            .into_iter()
            .collect();
    let rows = PackedRows::new(documents, 5).unwrap();
    assert_eq!((rows.len(), rows.fields().len()), (2, 1));
    let tokens = [1, 2, 3, 4, 5, 6, 6, 7, 8, 9, 10, 11];
    assert_eq!(values(rows.clone(), "tokens"), tokens);
    let labels = values(rows.clone().with_labels(), "labels");
    assert_eq!(labels, [NOT, 3, 4, 5, 6, NOT, 8, 9, 10, 11]);
    let rows = rows.with_boundaries().with_labels();
    assert_eq!(rows.fields().len(), 4);
    // The 5 begins a document, so it is not predicted from the 4.
    assert_eq!(values(rows.clone(), "labels"), [NOT, 3, 4, NOT, 6, NOT, 8, 9, 10, 11]);
    assert_eq!(values(rows.clone(), "documents"), [0, 0, 0, 0, 1, 0, 1, 1, 1, 1]);
    assert_eq!(values(rows, "positions"), [0, 1, 2, 3, 0, 0, 0, 1, 2, 3]);
}

#[test]
fn document_rows_are_filled_or_ragged_and_have_something_to_learn() {
    let documents: Documents = [
        document(&[1, 2, 3], 1),
        document(&[4, 5, 6, 7, 8, 9], 3),
        // The row of this document has only its prompt.
        document(&[1, 2, 3, 4, 5, 6], 5),
        document(&[9], 0),
    ]
    .into_iter()
    .collect();
    let rows = |fit| DocumentRows::new(documents.clone(), 4, fit).unwrap();
    let padded = rows(RowFit::Padded(99));
    assert_eq!((padded.len(), padded.left_out(), padded.truncated()), (2, 2, 1));
    assert_eq!(values(padded.clone(), "tokens"), [1, 2, 3, 99, 99, 4, 5, 6, 7, 8]);
    let labels = [2, 3, NOT, NOT, NOT, NOT, 7, 8];
    assert_eq!(values(padded.clone(), "labels"), labels);
    assert_eq!(values(padded, "length"), [3, 5]);
    let ragged = rows(RowFit::Ragged(Collate::Padded));
    assert_eq!(values(ragged.clone(), "tokens"), [1, 2, 3, 0, 0, 4, 5, 6, 7, 8]);
    assert_eq!(values(ragged.clone(), "tokens.length"), [3, 5]);
    assert_eq!(values(ragged, "labels"), labels);
    let packed = rows(RowFit::Ragged(Collate::Packed));
    assert_eq!(values(packed.clone(), "tokens"), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(values(packed, "labels"), [2, 3, NOT, NOT, NOT, 7, 8, NOT]);
}

#[test]
fn documents_keep_what_was_pushed_and_their_parts_are_disjoint() {
    let documents: Documents =
        (0..20).map(|n| document(&[n, n + 100, n + 200], (n % 4) as usize)).collect();
    let (train, test) = documents.split().unwrap();
    assert_eq!((documents.len(), train.len(), test.len()), (20, 18, 2));
    assert_eq!((documents.token_count(), train.token_count()), (60, 54));
    assert_eq!(test.tokens(1).collect::<Vec<_>>(), [19, 119, 219]);
    assert_eq!(test.learned(0).collect::<Vec<_>>(), [false, false, true]);
    let rows = PackedRows::new(test, 5).unwrap();
    assert_eq!(values(rows, "tokens"), [18, 118, 218, 19, 119, 219]);
    assert!(train.split().unwrap().1.split().is_err());
}

#[test]
fn short_documents_and_bad_options_are_errors() {
    let documents: Documents = [document(&[1, 2, 3], 0), Document::new()].into_iter().collect();
    assert_eq!(documents.len(), 1);
    assert!(PackedRows::new(documents.clone(), 2).is_ok());
    for context in [0, 3, usize::MAX] {
        assert!(PackedRows::new(documents.clone(), context).is_err());
    }
    for context in [0, usize::MAX] {
        assert!(DocumentRows::new(documents.clone(), context, RowFit::Padded(0)).is_err());
    }
    let mut document = Document::new();
    document.push_learned(&[(1 << 30) - 1]).unwrap();
    assert_eq!(document.push_context(&[1, 1 << 30]), Err(TokenTooLarge { token: 1 << 30 }));
    assert_eq!(document.tokens().collect::<Vec<_>>(), [(1 << 30) - 1]);
}

#[test]
fn text_files_are_documents_and_become_files_of_tokens() {
    let folder = Folder::new("texts");
    for (name, text) in [("b.txt", "two"), ("a.txt", "one"), ("c.md", "three"), ("d.txt", "")] {
        fs::write(folder.path(name), text).unwrap();
    }
    let tokenizer = Bytes::new().with_special("<|endoftext|>");
    let documents = Documents::read_texts(&[folder.root()], &tokenizer).unwrap();
    let path = folder.path("tokens.bin");
    assert_eq!(documents.write_tokens(&path, TokenFormat::LlmcU16).unwrap(), 9);
    let file = TokenFile::open(&[path], 4).unwrap();
    let tokens = values(file, "tokens");
    assert_eq!(tokens, values(PackedRows::new(documents, 4).unwrap(), "tokens"));
    let tokens: Vec<u32> = tokens[..5].iter().map(|&token| token as u32).collect();
    assert_eq!(tokenizer.decode(&tokens).unwrap(), "one<|endoftext|>t");
    fs::write(folder.path("e.txt"), b"ab\xff").unwrap();
    let error = Documents::read_texts(&[folder.root()], &tokenizer).unwrap_err();
    assert!(error.to_string().contains("e.txt, byte 2: invalid utf-8"), "{error}");
    let letters = Characters::new("one");
    let error = Documents::read_texts(&[folder.path("b.txt")], &letters).unwrap_err();
    assert!(error.to_string().contains("b.txt, byte 0: the vocabulary has no 't'"), "{error}");
    assert!(Documents::read_texts(&[folder.path("absent")], &letters).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..Default::default() })]

    /// The expected label of a token is the next token, if that token is learned.
    #[test]
    fn every_learned_token_but_the_first_is_a_label_once(
        lengths in prop::collection::vec((1_usize..7, 0_usize..7), 1..12),
        context in 1_usize..9,
    ) {
        let mut next = 0;
        let mut all = Vec::new();
        let documents: Documents = lengths
            .into_iter()
            .map(|(len, read)| {
                let tokens: Vec<u32> = (next..next + len as u32).collect();
                next += len as u32;
                all.extend((0..len).map(|at| (tokens[at], at >= read.min(len), at == 0)));
                document(&tokens, read.min(len))
            })
            .collect();
        prop_assume!(all.len() > context);
        let used = (all.len() - 1) / context * context;
        let rows = PackedRows::new(documents, context).unwrap();
        let labels = values(rows.clone().with_labels(), "labels");
        let expected = |cuts: bool| -> Vec<i64> {
            let label = |&(token, learned, first): &(u32, bool, bool)| {
                if learned && !(cuts && first) { i64::from(token) } else { NOT }
            };
            all[1..=used].iter().map(label).collect()
        };
        prop_assert_eq!(labels, expected(false));
        prop_assert_eq!(values(rows.with_boundaries(), "labels"), expected(true));
    }
}
