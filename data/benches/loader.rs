//! Loading of an epoch: inline (the baseline) and with worker threads.
//!
//! `digits` copies 264 bytes per sample and shows the cost of the threads. `decode` computes every
//! sample from its index, in some microseconds, and shows the gain of the threads. `gather` copies
//! 256 bytes per sample, in loaders and in a plain loop: the difference is the cost of a loader.
//! `first_batch` waits for one batch of 64 samples of 2 ms each.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use lowtide_data::{
    DataError, Dataset, Digits, ElementType, Field, InMemory, Loader, LoaderOptions, Permuted,
    SampleError, SampleSlot, Shuffled,
};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

const BATCH_SIZE: usize = 64;
const WORKERS: [usize; 3] = [0, 1, 2];
const DECODE_LEN: usize = 512;
const DECODE_ROUNDS: usize = 20_000;

/// A dataset whose samples are the results of long chains of multiplications.
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

/// The sum of the last field, which reads the bytes of the batch.
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

const GATHER_LEN: usize = 1 << 14;
const GATHER_SIDE: usize = 64;

/// Rows of f32 in a shuffled order, read by a loop and by loaders.
fn gather(c: &mut Criterion) {
    let mut group = c.benchmark_group("data/gather");
    group.throughput(Throughput::Elements(GATHER_LEN as u64));
    let values: Vec<f32> = (0..GATHER_LEN * GATHER_SIDE).map(|n| n as f32).collect();
    let mut order: Vec<usize> = (0..GATHER_LEN).collect();
    Shuffled.arrange(0, 0, &mut order);
    let mut batch = vec![0.0_f32; BATCH_SIZE * GATHER_SIDE];
    group.bench_function("baseline_loop", |b| {
        b.iter(|| {
            for indices in order.chunks(BATCH_SIZE) {
                for (row, &index) in batch.chunks_exact_mut(GATHER_SIDE).zip(indices) {
                    row.copy_from_slice(&values[index * GATHER_SIDE..][..GATHER_SIDE]);
                }
                black_box(&mut batch);
            }
        });
    });
    let data = InMemory::new(GATHER_LEN).with("x", &[GATHER_SIDE], values.clone());
    let data = Arc::new(data.expect("the column has its length"));
    for workers in WORKERS {
        let options = LoaderOptions { batch_size: BATCH_SIZE, workers, ..Default::default() };
        let shuffled = Loader::new(Arc::clone(&data), options);
        let permuted = Loader::with_sampler(Arc::clone(&data), Permuted, options);
        for (name, loader) in [("shuffled", shuffled), ("permuted", permuted)] {
            let loader = loader.expect("the ring is small");
            group.bench_function(format!("{name}_workers_{workers}"), |b| {
                b.iter(|| loader.epoch(0).for_each(|batch| drop(black_box(batch))));
            });
        }
    }
    group.finish();
}

/// A dataset whose samples wait 2 ms, like a slow disk.
struct Waits([Field; 1]);

impl Dataset for Waits {
    fn len(&self) -> usize {
        BATCH_SIZE
    }

    fn fields(&self) -> &[Field] {
        &self.0
    }

    fn write(&self, _index: usize, _slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
        std::thread::sleep(Duration::from_millis(2));
        Ok(())
    }
}

fn first_batch(c: &mut Criterion) {
    let mut group = c.benchmark_group("data/first_batch");
    group.sample_size(10).throughput(Throughput::Elements(BATCH_SIZE as u64));
    for workers in [0, 1, 2, 8] {
        let options = LoaderOptions { batch_size: BATCH_SIZE, workers, ..Default::default() };
        let dataset = Waits([Field::new("y", ElementType::I64, &[])]);
        let loader = Loader::new(dataset, options).expect("the ring is small");
        let variant =
            if workers == 0 { "baseline_inline".to_owned() } else { format!("workers_{workers}") };
        group.bench_function(variant, |b| {
            b.iter(|| drop(loader.epoch(0).next().expect("a batch").expect("no faults")));
        });
    }
    group.finish();
}

criterion_group!(benches, digits, decode, gather, first_batch);
criterion_main!(benches);
