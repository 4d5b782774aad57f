//! Streams: rows of files in order, exact resume, and errors that lose no other sample.

use crate::{Folder, Seen, drain};
use lowtide_data::{
    Bytes, Collate, DataError, ElementType, Field, ForeignState, JsonLines, JsonLinesStream,
    LineFormat, Loader, LoaderOptions, OnBadSample, PackedRows, Reading, SampleError, SampleSlot,
    Sequential, ShuffledStream, Stream, StreamLoader, StreamLoaderState, StreamOptions,
    StreamState,
};
use proptest::prelude::*;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

const READINGS: [Reading; 2] = [Reading::Inline, Reading::Ahead];

fn options(batch_size: usize, reading: Reading) -> StreamOptions {
    StreamOptions { batch_size, reading, ..Default::default() }
}

fn reader() -> JsonLines {
    let tokenizer = Arc::new(Bytes::new().with_special("<|endoftext|>"));
    JsonLines::new(LineFormat::text(), tokenizer).unwrap()
}

/// Two files: one with blank lines, and one with a line of many tokens.
fn files(folder: &Folder) -> [PathBuf; 2] {
    let long = "x".repeat(40);
    let texts = ["{\"text\": \"ab\"}\n\n{\"text\": \"\"}\n{\"text\": \"cdefg\"}".to_owned()];
    let [first] = texts;
    let second =
        format!("{{\"text\": \"{long}\"}}\n{{\"text\": \"h\"}}\n{{\"text\": \"ijklmnop\"}}\n");
    [("a.jsonl", first), ("b.jsonl", second)].map(|(name, content)| {
        let path = folder.path(name);
        fs::write(&path, content).unwrap();
        path
    })
}

/// A stream of the numbers from 0 to `end` in a ragged field, number `n` as `n % 4` items. The
/// numbers `bad` are errors.
struct Numbers {
    fields: [Field; 1],
    next: u64,
    end: u64,
    bad: Vec<u64>,
}

impl Numbers {
    fn new(end: u64, bad: &[u64]) -> Self {
        let fields = [Field::ragged("n", ElementType::I64, 3, &[], Collate::Packed)];
        Self { fields, next: 0, end, bad: bad.to_vec() }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("number {0} is unreadable")]
struct Unreadable(u64);

impl Stream for Numbers {
    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn write_next(&mut self, slot: &mut SampleSlot<'_>) -> Result<bool, SampleError> {
        if self.next == self.end {
            return Ok(false);
        }
        let number = self.next;
        self.next += 1;
        if self.bad.contains(&number) {
            return Err(Unreadable(number).into());
        }
        assert_ne!(number, 1000, "torn page");
        slot.ragged::<i64>(0, (number % 4) as usize)?.fill(number as i64);
        Ok(true)
    }

    fn state(&self) -> StreamState {
        StreamState::new(&self.next)
    }

    fn set_state(&mut self, state: &StreamState) -> Result<(), SampleError> {
        self.next = state.content()?;
        Ok(())
    }
}

/// All batches of a stream from a state on, with the state after each batch.
fn rest<S: Stream + 'static>(
    stream: S,
    options: StreamOptions,
    state: Option<StreamLoaderState>,
    batches: usize,
) -> Vec<(Seen, StreamLoaderState)> {
    let loader = match state {
        None => StreamLoader::new(stream, options),
        Some(state) => StreamLoader::resume(stream, options, state),
    };
    let mut loader = loader.unwrap();
    let mut seen = Vec::new();
    while seen.len() < batches
        && let Some(batch) = loader.next()
    {
        seen.push((Seen::of(&batch.unwrap()), loader.state()));
    }
    seen
}

