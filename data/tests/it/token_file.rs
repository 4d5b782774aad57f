//! Token files: written tokens are read again, row by row, and damaged files are refused.

use crate::{Folder, options};
use lowtide_data::{
    DataError, Dataset, FilePlace, Loader, Sequential, Text, TokenFile, TokenFileError,
    TokenFormat, TokenWriter, write_tokens,
};
use proptest::prelude::*;
use std::fs;

const FORMATS: [TokenFormat; 4] =
    [TokenFormat::RawU16, TokenFormat::RawU32, TokenFormat::LlmcU16, TokenFormat::LlmcU32];

/// Every sample of one field, in order.
fn rows(dataset: impl Dataset + 'static, field: &str) -> Vec<Vec<i64>> {
    let loader = Loader::with_sampler(dataset, Sequential, options(1, 0, 0)).unwrap();
    let row = |batch: Result<lowtide_data::Batch, DataError>| {
        batch.unwrap().field(field).unwrap().values::<i64>().unwrap().to_vec()
    };
    loader.epoch(0).map(row).collect()
}

/// The place and the cause of a malformed file.
fn cause(error: &DataError) -> (FilePlace, TokenFileError) {
    match error {
        DataError::Malformed { place, source, .. } => {
            (*place, *source.downcast_ref().expect("a cause of this kind"))
        }
        other => panic!("{other}"),
    }
}

#[test]
fn every_format_gives_back_the_tokens_that_were_written() {
    let folder = Folder::new("formats");
    for format in FORMATS {
        let path = folder.path("tokens.bin");
        let tokens: Vec<u32> = (0..11).map(|n| n * n * (format.token_max() / 200)).collect();
        assert_eq!(write_tokens(&path, format, &tokens).unwrap(), 11);
        let file = TokenFile::open_as(&[&path], 5, format).unwrap();
        let expected: Vec<i64> = tokens.iter().map(|&token| token.into()).collect();
        assert_eq!(rows(file.clone(), "tokens"), [&expected[..6], &expected[5..]], "{format:?}");
        assert_eq!(file.find_vocabulary_len(), tokens[10] as usize + 1);
        // Only the raw format of 4 bytes cannot be detected from the beginning of a file.
        if format != TokenFormat::RawU32 {
            let detected = TokenFile::open(&[&path], 5).unwrap();
            assert_eq!(rows(detected, "tokens"), rows(file, "tokens"), "{format:?}");
        }
    }
}

#[test]
fn files_equal_a_text_of_the_same_tokens_also_in_pairs_and_parts() {
    let text: String = (0..97_u32).map(|n| char::from(b'a' + (n * n % 23) as u8)).collect();
    let text = Text::new(&text, 4).unwrap();
    let tokens: Vec<u32> = rows(text.clone(), "tokens")
        .iter()
        .enumerate()
        .flat_map(|(at, row)| row[usize::from(at > 0)..].to_vec())
        .map(|token| token as u32)
        .collect();
    let folder = Folder::new("text");
    let path = folder.path("tokens.bin");
    write_tokens(&path, TokenFormat::LlmcU16, &tokens).unwrap();
    let file = TokenFile::open(&[&path], 4).unwrap();
    assert_eq!((file.fields(), file.len()), (text.fields(), text.len()));
    assert_eq!(rows(file.clone(), "tokens"), rows(text.clone(), "tokens"));
    for field in ["source", "target"] {
        let (file, text) = (file.clone().in_pairs(), text.clone().in_pairs());
        assert_eq!(rows(file, field), rows(text, field));
    }
    let ((train, test), (text_train, text_test)) = (file.split().unwrap(), text.split().unwrap());
    assert_eq!(rows(train, "tokens"), rows(text_train, "tokens"));
    assert_eq!(rows(test, "tokens"), rows(text_test, "tokens"));
}

