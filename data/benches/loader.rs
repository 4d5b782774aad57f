//! Loading an epoch: inline (the baseline) against worker threads.
//!
//! `digits` copies 264 bytes per sample and shows what the threads cost; `decode` computes every
//! sample from its index, some microseconds each, and shows what they gain.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use lowtide_data::{
    DataError, Dataset, Digits, ElementType, Field, Loader, LoaderOptions, SampleError, SampleSlot,
};
use std::hint::black_box;
use std::sync::Arc;

const BATCH_SIZE: usize = 64;
const WORKERS: [usize; 3] = [0, 1, 2];
const DECODE_LEN: usize = 512;
const DECODE_ROUNDS: usize = 20_000;

/// Samples that are a chain of multiplications long.
struct Decode([Field; 1]);

impl Dataset for Decode {
    fn len(&self) -> usize {
        DECODE_LEN
    }

    fn fields(&self) -> &[Field] {
        &self.0
    }

    fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
        let mut state = black_box(index as i64);
        for _ in 0..DECODE_ROUNDS {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        }
        slot.values::<i64>(0).fill(state);
        Ok(())
    }
}

/// A sum over the last field, so that the bytes are really there.
fn checksum(loader: &Loader) -> Result<i64, DataError> {
    let mut sum = 0_i64;
    for batch in loader.epoch(0) {
        let batch = batch?;
        let labels = batch.fields().last().and_then(|field| field.values::<i64>());
        sum = labels.into_iter().flatten().fold(sum, |sum, &label| sum.wrapping_add(label));
    }
    Ok(sum)
}

fn group(c: &mut Criterion, subject: &str, dataset: Arc<dyn Dataset>) {
    let mut group = c.benchmark_group(format!("data/{subject}"));
    group.throughput(Throughput::Elements(dataset.len() as u64));
    let mut expected = None;
    for workers in WORKERS {
        let options = LoaderOptions { batch_size: BATCH_SIZE, workers, ..Default::default() };
        let loader = Loader::new(Arc::clone(&dataset), options).expect("the ring is small");
        let sum = checksum(&loader).expect("the samples have no faults");
        assert_eq!(*expected.get_or_insert(sum), sum, "every loader gives the same epoch");
        let variant =
            if workers == 0 { "baseline_inline".to_owned() } else { format!("workers_{workers}") };
        group.bench_function(BenchmarkId::from_parameter(variant), |b| {
            b.iter(|| checksum(&loader));
        });
    }
    group.finish();
}

fn digits(c: &mut Criterion) {
    group(c, "digits", Arc::new(Digits::load().expect("the embedded file is whole")));
}

fn decode(c: &mut Criterion) {
    group(c, "decode", Arc::new(Decode([Field::new("y", ElementType::I64, &[16])])));
}

criterion_group!(benches, digits, decode);
criterion_main!(benches);