/// Resumes after each batch, through JSON, and again after one more batch.
fn check_resume<S: Stream + 'static>(make: impl Fn() -> S, options: StreamOptions, batches: usize) {
    let whole = rest(make(), options, None, batches);
    assert!(whole.len() > 2);
    for reading in READINGS {
        let options = StreamOptions { reading, ..options };
        assert_eq!(rest(make(), options, None, batches), whole);
        for taken in 0..whole.len() {
            let saved = serde_json::to_string(&whole[taken].1).unwrap();
            let state: StreamLoaderState = serde_json::from_str(&saved).unwrap();
            let left = whole.len() - taken - 1;
            assert_eq!(rest(make(), options, Some(state.clone()), left), whole[taken + 1..]);
            let once = rest(make(), options, Some(state), 1.min(left));
            if let Some((_, state)) = once.last() {
                let twice = rest(make(), options, Some(state.clone()), left - 1);
                assert_eq!(twice, whole[taken + 2..], "second resume after batch {taken}");
            }
        }
    }
}

#[test]
fn resuming_after_any_batch_gives_the_rest_also_twice() {
    let folder = Folder::new("resume");
    let paths = files(&folder);
    for context in [1, 3, 7, 50] {
        let stream = || reader().stream(&paths, context).unwrap().with_boundaries();
        check_resume(|| stream().repeated(), options(3, Reading::Inline), 12);
        check_resume(
            || ShuffledStream::new(stream().repeated(), 5, 7).unwrap(),
            options(3, Reading::Inline),
            12,
        );
    }
    check_resume(|| Numbers::new(20, &[]), options(3, Reading::Inline), 100);
    let shuffled = || ShuffledStream::new(Numbers::new(20, &[]), 6, 1).unwrap();
    check_resume(shuffled, options(4, Reading::Inline), 100);
}

#[test]
fn bad_samples_that_are_skipped_do_not_shift_a_resumed_stream() {
    let folder = Folder::new("bad");
    let path = folder.path("data.jsonl");
    let lines = ["{\"text\": \"abcd\"}", "oops", "[]", "{\"text\": \"efghi\"}", "{}"];
    fs::write(&path, lines.join("\n").repeat(3).replace("}{", "}\n{")).unwrap();
    let skipping =
        StreamOptions { on_bad_sample: OnBadSample::Skip(1000), ..options(16, Reading::Inline) };
    for context in [1, 2, 4, 11] {
        let stream = || reader().stream(&[&path], context).unwrap().repeated();
        check_resume(stream, skipping, 15);
        check_resume(|| ShuffledStream::new(stream(), 7, 3).unwrap(), skipping, 15);
    }
    let skipping = StreamOptions { batch_size: 5, ..skipping };
    let numbers = || Numbers::new(40, &[0, 5, 6, 17, 39]);
    check_resume(numbers, skipping, 100);
    check_resume(|| ShuffledStream::new(numbers(), 8, 3).unwrap(), skipping, 100);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..Default::default() })]

    #[test]
    fn streamed_rows_are_the_packed_rows(
        texts in prop::collection::vec("[a-z]{0,9}", 1..12),
        context in 1_usize..9,
        cut in any::<prop::sample::Index>(),
    ) {
        let folder = Folder::new("rows");
        let line = |text: &String| format!("{{\"text\": \"{text}\"}}\n");
        let cut = cut.index(texts.len() + 1);
        let parts = [("a.jsonl", &texts[..cut]), ("b.jsonl", &texts[cut..])];
        for (name, texts) in parts {
            fs::write(folder.path(name), texts.iter().map(line).collect::<String>()).unwrap();
        }
        let documents = reader().read(&[folder.root()]).unwrap();
        let stream = reader().stream(&[folder.root()], context).unwrap().with_boundaries();
        let stream = StreamLoader::new(stream, options(4, Reading::Ahead)).unwrap();
        let streamed = drain(stream);
        match PackedRows::new(documents, context) {
            Err(_) => prop_assert!(streamed.is_empty()),
            Ok(rows) => {
                let options = LoaderOptions { batch_size: 4, ..Default::default() };
                let loader = Loader::with_sampler(rows.with_boundaries(), Sequential, options);
                let packed = drain(loader.unwrap().epoch(0));
                prop_assert_eq!(streamed, packed);
            }
        }
    }

    #[test]
    fn shuffled_stream_gives_each_sample_of_a_block_once(
        end in 0_u64..40,
        block_len in 1_usize..12,
        seed in any::<u64>(),
    ) {
        let stream = ShuffledStream::new(Numbers::new(end, &[]), block_len, seed).unwrap();
        let order = numbers_of(stream);
        for (block, numbers) in order.chunks(block_len).enumerate() {
            let mut sorted = numbers.to_vec();
            sorted.sort_unstable();
            let first = (block * block_len) as i64;
            let expected: Vec<i64> = (first..first + numbers.len() as i64).collect();
            // Multiples of 4 have no items, so they appear as -1.
            let seen = expected.iter().map(|&n| if n % 4 == 0 { -1 } else { n });
            let mut seen: Vec<i64> = seen.collect();
            seen.sort_unstable();
            prop_assert_eq!(sorted, seen);
        }
        prop_assert_eq!(order.len() as u64, end);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..Default::default() })]

    #[test]
    fn any_bytes_and_any_state_are_rows_or_errors(
        pieces in prop::collection::vec(
            prop_oneof![
                Just("{\"text\": \"abcd\"}\n".as_bytes().to_vec()),
                Just(b"\n".to_vec()),
                prop::collection::vec(any::<u8>(), 0..40),
            ],
            0..12,
        ),
        place in (any::<u64>(), 0_usize..3, any_byte(), any::<u64>(), any::<usize>(), any::<u64>()),
    ) {
        let folder = Folder::new("any");
        let path = folder.path("any.jsonl");
        let content = pieces.concat();
        fs::write(&path, &content).unwrap();
        let options = StreamOptions {
            on_bad_sample: OnBadSample::Skip(usize::MAX),
            ..options(64, Reading::Inline)
        };
        let stream = || reader().with_line_bytes_max(16).stream(&[&path], 1).unwrap();
        let rows_of = |loader: StreamLoader| -> usize {
            loader.map(|batch| batch.map_or(0, |batch| batch.len())).sum()
        };
        let rows = rows_of(StreamLoader::new(stream(), options).unwrap());
        prop_assert!(rows <= content.len());
        let (round, file, byte, lines_before, used, bad_known) = place;
        let state = serde_json::json!({
            "batch": 1, "sample": lines_before, "batch_size": 64,
            "stream": {
                "place": {
                    "round": round, "file": file, "byte": byte, "lines_before": lines_before,
                },
                "used": used,
                "bad_known": bad_known,
            },
        });
        let state = serde_json::from_value(state).unwrap();
        if let Ok(loader) = StreamLoader::resume(stream(), options, state) {
            prop_assert!(rows_of(loader) <= content.len());
        }
    }
}