#[test]
fn rows_do_not_cross_files_and_short_files_have_none() {
    let folder = Folder::new("shards");
    let paths = [0..7, 0..2, 0..0, 7..12].map(|range| {
        let path = folder.path(&format!("{}-{}.bin", range.start, range.end));
        write_tokens(&path, TokenFormat::RawU16, &range.collect::<Vec<u32>>()).unwrap();
        path
    });
    let file = TokenFile::open(&paths, 2).unwrap();
    let expected = [[0, 1, 2], [2, 3, 4], [4, 5, 6], [7, 8, 9], [9, 10, 11]];
    assert_eq!(rows(file.clone(), "tokens"), expected);
    assert_eq!((file.token_count(), file.find_vocabulary_len()), (14, 12));
    let short = TokenFile::open(&paths[1..3], 2).unwrap_err();
    assert!(matches!(short, DataError::InvalidOption { option: "context", value: 2 }), "{short}");
    for context in [0, usize::MAX] {
        assert!(TokenFile::open(&paths, context).is_err());
    }
}

#[test]
fn token_outside_the_vocabulary_is_an_error_that_names_its_byte() {
    let folder = Folder::new("vocabulary");
    let path = folder.path("tokens.bin");
    write_tokens(&path, TokenFormat::LlmcU32, &[1, 2, 3, 4, 70_000, 6]).unwrap();
    let file = TokenFile::open(&[&path], 2).unwrap().with_vocabulary(70_000);
    let loader = Loader::with_sampler(file, Sequential, options(1, 0, 0)).unwrap();
    let mut epoch = loader.epoch(0);
    epoch.next().unwrap().unwrap();
    let DataError::Sample { index: 1, source } = epoch.next().unwrap().unwrap_err() else {
        panic!("an error of sample 1");
    };
    let error = source.downcast_ref::<DataError>().unwrap();
    let expected = TokenFileError::OutsideVocabulary { token: 70_000, vocabulary_len: 70_000 };
    assert_eq!(cause(error), (FilePlace::Byte(1024 + 4 * 4), expected));
    assert!(error.to_string().contains("tokens.bin, byte 1040"), "{error}");
}

#[test]
fn damaged_files_are_errors_with_their_place() {
    let folder = Folder::new("damaged");
    let header = |numbers: [i32; 3], body: &[u8]| {
        let mut bytes = numbers.map(i32::to_le_bytes).concat();
        bytes.resize(1024, 0);
        [&bytes, body].concat()
    };
    let lies = |header, actual| TokenFileError::TokenCount { header, actual };
    let cases: [(Vec<u8>, Option<TokenFormat>, u64, TokenFileError); 9] = [
        (vec![1, 2, 3], None, 2, TokenFileError::PartOfToken { token_bytes: 2 }),
        (header([20_240_520, 1, 0], &[])[..900].to_vec(), None, 900, TokenFileError::PartOfHeader),
        (header([20_240_522, 1, 0], &[]), None, 0, TokenFileError::Questions),
        (
            header([20_240_520, 2, 0], &[]),
            None,
            4,
            TokenFileError::Version { found: 2, expected: 1 },
        ),
        (
            header([7, 1, 0], &[]),
            Some(TokenFormat::LlmcU16),
            0,
            TokenFileError::Magic { found: 7, expected: 20_240_520 },
        ),
        (header([20_240_520, 1, 3], &[0; 4]), None, 8, lies(3, 2)),
        (header([20_240_520, 1, -1], &[0; 4]), None, 8, lies(-1, 2)),
        (header([20_240_801, 7, i32::MAX], &[0; 8]), None, 8, lies(i32::MAX, 2)),
        (
            header([20_240_801, 7, 1], &[0; 6]),
            None,
            1028,
            TokenFileError::PartOfToken { token_bytes: 4 },
        ),
    ];
    let path = folder.path("damaged.bin");
    for (bytes, format, byte, expected) in cases {
        fs::write(&path, bytes).unwrap();
        let opened = match format {
            None => TokenFile::open(&[&path], 1),
            Some(format) => TokenFile::open_as(&[&path], 1, format),
        };
        let error = opened.unwrap_err();
        assert_eq!(cause(&error), (FilePlace::Byte(byte), expected));
        assert!(error.to_string().contains("damaged.bin"), "{error}");
    }
    let absent = TokenFile::open(&[folder.path("absent")], 1).unwrap_err();
    assert!(matches!(absent, DataError::File { .. }), "{absent}");
}

