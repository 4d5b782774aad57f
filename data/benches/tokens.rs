//! Tokens from files to batches, and text to tokens.
//!
//! `token_rows` is an epoch of shuffled rows of 1024 tokens from a mapped file of 16-bit tokens in
//! the page cache, next to a plain loop that copies the same rows from a vector. The loader and the
//! loop sum the tokens of each batch. `tokenize` encodes the English text of a licence: with bytes
//! as the baseline, with GPT-2's encoding, and with a byte-level encoding of 1000 tokens from a
//! `tokenizer.json`. `tokens.py` in this folder measures `token_rows` and `tokenize` with PyTorch
//! and the Python packages.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use lowtide_data::{
    Bytes, Dataset, Loader, LoaderOptions, Shuffled, Tiktoken, TokenFile, TokenFormat, Tokenizer,
    TokenizerJson, write_tokens,
};
use std::hint::black_box;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

const CONTEXT: usize = 1024;
const BATCH_SIZE: usize = 32;
const ROWS: usize = 1 << 13;
const TOKENS: usize = ROWS * CONTEXT + 1;
const WORKERS: [usize; 2] = [0, 2];

fn token_rows(c: &mut Criterion) {
    let mut group = c.benchmark_group("data/token_rows");
    group.throughput(Throughput::Elements((ROWS * CONTEXT) as u64));
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("tokens.bin");
    let tokens: Vec<u32> =
        (0..TOKENS as u32).map(|n| n.wrapping_mul(2_654_435_761) >> 16).collect();
    write_tokens(&path, TokenFormat::RawU16, &tokens).expect("room for 16 MiB");
    let tokens: Vec<u16> = tokens.into_iter().map(|token| token as u16).collect();
    let mut order: Vec<usize> = (0..ROWS).collect();
    Shuffled.arrange(0, 0, &mut order);
    let mut batch = vec![0_i64; BATCH_SIZE * (CONTEXT + 1)];
    let mut copy = |indices: &[usize]| {
        for (row, &index) in batch.chunks_exact_mut(CONTEXT + 1).zip(indices) {
            let from = &tokens[index * CONTEXT..][..CONTEXT + 1];
            for (to, &token) in row.iter_mut().zip(from) {
                *to = token.into();
            }
        }
        batch.iter().sum::<i64>()
    };
    let expected: Vec<i64> = order.chunks(BATCH_SIZE).map(&mut copy).collect();
    group.bench_function("baseline_loop", |b| {
        b.iter(|| order.chunks(BATCH_SIZE).map(&mut copy).fold(0, i64::wrapping_add));
    });
    let file = TokenFile::open(&[&path], CONTEXT).expect("it was written above");
    assert_eq!(file.len(), ROWS);
    for workers in WORKERS {
        let options = LoaderOptions { batch_size: BATCH_SIZE, workers, ..Default::default() };
        let loader = Loader::new(file.clone(), options).expect("the ring is small");
        let sums = loader.epoch(0).map(|batch| {
            let batch = batch.expect("the file is whole");
            let tokens = batch.field("tokens").and_then(|field| field.values::<i64>());
            tokens.into_iter().flatten().sum::<i64>()
        });
        assert!(sums.eq(expected.iter().copied()), "the loop and the loader have the same rows");
        group.bench_function(format!("workers_{workers}"), |b| {
            // The tokens are summed as in the loop, so that both read the bytes.
            b.iter(|| {
                for batch in loader.epoch(0) {
                    let batch = batch.expect("the file is whole");
                    let tokens = batch.field("tokens").and_then(|field| field.values::<i64>());
                    black_box(tokens.into_iter().flatten().sum::<i64>());
                }
            });
        });
    }
    group.finish();
}

const TEXT: &str = include_str!("../../LICENSE-APACHE");
const REPEATS: usize = 32;
const VOCABULARY_LEN: usize = 1000;

/// A byte-level encoding of the licence, trained by the library that reads it.
fn trained() -> TokenizerJson {
    let mut tokenizer = tokenizers::Tokenizer::new(BPE::default());
    tokenizer.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    let trainer = BpeTrainer::builder()
        .vocab_size(VOCABULARY_LEN)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .show_progress(false)
        .build();
    tokenizer
        .train(&mut tokenizers::models::TrainerWrapper::from(trainer), [TEXT].into_iter())
        .expect("the text is English");
    let json = tokenizer.to_string(false).expect("it is whole");
    TokenizerJson::from_bytes(json.as_bytes()).expect("the library reads what it has written")
}

fn tokenize(c: &mut Criterion) {
    let text = TEXT.repeat(REPEATS);
    let mut group = c.benchmark_group("data/tokenize");
    group.sample_size(20).throughput(Throughput::Bytes(text.len() as u64));
    let tokenizers: [(&str, Box<dyn Tokenizer>); 3] = [
        ("baseline_bytes", Box::new(Bytes::new())),
        ("tiktoken_gpt2", Box::new(Tiktoken::gpt2())),
        ("tokenizer_json", Box::new(trained())),
    ];
    for (name, tokenizer) in tokenizers {
        let tokens = tokenizer.encode(&text).expect("every text has tokens");
        assert_eq!(tokenizer.decode(&tokens).expect("its own tokens"), text);
        println!("{name}: {} bytes are {} tokens", text.len(), tokens.len());
        group.bench_function(name, |b| b.iter(|| tokenizer.encode(black_box(&text))));
    }
    group.finish();
}

criterion_group!(benches, token_rows, tokenize);
criterion_main!(benches);