/// The number of each sample, or -1 if it has no items.
fn numbers_of(stream: impl Stream + 'static) -> Vec<i64> {
    let loader = StreamLoader::new(stream, options(1, Reading::Inline)).unwrap();
    let number = |batch: Result<lowtide_data::Batch, DataError>| {
        let batch = batch.unwrap();
        let values = batch.field("n").unwrap().values::<i64>().unwrap().to_vec();
        values.first().copied().unwrap_or(-1)
    };
    loader.map(number).collect()
}

#[test]
fn order_of_blocks_depends_on_the_seed_and_the_block_alone() {
    let order = |seed| numbers_of(ShuffledStream::new(Numbers::new(64, &[]), 32, seed).unwrap());
    assert_eq!(order(1), order(1));
    assert_ne!(order(1), order(2));
    let (first, second) = (order(1)[..32].to_vec(), order(1)[32..].to_vec());
    let second: Vec<i64> = second.iter().map(|&n| if n < 0 { n } else { n - 32 }).collect();
    assert_ne!(first, second);
}

#[test]
fn last_batch_is_short_or_dropped_and_the_stream_stays_over() {
    for reading in READINGS {
        let mut loader = StreamLoader::new(Numbers::new(8, &[]), options(3, reading)).unwrap();
        let seen = drain(loader.by_ref());
        let samples: Vec<Vec<usize>> = seen.iter().map(|seen| seen.samples.clone()).collect();
        assert_eq!(samples, [vec![0, 1, 2], vec![3, 4, 5], vec![6, 7]]);
        assert_eq!(seen[2].index, 2);
        assert!(loader.next().is_none() && loader.next().is_none());
        assert_eq!((loader.state().batch, loader.state().sample), (3, 8));
        let dropping = StreamOptions { drop_last: true, ..options(3, reading) };
        let loader = StreamLoader::new(Numbers::new(8, &[]), dropping).unwrap();
        assert_eq!(drain(loader), seen[..2]);
        let none = StreamLoader::new(Numbers::new(0, &[]), options(3, reading)).unwrap();
        assert_eq!(none.count(), 0);
    }
}