#[test]
fn failed_writer_leaves_the_file_that_was_there() {
    let folder = Folder::new("writer");
    let path = folder.path("tokens.bin");
    write_tokens(&path, TokenFormat::RawU16, &[1, 2, 3]).unwrap();
    let open = TokenFile::open(&[&path], 2).unwrap();
    let mut writer = TokenWriter::create(&path, TokenFormat::LlmcU16).unwrap();
    writer.push(&[9, 9]).unwrap();
    let error = writer.push(&[9, 65_536]).unwrap_err();
    let expected = TokenFileError::TokenTooLarge { token: 65_536, token_max: 65_535 };
    assert_eq!(cause(&error), (FilePlace::Byte(1024 + 3 * 2), expected));
    drop(writer);
    assert_eq!(fs::read_dir(folder.root()).unwrap().count(), 1);
    // A new file takes the name, and the mapping still shows the old file.
    write_tokens(&path, TokenFormat::RawU16, &[4, 5, 6]).unwrap();
    assert_eq!(rows(open, "tokens"), [[1, 2, 3]]);
    assert_eq!(rows(TokenFile::open(&[&path], 2).unwrap(), "tokens"), [[4, 5, 6]]);
    assert!(TokenWriter::create(folder.path("absent/tokens.bin"), TokenFormat::RawU16).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..Default::default() })]

    #[test]
    fn any_bytes_are_rows_or_an_error(
        bytes in prop::collection::vec(any::<u8>(), 0..64),
        header in prop::option::of((0_usize..4, any::<i32>(), -1..40_i32)),
        context in 1_usize..6,
        format in prop::option::of(0_usize..4),
    ) {
        let folder = Folder::new("any");
        let path = folder.path("any.bin");
        let head = header.map_or(Vec::new(), |(kind, version, count)| {
            let (magic, known) = [(20_240_520, 1), (20_240_801, 7), (20_240_522, 1), (0, 0)][kind];
            let version = if version % 2 == 0 { known } else { version };
            let mut head = [magic, version, count].map(i32::to_le_bytes).concat();
            head.resize(1024, 0);
            head
        });
        fs::write(&path, [&head[..], &bytes].concat()).unwrap();
        let opened = match format {
            None => TokenFile::open(&[&path], context),
            Some(at) => TokenFile::open_as(&[&path], context, FORMATS[at]),
        };
        if let Ok(file) = opened {
            prop_assert!(file.token_count() <= (head.len() + bytes.len()) / 2);
            let len = file.find_vocabulary_len() as i64;
            let rows = rows(file, "tokens");
            prop_assert!(rows.iter().flatten().all(|token| (0..len).contains(token)));
        }
    }
}

#[cfg(unix)]
#[test]
fn links_to_token_files_stay_and_pipes_are_written_in_place() {
    use std::os::unix::fs::{FileTypeExt, symlink};
    let folder = Folder::new("links");
    let [target, link, pipe] = ["target", "link", "pipe"].map(|name| folder.path(name));
    symlink("target", &link).unwrap();
    for tokens in [&[1, 2, 3][..], &[4, 5]] {
        write_tokens(&link, TokenFormat::LlmcU16, tokens).unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read(&target).unwrap().len(), 1024 + 2 * tokens.len());
    }
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || fs::read(pipe)
    });
    write_tokens(&pipe, TokenFormat::RawU16, &[1, 258]).unwrap();
    // If the pipe was replaced, the reader would wait for ever.
    assert!(fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
    assert_eq!(reader.join().unwrap().unwrap(), [1, 0, 2, 1]);
}