#[test]
fn error_or_panic_comes_in_its_place_and_the_state_is_before_it() {
    for reading in READINGS {
        let mut loader = StreamLoader::new(Numbers::new(20, &[7]), options(3, reading)).unwrap();
        assert_eq!(loader.by_ref().take(2).filter(Result::is_ok).count(), 2);
        let error = loader.next().unwrap().unwrap_err();
        assert!(matches!(error, DataError::Sample { index: 7, .. }), "{error}");
        assert!(loader.next().is_none());
        // After a repair, the same stream continues with the batch that failed.
        let state = loader.state();
        assert_eq!((state.batch, state.sample), (2, 6));
        let rest = StreamLoader::resume(Numbers::new(20, &[]), options(3, reading), state);
        let whole = drain(StreamLoader::new(Numbers::new(20, &[]), options(3, reading)).unwrap());
        assert_eq!(drain(rest.unwrap()), whole[2..]);
        let mut stream = Numbers::new(2000, &[]);
        stream.next = 998;
        let mut loader = StreamLoader::new(stream, options(4, reading)).unwrap();
        let error = loader.next().unwrap().unwrap_err();
        let DataError::Panicked { index: 2, message } = &error else { panic!("{error}") };
        assert!(message.contains("torn page"), "{message}");
    }
}

#[test]
fn skipped_samples_are_named_and_counted() {
    let skip = |count| StreamOptions {
        on_bad_sample: OnBadSample::Skip(count),
        ..options(4, Reading::Ahead)
    };
    let mut loader = StreamLoader::new(Numbers::new(12, &[1, 2, 9]), skip(2)).unwrap();
    let batch = loader.next().unwrap().unwrap();
    assert_eq!(batch.sample_indices(), [0, 3]);
    assert_eq!(batch.skipped().iter().map(|bad| bad.index).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(batch.field("n").unwrap().values::<i64>().unwrap(), [3, 3, 3]);
    assert!(loader.next().unwrap().is_ok());
    assert!(matches!(loader.next().unwrap(), Err(DataError::Sample { index: 9, .. })));
    // A batch without any good sample is an error.
    let mut loader = StreamLoader::new(Numbers::new(9, &[0, 1, 2, 3]), skip(9)).unwrap();
    assert!(matches!(loader.next().unwrap(), Err(DataError::Sample { index: 0, .. })));
}

#[test]
fn malformed_lines_lose_nothing_but_themselves() {
    let folder = Folder::new("lines");
    let path = folder.path("data.jsonl");
    let long = "z".repeat(100_000);
    let lines =
        format!("{{\"text\": \"abc\"}}\n{long}\n{{\"text\": \"de\"}}\n{{]\n{{\"text\": \"f\"}}");
    fs::write(&path, lines).unwrap();
    let stream = reader().with_line_bytes_max(64).stream(&[&path], 1).unwrap();
    let skipping =
        StreamOptions { on_bad_sample: OnBadSample::Skip(2), ..options(99, Reading::Inline) };
    let batch = StreamLoader::new(stream, skipping).unwrap().next().unwrap().unwrap();
    let tokens = batch.field("tokens").unwrap().values::<i64>().unwrap().to_vec();
    let firsts: Vec<i64> = tokens.chunks(2).map(|row| row[0]).collect();
    assert_eq!(firsts, [97, 98, 99, 256, 100, 101, 256, 102]);
    let errors: Vec<String> = batch
        .skipped()
        .iter()
        .map(|bad| std::error::Error::source(&bad.error).unwrap().to_string())
        .collect();
    assert!(errors[0].contains("data.jsonl, line 2: the line has more than 64"), "{errors:?}");
    assert!(errors[1].contains("data.jsonl, line 4: column 2"), "{errors:?}");
}

#[test]
fn holding_every_batch_is_an_error_and_dropping_one_lets_the_stream_go_on() {
    for reading in READINGS {
        let mut loader = StreamLoader::new(Numbers::new(60, &[]), options(2, reading)).unwrap();
        let slots = if reading == Reading::Ahead { 3 } else { 2 };
        assert_eq!(loader.staging_bytes() % slots, 0);
        let mut held: Vec<_> = loader.by_ref().take(slots).map(Result::unwrap).collect();
        for _ in 0..3 {
            let error = loader.next().unwrap().unwrap_err();
            assert!(matches!(error, DataError::StagingExhausted { slots: n } if n == slots));
        }
        held.clear();
        assert_eq!(loader.next().unwrap().unwrap().index(), slots);
    }
}

#[test]
fn states_of_other_streams_and_options_are_refused() {
    let folder = Folder::new("foreign");
    let paths = files(&folder);
    let stream = |files: &[PathBuf]| reader().stream(files, 3).unwrap();
    let mut loader = StreamLoader::new(stream(&paths), options(2, Reading::Inline)).unwrap();
    assert_eq!(loader.by_ref().count(), 10);
    let state = loader.state();
    let resume = |stream: JsonLinesStream, batch_size, state: &StreamLoaderState| {
        StreamLoader::resume(stream, options(batch_size, Reading::Inline), state.clone())
    };
    assert!(resume(stream(&paths), 2, &state).is_ok());
    let error = resume(stream(&paths), 3, &state).unwrap_err();
    assert!(matches!(error, DataError::StateMismatch { what: "batch_size", .. }), "{error}");
    let other =
        StreamLoader::resume(Numbers::new(9, &[]), options(2, Reading::Inline), state.clone());
    let DataError::StreamState { source } = other.unwrap_err() else { panic!("another error") };
    assert!(source.downcast_ref::<ForeignState>().is_some(), "{source}");
    let error = resume(stream(&paths[..0]), 2, &state).unwrap_err();
    assert!(matches!(error, DataError::StreamState { .. }), "{error}");
    let shuffled = |seed, len| ShuffledStream::new(Numbers::new(9, &[]), len, seed).unwrap();
    let state = shuffled(1, 4).state();
    assert!(shuffled(1, 4).set_state(&state).is_ok());
    assert!(shuffled(2, 4).set_state(&state).is_err() && shuffled(1, 5).set_state(&state).is_err());
    // The document is now shorter than the part of it that was read.
    let mut stream = stream(&paths);
    let short = r#"{"place": {"round": 0, "file": 0, "byte": 0, "lines_before": 0}, "used": 3,
        "bad_known": 0}"#;
    stream.set_state(&serde_json::from_str(short).unwrap()).unwrap();
    let mut loader = StreamLoader::new(stream, options(2, Reading::Inline)).unwrap();
    let error = loader.next().unwrap().unwrap_err();
    assert!(matches!(error, DataError::Sample { index: 0, .. }), "{error}");
}

#[test]
fn options_that_no_loader_can_have_are_refused() {
    for (batch_size, prefetch) in [(0, 1), (1, 0), (usize::MAX, 1), (1, usize::MAX)] {
        for reading in READINGS {
            let options = StreamOptions { batch_size, prefetch, reading, ..Default::default() };
            assert!(StreamLoader::new(Numbers::new(9, &[]), options).is_err());
        }
    }
    for len in [0, usize::MAX] {
        assert!(ShuffledStream::new(Numbers::new(9, &[]), len, 0).is_err());
    }
    let empty = Folder::new("nothing");
    let path = empty.path("empty.jsonl");
    fs::write(&path, "\n\n").unwrap();
    let stream = reader().stream(&[path], 2).unwrap().repeated();
    assert_eq!(StreamLoader::new(stream, options(2, Reading::Ahead)).unwrap().count(), 0);
    assert!(reader().stream(&["x"], 0).is_err());
}

/// A byte offset within a small file, or any number.
fn any_byte() -> impl Strategy<Value = u64> {
    prop_oneof![0_u64..64, any::<u64>()]
}
